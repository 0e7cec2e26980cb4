"""A transactional producer: transactions of a few records in a few partitions, committed or aborted (KIP-98).

At level 4, most have transaction version 2 (KIP-890): brokers add their partitions, and each end gives them the next epoch. A producer of
that version does not ask for a new one when it gives up a transaction while its batches are on the way: the old epoch fences them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import (
    ABORTED_TRANSACTION,
    COMMITTED_TRANSACTION,
    UNKNOWN_TRANSACTION,
    History,
    Transaction,
)
from tools.sim.clients.wire_client import VERSION_MAX, NoAnswer, WireClient, produce_body
from tools.sim.policies import key_of

TRANSACTION = 1
"""The kind of coordinator."""
ADDING_NEWEST = 3
"""Newer versions of AddPartitionsToTxn are for brokers."""
PRODUCE_SINCE, END_SINCE, OFFSETS_SINCE = 12, 5, 5
"""The versions of Produce, EndTxn and TxnOffsetCommit from which on transactions are of version 2."""
VERSION_2_SHARE = 0.75
COMMITTED_SHARE = 0.7
LOST_IDENTITY = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
"""The coordinator has ended the transaction, such as after its time-out: the producer begins anew."""


class IdentityLost(Exception):
    """The producer must ask for a new epoch. The transaction was not committed by it, unless a commit had no answer."""


class TransactionalProducer:
    """Runs until `stop`, then ends its transaction.

    `transactional_id`: its name if there is none. A second instance with that of another one fences it, and is fenced by it.
    `fleeting`: partitions that come and go. Their records are only there so that transactions have such partitions.
    `is_old`: never of transaction version 2. `is_alone`: nobody else has its transactional id.
    """

    is_reader = False

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
        *,
        transactional_id: str = "",
        fleeting: Sequence[TopicPartition] = (),
        pauses: float = 1.0,
        is_old: bool = False,
        is_alone: bool = True,
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._id = transactional_id or name
        self._random = random
        self._history = history
        self._partitions = list(partitions)
        self._fleeting = list(fleeting)
        self._doubtful: set[TopicPartition] = set()
        """Fleeting partitions that may lack a batch: nothing more goes there in this epoch."""
        self._topics = sorted({tp.topic for tp in (*partitions, *fleeting)})
        self._coordinator: Address | None = None
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0
        self._is_stopping = False
        self._timeout = timedelta(seconds=random.choice((5, 20, 60)))
        self._pause_s = random.choice((1.0, 2.0, 4.0)) * pauses
        self._patience_s = random.choice((None, 0.1, 1.0))
        """How long it waits for the acknowledgements of its batches. Then it aborts: some may still be on the way."""
        self._is_alone = is_alone
        is_new = history.level is ApiLevel.KAFKA_4 and not is_old
        self.is_of_version_2 = is_new and random.random() < VERSION_2_SHARE

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        await self.refresh()
        while not self._is_stopping:
            try:
                if not self.has_begun:
                    await self.begin()
                await self._transaction()
            except IdentityLost:
                self.give_up_epoch()
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
        self.close()

    async def refresh(self) -> None:
        """Asks where the partitions are led."""
        await self._client.refresh(self._topics)

    @property
    def has_begun(self) -> bool:
        """Whether it has an epoch."""
        return self._producer_id >= 0

    def give_up_epoch(self) -> None:
        self._producer_id = -1

    def close(self) -> None:
        self._client.close()

    async def begin(self) -> None:
        """Gets a new epoch: the transaction of an earlier one has ended then. Raises IdentityLost."""
        self.give_up_epoch()
        body = {"transactional_id": self._id, "transaction_timeout": self._timeout}
        answer = await self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, body, lambda answer: answer.error_code)
        self._go_on_as((answer.producer_id, answer.producer_epoch))

    def _go_on_as(self, instance: tuple[int, int]) -> None:
        """The producer id and the epoch of its next transaction."""
        self._producer_id, self._epoch = instance
        self._history.instance_began(self.name, self._id, instance)
        self._sequences.clear()
        self._doubtful.clear()

    def new_transaction(self) -> Transaction:
        transaction = Transaction(f"{self.name}-{len(self._history.transactions)}")
        self._history.transactions.append(transaction)
        return transaction

    async def _transaction(self) -> None:
        transaction = self.new_transaction()
        if self.is_of_version_2 and self._random.random() < 0.1:
            await self.end(transaction, is_commit=False)  # without a partition
            return
        chosen = self._random.sample(self._partitions, self._random.randint(1, min(3, len(self._partitions))))
        try:
            await self.add_partitions(chosen)
            for _ in range(self._random.randint(1, 3)):
                batches = {tp: self.batch(tp, self._new_records(transaction, tp)) for tp in chosen}
                async with asyncio.timeout(self._patience_s):
                    await self.produce(batches)
                if self._fleeting:
                    await self._produce_where_it_may_end()
                if self._random.random() < 0.2:
                    await asyncio.sleep(self._random.expovariate(1 / 2.0))
        except IdentityLost:
            self._history.transaction_ended(transaction, ABORTED_TRANSACTION)
            raise
        except TimeoutError:
            self._history.counts["transactions given up"] += 1
            await self.end(transaction, is_commit=False)
            if not self.is_of_version_2:
                self.give_up_epoch()
            return
        await self.end(transaction, is_commit=self._random.random() < COMMITTED_SHARE)

    async def add_partitions(self, partitions: Sequence[TopicPartition], *, must_be_there: bool = True) -> bool:
        """False: one of them is not there. Raises IdentityLost."""
        if self.is_of_version_2:
            return True
        topics = tuple(
            {"name": topic, "partitions": tuple(tp.partition for tp in partitions if tp.topic == topic)}
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
        body = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": self._producer_id,
            "v3_and_below_producer_epoch": self._epoch,
            "v3_and_below_topics": topics,
        }
        answer = await self._ask_coordinator(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            body,
            lambda answer: _worst_of_partitions(answer, must_be_there=must_be_there),
            newest=ADDING_NEWEST,
        )
        return _worst_of_partitions(answer) == ErrorCode.NONE

    async def add_group(self, group: str) -> None:
        """The transaction will have offsets of that group. Raises IdentityLost."""
        if self.is_of_version_2:
            return
        body = {**self.identity(), "group_id": group}
        await self._ask_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, body, lambda answer: answer.error_code)

    async def end(self, transaction: Transaction, *, is_commit: bool) -> None:
        """Raises IdentityLost."""
        body = {**self.identity(), "committed": is_commit}
        wanted = COMMITTED_TRANSACTION if is_commit else ABORTED_TRANSACTION
        # From here on, nobody knows until an answer comes: the producer may never get one.
        transaction.outcome = UNKNOWN_TRANSACTION if is_commit else ABORTED_TRANSACTION
        try:
            instance = await self._end(body)
        except IdentityLost:
            self._history.transaction_ended(transaction, transaction.outcome)
            raise
        self._history.decision_told(self._id, instance)
        self._history.transaction_ended(transaction, wanted)
        if not self.is_of_version_2:
            return
        if self._random.random() < 0.1:
            await self._end_again(body, instance)
        self._go_on_as(instance)

    async def _end_again(self, body: Mapping[str, Any], instance: tuple[int, int]) -> None:
        """As if the first answer had been lost. Raises IdentityLost."""
        try:
            again = await self._end(body)
        except IdentityLost:
            if self._is_alone:
                self._history.break_promise(f"{self.name} ended its transaction twice, and was fenced by nobody")
            raise
        if again != instance:
            self._history.break_promise(f"{self.name} ended its transaction twice, and got {instance}, then {again}")

    async def _end(self, body: Mapping[str, Any]) -> tuple[int, int]:
        """As whom the producer goes on. Raises IdentityLost."""
        if not self.is_of_version_2:
            await self._ask_coordinator(ApiKey.END_TXN, body, lambda answer: answer.error_code, newest=END_SINCE - 1)
            return self._producer_id, self._epoch
        answer = await self._ask_coordinator(ApiKey.END_TXN, body, lambda answer: answer.error_code, oldest=END_SINCE)
        return answer.producer_id, answer.producer_epoch

    def identity(self) -> dict[str, Any]:
        """As requests have it."""
        return {
            "transactional_id": self._id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    def _is_fenced(self) -> bool:
        return self._history.is_fenced(self._id, (self._producer_id, self._epoch))

    def _count_loss(self, code: ErrorCode, *, was_fenced: bool) -> None:
        self._history.counts["requests fenced"] += was_fenced
        if self.is_of_version_2 and not was_fenced:
            self._history.counts[f"transactions of version 2 lost by {code.name}"] += 1

    def _check_fence(self, was_fenced: bool, what: str) -> None:
        if was_fenced:
            self._history.break_promise(
                f"{self.name} {what} with epoch {self._epoch} of {self._id}, after a newer one was given"
            )

    async def _ask_coordinator(
        self, api: ApiKey, body: Mapping[str, Any], code_of: Any, *, oldest: int = 0, newest: int = VERSION_MAX
    ) -> Any:
        """Asks until there is an answer without an error. Raises IdentityLost."""
        client = self._client
        while True:
            was_fenced = self._is_fenced()
            try:
                if self._coordinator is None:
                    self._coordinator = await client.coordinator(self._id, TRANSACTION)
                version = client.version(api, oldest, newest)
                connection = await client.connection(self._coordinator)
                was_fenced = self._is_fenced()
                answer = await connection.ask(api, version, body)
            except NoAnswer:
                self._coordinator = None
                await client.back_off()
                continue
            code = ErrorCode(code_of(answer))
            if code == ErrorCode.NONE:
                is_done = api is not ApiKey.ADD_PARTITIONS_TO_TXN or _worst_of_partitions(answer) == ErrorCode.NONE
                self._check_fence(was_fenced and is_done, f"got {api.name} done")
                return answer
            if code in LOST_IDENTITY:
                self._count_loss(code, was_fenced=was_fenced)
                raise IdentityLost
            if not is_retriable(code):
                self._history.break_promise(f"{self.name} was refused {api.name}: {error_name(code)}")
                raise IdentityLost
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self._coordinator = None
            await client.back_off()

    async def produce(self, batches: Mapping[TopicPartition, bytes]) -> None:
        """Sends each until it is acknowledged. Raises IdentityLost."""
        left = dict(batches)
        while left:
            for tp in await self._produce_once(left):
                del left[tp]
            if left:
                await self._client.back_off()
                await self._client.refresh(self._topics)

    async def _produce_once(self, batches: Mapping[TopicPartition, bytes]) -> list[TopicPartition]:
        """The partitions that have acknowledged. Raises IdentityLost."""
        by_leader = self._client.by_leader(batches)
        sent = [self._send(leader, {tp: batches[tp] for tp in tps}) for leader, tps in by_leader.items()]
        return [tp for acknowledged in await asyncio.gather(*sent) for tp in acknowledged]

    async def _produce_where_it_may_end(self) -> None:
        """One batch in a partition that may be deleted, and made again, before the transaction ends. Raises IdentityLost."""
        tp = self._random.choice(self._fleeting)
        if tp in self._doubtful or not await self.add_partitions([tp], must_be_there=False):
            return
        self._count += 1
        batch = self.batch(tp, [f"{self.name}-{tp.topic}-{tp.partition}-{self._count}"])
        if tp not in await self._produce_once({tp: batch}):
            self._doubtful.add(tp)
            await self._client.refresh(self._topics)
        await asyncio.sleep(self._random.expovariate(1 / self._pause_s))

    def _new_records(self, transaction: Transaction, tp: TopicPartition) -> list[str]:
        records = []
        for _ in range(self._random.randint(1, 3)):
            records.append(f"{self.name}-{tp.topic}-{tp.partition}-{self._count}")
            self._count += 1
        transaction.ids.setdefault(tp, []).extend(records)
        return records

    def batch(self, tp: TopicPartition, records: Sequence[str]) -> bytes:
        """The next one for the partition, with records of these ids."""
        rows = []
        for record in records:
            value = f"{record} ".encode() + bytes(self._random.randrange(100))
            rows.append((key_of(record), value, (), int(time.time() * 1000)))
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + len(rows)
        return build_batch(
            rows,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )

    async def _send(self, leader: Address, batches: Mapping[TopicPartition, bytes]) -> list[TopicPartition]:
        """The partitions that have acknowledged. Raises IdentityLost."""
        try:
            connection = await self._client.connection(leader)
            was_fenced = self._is_fenced()
            if self.is_of_version_2:
                version = self._client.version(ApiKey.PRODUCE, PRODUCE_SINCE)
            else:
                version = self._client.version(ApiKey.PRODUCE, newest=PRODUCE_SINCE - 1)
            answer = await connection.ask(
                ApiKey.PRODUCE, version, produce_body(batches, self._client.topic_ids, self._id)
            )
        except NoAnswer:
            return []
        acknowledged = []
        for topic in answer.responses:
            name = self._client.name_of(topic)
            for partition in topic.partition_responses:
                code = ErrorCode(partition.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    tp = TopicPartition(name, partition.index)
                    acknowledged.append(tp)
                    self._check_fence(was_fenced, f"got a batch of {tp} acknowledged")
                    if tp in self._fleeting:
                        self._history.counts["batches to fleeting partitions"] += 1
                    else:
                        self._history.batch_acknowledged(tp, batches[tp])
                elif code in LOST_IDENTITY:
                    self._count_loss(code, was_fenced=was_fenced)
                    raise IdentityLost
                elif not is_retriable(code):
                    self._history.break_promise(
                        f"{self.name} was refused a batch of {name}-{partition.index}: {error_name(code)}"
                    )
                    raise IdentityLost
        return acknowledged


def _worst_of_partitions(answer: Any, *, must_be_there: bool = True) -> int:
    codes = [
        partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    allowed = {ErrorCode.NONE} if must_be_there else {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    return next((code for code in codes if code not in allowed), ErrorCode.NONE)
