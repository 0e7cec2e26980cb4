"""An idempotent producer: pipelines of up to five batches for each partition, sent again in their order after a failure (KIP-98)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import History
from tools.sim.clients.wire_client import NoAnswer, WireClient, produce_body
from tools.sim.policies import ID, is_tombstone, key_of

IN_FLIGHT = 5
"""A broker knows the last five batches of a producer and partition."""
RECORDS_MAX = 5
LARGE_ONE_OF, LARGE_BYTES = 60, 40_000
GZIP = 1
NEW_IDENTITY_SHARES = (0.05, 0.15, 0.6)
"""How often a producer to which all was acknowledged begins anew: then leaders do not know it."""


@dataclass(eq=False)
class Batch:
    """Records of one partition that are sent together. `sequence`: of the first one."""

    sequence: int
    ids: list[str]
    data: bytes


@dataclass(eq=False)
class Lane:
    """The batches of one partition that are not acknowledged, in order."""

    tp: TopicPartition
    next_sequence: int = 0
    count: int = 0
    unacked: deque[Batch] = field(default_factory=deque)
    has_failed: bool = False


class Producer:
    """Runs until `stop`, then until all is acknowledged. `deleting`: topics in which it deletes a key now and then."""

    is_reader = False

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
        deleting: Collection[str] = (),
        *,
        pauses: float = 1.0,
    ) -> None:
        self._deleting = deleting
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._random = random
        self._history = history
        self._lanes = [Lane(tp) for tp in partitions]
        self._topics = sorted({tp.topic for tp in partitions})
        self._producer_id = -1
        self._epoch = -1
        self._is_stopping = False
        self._pause_s = random.choice((1.0, 2.0, 4.0)) * pauses
        self._new_identity_share = random.choice(NEW_IDENTITY_SHARES)

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        client = self._client
        await client.refresh(self._topics)
        while self._producer_id < 0:
            await self._begin()
        while not (self._is_stopping and all(lane.has_failed or not lane.unacked for lane in self._lanes)):
            if not self._is_stopping:
                if self._random.random() < self._new_identity_share:
                    await self._begin_anew()
                for lane in self._lanes:
                    if not lane.unacked and not lane.has_failed and self._random.random() < 0.7:
                        self._add(lane, self._random.randint(1, IN_FLIGHT))
            is_well = await self._round()
            if is_well:
                await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            else:
                await client.back_off()
                await client.refresh(self._topics)
        client.close()

    async def _begin_anew(self) -> None:
        if any(lane.unacked or lane.has_failed for lane in self._lanes):
            return
        self._producer_id = -1
        while self._producer_id < 0:
            await self._begin()
        for lane in self._lanes:
            lane.next_sequence = 0

    async def _begin(self) -> None:
        body = {"transactional_id": None, "transaction_timeout": timedelta(seconds=60)}
        try:
            answer = await self._client.ask_any(ApiKey.INIT_PRODUCER_ID, body)
        except NoAnswer:
            await self._client.back_off()
            return
        if answer.error_code == ErrorCode.NONE:
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        else:
            await self._client.back_off()

    def _add(self, lane: Lane, batches: int) -> None:
        random = self._random
        for _ in range(batches):
            ids = []
            records: list[tuple[bytes, bytes | None, Sequence[tuple[str, bytes]], int]] = []
            for _ in range(random.randint(1, RECORDS_MAX)):
                record = f"{self.name}-{lane.tp.topic}-{lane.tp.partition}-{lane.count}"
                lane.count += 1
                ids.append(record)
                size = LARGE_BYTES if random.randrange(LARGE_ONE_OF) == 0 else random.randrange(200)
                timestamp = int(time.time() * 1000)
                if lane.tp.topic in self._deleting and is_tombstone(record):
                    records.append((key_of(record), None, ((ID, record.encode()),), timestamp))
                    self._history.counts["keys deleted"] += 1
                else:
                    records.append((key_of(record), f"{record} ".encode() + bytes(size), (), timestamp))
                self._history.produced(self.name, lane.tp, record)
            data = build_batch(
                records,
                compression=GZIP if random.randrange(4) == 0 else 0,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=lane.next_sequence,
            )
            lane.unacked.append(Batch(lane.next_sequence, ids, data))
            lane.next_sequence += len(ids)

    async def _round(self) -> bool:
        """Sends everything that is not acknowledged, and takes the answers. False: something must be sent again."""
        lanes = {lane.tp: lane for lane in self._lanes if lane.unacked and not lane.has_failed}
        by_leader = self._client.by_leader(lanes)
        rounds = [self._pipeline(leader, [lanes[tp] for tp in tps]) for leader, tps in by_leader.items()]
        return all(await asyncio.gather(*rounds)) and sum(map(len, by_leader.values())) == len(lanes)

    async def _pipeline(self, leader: Address, lanes: list[Lane]) -> bool:
        client = self._client
        try:
            connection = await client.connection(leader)
        except NoAnswer:
            return False
        version = client.version(ApiKey.PRODUCE)
        sent = []
        for place in range(max(len(lane.unacked) for lane in lanes)):
            batches = {lane.tp: lane.unacked[place] for lane in lanes if place < len(lane.unacked)}
            body = produce_body({tp: batch.data for tp, batch in batches.items()}, client.topic_ids)
            sent.append((batches, connection.ask(ApiKey.PRODUCE, version, body)))
        is_well = True
        stuck: dict[TopicPartition, None] = {}
        by_partition = {lane.tp: lane for lane in lanes}
        for batches, answer in sent:
            try:
                entity = await answer
            except NoAnswer:
                stuck.update(dict.fromkeys(batches))
                is_well = False
                continue
            found = {
                TopicPartition(client.name_of(topic), one.index): one
                for topic in entity.responses
                for one in topic.partition_responses
            }
            if list(found) != list(batches):
                self._history.break_promise(
                    f"{self.name} asked for {list(batches)} and was answered about {list(found)}"
                )
            for tp, batch in batches.items():
                is_well &= self._take(by_partition[tp], batch, found.get(tp), stuck, leader[0])
        return is_well

    def _take(self, lane: Lane, batch: Batch, result: object, stuck: dict[TopicPartition, None], leader: str) -> bool:
        """`stuck`: partitions of which an earlier batch must be sent again, so that later ones are out of order."""
        code = ErrorCode.NETWORK_EXCEPTION if result is None else ErrorCode(result.error_code)  # type: ignore[attr-defined]
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            if lane.tp not in stuck and (not lane.unacked or lane.unacked[0] is not batch):
                self._history.break_promise(
                    f"{self.name} got sequence {batch.sequence} of {lane.tp} acknowledged, and not the batch before it"
                )
                lane.has_failed = True
                return False
            # Behind one that is stuck: both were appended before, and only this request found enough replicas.
            lane.unacked.remove(batch)
            self._history.batch_acknowledged(lane.tp, batch.data)
            offset = result.base_offset if code == ErrorCode.NONE else -1  # type: ignore[attr-defined]
            for place, record in enumerate(batch.ids):
                self._history.acked(self.name, lane.tp, record, offset + place if offset >= 0 else None)
            return True
        if lane.tp in stuck and code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return False
        stuck[lane.tp] = None
        if is_retriable(code):
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._history.is_led_by(lane.tp, leader):
            return False  # by a leader that was replaced and has not heard of it: it lacks the batches that the next one has
        is_out_of_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_out_of_order and self._history.is_compacted_away(lane.tp, batch.data, leader):
            # The cleaner keeps only a producer's last batch, and a replica that was behind knows no earlier one.
            lane.unacked.remove(batch)
            self._history.counts["compacted away before their acknowledgement"] += 1
            return False
        self._history.break_promise(
            f"{self.name} was refused sequence {batch.sequence} of {lane.tp}, its oldest batch: {error_name(code)}"
        )
        lane.has_failed = True
        return False
