"""An unmodified aiokafka on the loop of the world: producers, idempotent or transactional, members of its own group, and a reader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import CommitFailedError, KafkaError
from aiokafka.structs import TopicPartition as AiokafkaPartition

from protocol.types import Address, TopicPartition
from tools.sim.clients.history import (
    ABORTED_TRANSACTION,
    COMMITTED_TRANSACTION,
    UNKNOWN_TRANSACTION,
    History,
    Transaction,
)
from tools.sim.policies import key_of, text_of

GROUP = "aiokafka"
PAUSE_S = 1.0
COMMITTED_SHARE = 0.7
POLL_MS = 500
FAILURES = (KafkaError, OSError)


class _Clients:
    """Clients of aiokafka, one after the other: one that has failed is replaced. Runs until `stop`."""

    def __init__(self, name: str, bootstrap: Sequence[Address], random: Random, history: History) -> None:
        self.name = name
        self._settings: dict[str, Any] = {
            "bootstrap_servers": [f"{host}:{port}" for host, port in bootstrap],
            "client_id": name,
            "request_timeout_ms": 10_000,
            "retry_backoff_ms": 100,
            # When it is told while it looks for the first offset that a broker leads no longer, it asks the same broker until then.
            "metadata_max_age_ms": 30_000,
        }
        self._random = random
        self._history = history
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self) -> None:
        while not self._is_stopping:
            client = self._new_client()
            try:
                await client.start()
                self._begin(client)
                while not self._is_stopping:
                    await self._turn(client)
            except FAILURES:
                await asyncio.sleep(PAUSE_S)
            finally:
                with contextlib.suppress(*FAILURES):
                    await client.stop()

    def _new_client(self) -> Any:
        raise NotImplementedError

    def _begin(self, client: Any) -> None:
        """What a client does once, when it is connected."""

    async def _turn(self, client: Any) -> None:
        raise NotImplementedError


class AiokafkaProducer(_Clients):
    """A client that takes the place of another one reports under another name: what became of the last records is not known."""

    is_reader = False

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
        *,
        is_transactional: bool = False,
    ) -> None:
        super().__init__(name, bootstrap, random, history)
        if is_transactional:
            self._settings |= {"transactional_id": name, "transaction_timeout_ms": 20_000}
        else:
            self._settings |= {"enable_idempotence": True}
        self._is_transactional = is_transactional
        self._partitions = list(partitions)
        self._count = 0
        self._clients = 0

    def _new_client(self) -> AIOKafkaProducer:
        self._clients += 1
        return AIOKafkaProducer(**self._settings)

    async def _turn(self, client: AIOKafkaProducer) -> None:
        await (self._transaction(client) if self._is_transactional else self._send(client))
        await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))

    def _new_record(self) -> tuple[TopicPartition, str]:
        tp = self._random.choice(self._partitions)
        self._count += 1
        return tp, f"{self.name}.{self._clients}-{tp.topic}-{tp.partition}-{self._count}"

    async def _sent(self, producer: AIOKafkaProducer, tp: TopicPartition, record: str) -> asyncio.Future[Any]:
        value = f"{record} ".encode() + bytes(self._random.randrange(200))
        # Its compiled code would take the machine's time.
        timestamp = int(time.time() * 1000)
        answer: asyncio.Future[Any] = await producer.send(
            tp.topic, value, key_of(record), partition=tp.partition, timestamp_ms=timestamp
        )
        return answer

    async def _send(self, producer: AIOKafkaProducer) -> None:
        reported = f"{self.name}.{self._clients}"
        sent = []
        for _ in range(self._random.randint(1, 5)):
            tp, record = self._new_record()
            self._history.produced(reported, tp, record)
            sent.append((tp, record, await self._sent(producer, tp, record)))
        for tp, record, answer in sent:
            found = await answer
            # An offset of -1: the broker had the batch already.
            self._history.acked(reported, tp, record, found.offset if found.offset >= 0 else None)

    async def _transaction(self, producer: AIOKafkaProducer) -> None:
        transaction = Transaction(f"{self.name}.{self._clients}-{len(self._history.transactions)}")
        self._history.transactions.append(transaction)
        await producer.begin_transaction()
        answers = []
        for _ in range(self._random.randint(1, 5)):
            tp, record = self._new_record()
            transaction.ids.setdefault(tp, []).append(record)
            answers.append(await self._sent(producer, tp, record))
        await asyncio.gather(*answers)
        if self._random.random() < COMMITTED_SHARE:
            transaction.outcome = UNKNOWN_TRANSACTION
            await producer.commit_transaction()
            self._history.transaction_ended(transaction, COMMITTED_TRANSACTION)
        else:
            await producer.abort_transaction()
            self._history.transaction_ended(transaction, ABORTED_TRANSACTION)


class AiokafkaReader(_Clients):
    """Reads as a member of a group, which commits what it has read, or all committed records of given partitions."""

    is_reader = True

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
        *,
        is_member: bool = False,
    ) -> None:
        super().__init__(name, bootstrap, random, history)
        self.is_member = is_member
        self._settings |= {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        if is_member:
            self._settings |= {"group_id": GROUP, "session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}
        else:
            self._settings |= {"isolation_level": "read_committed"}
        self._partitions = [AiokafkaPartition(*tp) for tp in partitions]
        self.positions = dict.fromkeys(partitions, 0)
        """Behind the last record that it has read."""

    def _new_client(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(**self._settings)

    def _begin(self, client: AIOKafkaConsumer) -> None:
        if self.is_member:
            client.subscribe(sorted({place.topic for place in self._partitions}))
            return
        client.assign(self._partitions)
        for place in self._partitions:
            client.seek(place, self.positions[TopicPartition(*place)])

    async def _turn(self, client: AIOKafkaConsumer) -> None:
        read = await client.getmany(timeout_ms=POLL_MS)
        for place, records in read.items():
            tp = TopicPartition(*place)
            for found in records:
                if found.offset < self.positions[tp] and not self.is_member:
                    continue  # it knows no leader epochs, and begins anew if a replaced leader does not have its position
                text = text_of(found.value, found.headers)
                self._history.read(self.name, GROUP if self.is_member else None, tp, found.offset, text)
            end = records[-1].offset + 1
            self.positions[tp] = end if self.is_member else max(end, self.positions[tp])
        if read and self.is_member and self._random.random() < 0.5:
            ends = {place: records[-1].offset + 1 for place, records in read.items()}
            try:
                await client.commit(ends)
            except CommitFailedError:  # the group has a new generation
                return
            for place, end in ends.items():
                self._history.committed(GROUP, TopicPartition(*place), end)
