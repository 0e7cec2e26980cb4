"""Reads what clients' libraries hide: the control records of the logs, and who holds a transaction open.

Only the headers of batches are looked at. Brokers without ListTransactions (Kafka below 3.0) cannot say who holds a transaction open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from protocol.errors import ErrorCode, KafkaError, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import marker_in
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.record_batch import iter_batches
from protocol.types import Address, Buffer, TopicPartition
from tools.admin.bootstrap import addresses_of
from tools.failures import AdminError
from tools.judge.logs import LoggedBatch, OpenTransaction, PartitionLog, Place, transactions_in, unfenced_in
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.cluster_requests import ANY_BROKER, ClusterRequests, Question, Unsupported
from tools.wire.cluster_view import Unreachable
from tools.wire.connection import AccessRefused
from tools.wire.offsets import EARLIEST, offsets_at
from tools.wire.security import Security

CLIENT = "ottla-verify"
CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 10.0
READ_TIMEOUT_S = 60.0
"""A partition from which no answer is good for so long cannot be read."""
RETRY_S = 0.2
MARKERS_TIMEOUT_S = 5.0
"""How long a transaction that is open may take to end: the answer to EndTxn comes before the control records are written."""
DECIDED_TIMEOUT_S = 30.0
"""The same of one whose coordinator says that it is decided: the control records are on their way."""
OVERDUE = timedelta(seconds=15)
"""A coordinator aborts a transaction so long after its time-out at the latest: it looks every ten seconds."""
PARTITION_MAX_BYTES, RESPONSE_MAX_BYTES = 4 * 1024 * 1024, 50 * 1024 * 1024
DECIDED = ("PrepareCommit", "PrepareAbort")
OPEN_STATES = ("Ongoing", *DECIDED)


def with_transactions(
    bootstrap_servers: str, security: Security, logs: Mapping[Place, PartitionLog]
) -> dict[Place, PartitionLog]:
    """The logs with what is known of their transactions. Raises AdminError if a partition cannot be read."""
    try:
        return asyncio.run(_Reading(bootstrap_servers, security).logs(logs))
    except (Unreachable, AccessRefused, Unsupported) as problem:
        raise AdminError(f"the control records cannot be read: {problem or 'the brokers are too old'}") from None
    except (KafkaError, OSError, MalformedRequest) as problem:
        raise AdminError(f"the control records cannot be read: {problem}") from None


class _Read:
    """What is read of one partition. `begin`: what is below it was deleted after the records were read."""

    def __init__(self, place: Place, log: PartitionLog) -> None:
        self.place = place
        self.begin = self.position = log.start
        self.batches: list[LoggedBatch] = []
        self.named: Sequence[OpenTransaction] = ()
        self._log = log
        self._running: dict[int, int] = {}
        """Producer id -> the first offset of its open transaction."""

    def open(self) -> list[OpenTransaction]:
        """As `transactions_in`, without another walk over the batches."""
        return [OpenTransaction(*each) for each in sorted(self._running.items(), key=lambda each: each[1])]

    def add(self, buffer: Buffer) -> None:
        """The batches of a fetch from `position` on, the first of which may begin before it."""
        for at, header in iter_batches(buffer):
            if header.last_offset < self.position:
                continue
            marker = marker_in(buffer, at) if header.is_control else None
            if marker is not None:
                self._running.pop(header.producer_id, None)
            elif header.is_transactional and not header.is_control:
                self._running.setdefault(header.producer_id, header.base_offset)
            if marker is not None or not header.is_control:
                self.batches.append(
                    LoggedBatch(
                        header.base_offset,
                        header.last_offset,
                        header.producer_id,
                        header.producer_epoch,
                        header.is_transactional,
                        None if marker is None else marker.is_commit,
                    )
                )
            self.position = header.next_offset

    def log_with_transactions(self) -> PartitionLog:
        """What is there from `begin` on."""
        begin = max(self.begin, self._log.start)
        transactions, left = transactions_in(self.batches)
        names = {each[:2]: each for each in self.named}
        return replace(
            self._log,
            start=begin,
            ids={offset: id_ for offset, id_ in self._log.ids.items() if offset >= begin}
            if begin > self._log.start
            else self._log.ids,
            transactions=transactions,
            open=[names.get(each[:2], each) for each in left],
            unfenced=[each for each in unfenced_in(self.batches) if each.offset >= begin],
        )


class _Reading:
    def __init__(self, bootstrap_servers: str, security: Security) -> None:
        self._bootstrap = list(addresses_of(bootstrap_servers))
        self._client = Client(CLIENT, security)

    async def logs(self, logs: Mapping[Place, PartitionLog]) -> dict[Place, PartitionLog]:
        read = {place: _Read(place, log) for place, log in logs.items() if log.is_whole}
        now = time.monotonic()
        ask_from, end = now + MARKERS_TIMEOUT_S, now + DECIDED_TIMEOUT_S
        waiting: Collection[_Read] = list(read.values())
        while True:
            for each in waiting:
                await self._read(each)
            waiting = [each for each in waiting if each.open()]
            if not waiting:
                break
            if time.monotonic() > ask_from:
                before = {each.place: each.open() for each in waiting}
                holders = await self._holders()
                for each in waiting:  # some may have ended before their coordinator was asked
                    await self._read(each)
                    each.named = [_named(one, holders) if one in before[each.place] else one for one in each.open()]
                if time.monotonic() > end or not any(one.is_decided for each in waiting for one in each.named):
                    break
            await asyncio.sleep(RETRY_S)
        return {**logs, **{place: each.log_with_transactions() for place, each in read.items()}}

    async def _read(self, read: _Read) -> None:
        """Adds the batches up to the high watermark."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                await self._read_from(await self._leader(read.place), read)
                return
            except (OSError, MalformedRequest, KafkaError) as problem:
                passes = not isinstance(problem, KafkaError) or is_retriable(problem.code)
                if time.monotonic() > deadline or not passes or isinstance(problem, AccessRefused):
                    raise
                await asyncio.sleep(RETRY_S)

    async def _leader(self, place: Place) -> Address:
        """Raises KafkaError."""
        body = {"topics": [{"name": place[0], "topic_id": None}], "allow_auto_topic_creation": False}
        async with self._requests() as requests:
            answer = await requests.ask(Question(ANY_BROKER, ApiKey.METADATA, body))
        addresses = {int(broker.node_id): (str(broker.host), int(broker.port)) for broker in answer.brokers}
        for topic in answer.topics:
            for partition in topic.partitions:
                if int(partition.partition_index) == place[1] and int(partition.leader_id) in addresses:
                    return addresses[int(partition.leader_id)]
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place[0]}-{place[1]} has no leader")

    async def _read_from(self, leader: Address, read: _Read) -> None:
        topic, partition = read.place
        connection = await self._client.connect(leader, timeout_s=CONNECT_TIMEOUT_S)
        try:
            while True:
                frame = frames.fetch_frame(
                    CLIENT, 0, 1, RESPONSE_MAX_BYTES, PARTITION_MAX_BYTES, {topic: [(partition, read.position)]}
                )
                answer = frames.fetched(await connection.ask(frame, ANSWER_TIMEOUT_S))
                found = answer.topics[0][1][0]
                if found.error == ErrorCode.OFFSET_OUT_OF_RANGE and await self._skip_deleted(leader, read):
                    continue
                if found.error:
                    raise KafkaError(ErrorCode(found.error), f"{topic}-{partition} at {read.position}")
                if not read.batches and 0 <= found.last_stable_offset < read.position:
                    read.position = found.last_stable_offset  # a transaction is open that began before
                    continue
                before = read.position
                for buffer in found.records:
                    read.add(buffer)
                if read.position == before or read.position >= found.high_watermark:
                    return
        finally:
            connection.close()

    async def _skip_deleted(self, leader: Address, read: _Read) -> bool:
        """Whether records were deleted from there on. Then the log is read from where it begins."""
        place = TopicPartition(*read.place)
        begin = (await offsets_at(self._client, leader, [place], EARLIEST)).get(place, -1)
        if begin <= read.position:
            return False
        read.position = read.begin = begin
        return True

    def _requests(self) -> ClusterRequests:
        return ClusterRequests(self._client, self._bootstrap, CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)

    async def _holders(self) -> dict[int, Any] | None:
        """Producer id -> what its coordinator says of its open transaction; None if not every broker could be asked."""
        found: dict[int, Any] = {}
        try:
            async with self._requests() as requests:
                metadata = await requests.ask(
                    Question(ANY_BROKER, ApiKey.METADATA, {"topics": [], "allow_auto_topic_creation": False})
                )
                for broker in metadata.brokers:
                    to = int(broker.node_id)
                    body = {"state_filters": OPEN_STATES, "producer_id_filters": ()}
                    listed = await requests.ask(Question(to, ApiKey.LIST_TRANSACTIONS, body))
                    names = [str(row.transactional_id) for row in listed.transaction_states]
                    if not names:
                        continue
                    described = await requests.ask(
                        Question(to, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": names})
                    )
                    found |= {int(row.producer_id): row for row in described.transaction_states}
        except (Unsupported, KafkaError, Unreachable, AccessRefused, OSError, MalformedRequest):
            return None
        return found


def _named(each: OpenTransaction, holders: Mapping[int, Any] | None) -> OpenTransaction:
    if holders is None:
        return each._replace(words="the brokers do not say whose it is")
    row = holders.get(each.producer_id)
    if row is None:
        return each._replace(is_stuck=True, words="no coordinator knows of it, so nobody will end it")
    timeout, since = row.transaction_timeout, row.transaction_start_time
    is_over = since is not None and datetime.now(UTC) > since + timeout + OVERDUE
    seconds = f"{timeout.total_seconds():g} s"
    words = f"its time-out of {seconds} is over" if is_over else f"its time-out is {seconds}"
    return each._replace(
        transactional_id=str(row.transactional_id),
        is_stuck=is_over,
        is_decided=row.transaction_state in DECIDED,
        words=f"{row.transaction_state}, {words}",
    )


def may_have_transactions(logs: Mapping[Place, PartitionLog], stable_ends: Mapping[Place, int]) -> bool:
    """Whether offsets are missing, since a control record takes one, and no client's library shows it; or a transaction is open, or may
    have ended since the logs were read.

    `stable_ends`: the last stable offsets, of the partitions of which they are known, read after the logs.
    """
    return any(
        len(log.ids) < log.end - log.start or stable_ends.get(place, log.end) != log.end
        for place, log in logs.items()
        if log.is_whole
    )
