"""A member of a group that produces what it reads, and commits the offsets in the same transaction: exactly once (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from protocol.errors import ErrorCode, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.sim.clients.group_member import GroupMember, JoinAgain
from tools.sim.clients.history import History, Transaction
from tools.sim.clients.transactional_producer import LOST_IDENTITY, OFFSETS_SINCE, IdentityLost, TransactionalProducer
from tools.sim.clients.wire_client import NoAnswer
from tools.sim.policies import output_of

GENERATIONS_SINCE = 3
"""From this version on, TxnOffsetCommit says of which generation the member is, and the coordinator of the group fences it (KIP-447)."""
STABLE_SINCE, GROUPS_SINCE = 7, 8
"""Versions of OffsetFetch that can wait for pending commits, and that name several groups."""
COMMITTED_SHARE = 0.8


class Processor(GroupMember):
    """Reads committed records of `sources`, and writes to `outputs`.

    `is_old`: it speaks as clients before KIP-447. Then it must be the only one of its group, and get a new epoch before it asks for the
    committed offsets: so its last transaction has ended.
    """

    def __init__(
        self,
        name: str,
        group: str,
        bootstrap: Sequence[Address],
        sources: Sequence[TopicPartition],
        outputs: Sequence[TopicPartition],
        random: Random,
        history: History,
        *,
        is_old: bool,
    ) -> None:
        super().__init__(name, group, bootstrap, sources, random, history)
        self.is_committed_only = True
        self._is_old = is_old
        self._outputs = list(outputs)
        self._producer = TransactionalProducer(name, bootstrap, outputs, random, history, is_old=is_old)
        self._read: list[tuple[TopicPartition, int]] = []
        """What is not in a transaction yet."""

    async def run(self) -> None:
        await self._producer.refresh()
        await super().run()
        self._producer.close()

    def _got(self, tp: TopicPartition, offset: int, text: bytes) -> None:
        self._read.append((tp, offset))

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def _committed_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Waits until no commit is pending."""
        self._read = []
        while self._is_old or not self._producer.has_begun:
            try:
                await self._producer.begin()
                break
            except IdentityLost:
                continue
        if not partitions:
            self._committed = {}
            return {}
        topics = tuple(
            {
                "name": topic,
                "topic_id": self._client.topic_ids.get(topic),
                "partition_indexes": tuple(tp.partition for tp in partitions if tp.topic == topic),
            }
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
        group = {"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": topics}
        body = {**group, "groups": (group,), "require_stable": True}
        while True:
            version = self._client.version(ApiKey.OFFSET_FETCH, 1 if self._is_old else STABLE_SINCE)
            connection = await self._client.connection(await self._where())
            answer = await connection.ask(ApiKey.OFFSET_FETCH, version, body)
            if version >= GROUPS_SINCE:
                answer = answer.groups[0]
            self._check(getattr(answer, "error_code", ErrorCode.NONE))
            rows = [
                (TopicPartition(self._client.name_of(topic), row.partition_index), row)
                for topic in answer.topics
                for row in topic.partitions
            ]
            if any(row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT for _, row in rows):
                self._history.counts["offsets that were pending"] += 1
                await self._client.back_off()
                continue
            for _, row in rows:
                self._check(row.error_code)
            found = dict.fromkeys(partitions, 0) | {tp: max(0, row.committed_offset) for tp, row in rows}
            self._history.offsets_fetched(self.name, found)
            self._committed = dict(found)
            return found

    async def _commit(self) -> None:
        """Everything that was read goes into one transaction, with the offsets. Raises JoinAgain, NoAnswer."""
        moved = {tp: offset for tp, offset in self.positions.items() if offset != self._committed.get(tp)}
        if not moved:
            return
        read, self._read = self._read, []
        transaction = self._producer.new_transaction()
        transaction.offsets = moved
        try:
            try:
                are_offsets_first = self._random.random() < 0.3
                if are_offsets_first:
                    await self._add_offsets(moved)
                await self._write(read, transaction)
                if not are_offsets_first:
                    await self._add_offsets(moved)
            except (JoinAgain, NoAnswer):
                await self._producer.end(transaction, is_commit=False)
                raise
            is_commit = self._random.random() < COMMITTED_SHARE
            await self._producer.end(transaction, is_commit=is_commit)
        except IdentityLost:
            self._producer.give_up_epoch()
            raise NoAnswer("the transaction was ended by the coordinator") from None
        if is_commit:
            self._committed |= moved
        else:
            self.positions = await self._committed_offsets(list(self.positions))

    async def _write(self, read: Sequence[tuple[TopicPartition, int]], transaction: Transaction) -> None:
        """The outputs of these records. Raises IdentityLost."""
        ids = transaction.ids
        for tp, offset in read:
            output = self._random.choice(self._outputs)
            ids.setdefault(output, []).append(output_of(tp, offset, output, transaction.name))
        if ids:
            await self._producer.add_partitions(list(ids))
            await self._producer.produce({tp: self._producer.batch(tp, records) for tp, records in ids.items()})

    async def _add_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises IdentityLost, JoinAgain, NoAnswer."""
        await self._producer.add_group(self.group)
        topics = tuple(
            {
                "name": topic,
                "partitions": tuple(
                    {
                        "partition_index": tp.partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for tp, offset in offsets.items()
                    if tp.topic == topic
                ),
            }
            for topic in dict.fromkeys(tp.topic for tp in offsets)
        )
        body = {**self._in_generation(), **self._producer.identity(), "topics": topics}
        while True:
            code = await self._commit_once(body)
            if code == ErrorCode.NONE:
                return
            if code in LOST_IDENTITY:
                raise IdentityLost
            if not is_retriable(code):
                self._check(code)
            self._coordinator = None
            await self._client.back_off()

    async def _commit_once(self, body: Mapping[str, Any]) -> ErrorCode:
        api = ApiKey.TXN_OFFSET_COMMIT
        if self._is_old:
            version = self._client.version(api, newest=GENERATIONS_SINCE - 1)
        elif self._producer.is_of_version_2:
            version = self._client.version(api, OFFSETS_SINCE)
        else:
            version = self._client.version(api, GENERATIONS_SINCE, OFFSETS_SINCE - 1)
        try:
            connection = await self._client.connection(await self._where())
            answer = await connection.ask(api, version, body)
        except NoAnswer:
            return ErrorCode.NETWORK_EXCEPTION
        codes = [ErrorCode(row.error_code) for topic in answer.topics for row in topic.partitions]
        return next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE)
