"""A transactional producer: transactions of a few records in a few partitions, committed or aborted (KIP-98)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import TRANSACTIONAL_BIT, build_batch
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import (
    ABORTED_TRANSACTION,
    COMMITTED_TRANSACTION,
    UNKNOWN_TRANSACTION,
    History,
    Transaction,
)
from tools.sim.clients.wire_client import NoAnswer, WireClient, produce_body
from tools.sim.policies import key_of

TRANSACTION = 1
"""The kind of coordinator."""
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
    """Runs until `stop`, then ends its transaction."""

    is_reader = False

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
    ) -> None:
        self._client = WireClient(name, bootstrap, random, history)
        self.name = name
        self._random = random
        self._history = history
        self._partitions = list(partitions)
        self._topics = sorted({tp.topic for tp in partitions})
        self._coordinator: Address | None = None
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0
        self._is_stopping = False
        self._timeout = timedelta(seconds=random.choice((5, 20, 60)))
        self._pause_s = random.choice((1.0, 2.0, 4.0))

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        await self._client.refresh(self._topics)
        while not self._is_stopping:
            try:
                if self._producer_id < 0:
                    await self._begin()
                await self._transaction()
            except IdentityLost:
                self._producer_id = -1
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
        self._client.close()

    async def _begin(self) -> None:
        body = {"transactional_id": self.name, "transaction_timeout": self._timeout}
        answer = await self._ask_coordinator(ApiKey.INIT_PRODUCER_ID, body, lambda answer: answer.error_code)
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def _transaction(self) -> None:
        transaction = Transaction(f"{self.name}-{len(self._history.transactions)}")
        self._history.transactions.append(transaction)
        chosen = self._random.sample(self._partitions, self._random.randint(1, min(3, len(self._partitions))))
        try:
            await self._add_partitions(chosen)
            for _ in range(self._random.randint(1, 3)):
                await self._produce(transaction, chosen)
                if self._random.random() < 0.2:
                    await asyncio.sleep(self._random.expovariate(1 / 2.0))
        except IdentityLost:
            self._history.transaction_ended(transaction, ABORTED_TRANSACTION)
            raise
        await self._end(transaction, is_commit=self._random.random() < COMMITTED_SHARE)

    async def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        topics = tuple(
            {"name": topic, "partitions": tuple(tp.partition for tp in partitions if tp.topic == topic)}
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
        mine = {"transactional_id": self.name, "producer_id": self._producer_id, "producer_epoch": self._epoch}
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self._producer_id,
            "v3_and_below_producer_epoch": self._epoch,
            "v3_and_below_topics": topics,
            "transactions": ({**mine, "verify_only": False, "topics": topics},),
        }
        await self._ask_coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, body, _worst_of_partitions, newest=3)

    async def _end(self, transaction: Transaction, *, is_commit: bool) -> None:
        body = {
            "transactional_id": self.name,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "committed": is_commit,
        }
        wanted = COMMITTED_TRANSACTION if is_commit else ABORTED_TRANSACTION
        # From here on, nobody knows until an answer comes: the producer may never get one.
        transaction.outcome = UNKNOWN_TRANSACTION if is_commit else ABORTED_TRANSACTION
        try:
            await self._ask_coordinator(ApiKey.END_TXN, body, lambda answer: answer.error_code)
        except IdentityLost:
            self._history.transaction_ended(transaction, transaction.outcome)
            raise
        self._history.transaction_ended(transaction, wanted)

    async def _ask_coordinator(
        self, api: ApiKey, body: Mapping[str, Any], code_of: Any, newest: int | None = None
    ) -> Any:
        """Asks until there is an answer without an error. Raises IdentityLost."""
        client = self._client
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = await client.coordinator(self.name, TRANSACTION)
                version = client.version(api)
                connection = await client.connection(self._coordinator)
                answer = await connection.ask(api, version if newest is None else min(version, newest), body)
            except NoAnswer:
                self._coordinator = None
                await client.back_off()
                continue
            code = ErrorCode(code_of(answer))
            if code == ErrorCode.NONE:
                return answer
            if code in LOST_IDENTITY:
                raise IdentityLost
            if not is_retriable(code):
                self._history.break_promise(f"{self.name} was refused {api.name}: {error_name(code)}")
                raise IdentityLost
            if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self._coordinator = None
            await client.back_off()

    async def _produce(self, transaction: Transaction, partitions: Sequence[TopicPartition]) -> None:
        """One batch in each partition, sent until it is acknowledged. Raises IdentityLost."""
        batches = {tp: self._batch(transaction, tp) for tp in partitions}
        while batches:
            by_leader = self._client.by_leader(batches)
            sent = [self._send(leader, {tp: batches[tp] for tp in tps}) for leader, tps in by_leader.items()]
            for acknowledged in await asyncio.gather(*sent):
                for tp in acknowledged:
                    del batches[tp]
            if batches:
                await self._client.back_off()
                await self._client.refresh(self._topics)

    def _batch(self, transaction: Transaction, tp: TopicPartition) -> bytes:
        records = []
        for _ in range(self._random.randint(1, 3)):
            record = f"{self.name}-{tp.topic}-{tp.partition}-{self._count}"
            self._count += 1
            transaction.ids.setdefault(tp, []).append(record)
            value = f"{record} ".encode() + bytes(self._random.randrange(100))
            records.append((key_of(record), value, (), int(time.time() * 1000)))
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + len(records)
        return build_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )

    async def _send(self, leader: Address, batches: Mapping[TopicPartition, bytes]) -> list[TopicPartition]:
        """The partitions that have acknowledged. Raises IdentityLost."""
        try:
            answer = await self._client.ask(leader, ApiKey.PRODUCE, produce_body(batches, self.name))
        except NoAnswer:
            return []
        acknowledged = []
        for topic in answer.responses:
            for partition in topic.partition_responses:
                code = ErrorCode(partition.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    tp = TopicPartition(topic.name, partition.index)
                    acknowledged.append(tp)
                    self._history.batch_acknowledged(tp, batches[tp])
                elif code in LOST_IDENTITY:
                    raise IdentityLost
                elif not is_retriable(code):
                    self._history.break_promise(
                        f"{self.name} was refused a batch of {topic.name}-{partition.index}: {error_name(code)}"
                    )
                    raise IdentityLost
        return acknowledged


def _worst_of_partitions(answer: Any) -> int:
    codes = [
        partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    return next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE)
