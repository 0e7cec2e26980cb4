"""The independent clients: they write what the client under test reads, and read what it writes, in the process of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LIMIT_S = 60
SHORT = {"socket.timeout.ms": 5_000}
"""Of librdkafka: how long it waits for an answer of a broker that may be paused, before it looks for another leader."""


class Record(NamedTuple):
    """As it is in the log."""

    partition: int
    offset: int
    key: str | None
    value: str
    timestamp_ms: int


class Outgoing(NamedTuple):
    """What is to be written."""

    value: str
    partition: int = 0
    key: str | None = None
    timestamp_ms: int | None = None


class Peer(Protocol):
    """Writes with acks=all, each record once and in order. Reads everything that is in the partitions now."""

    def write(self, bootstrap: str, topic: str, records: Sequence[Outgoing], aborted: bool | None = None) -> None:
        """Unless `aborted` is None, in one transaction, which is aborted or committed."""

    def read(self, bootstrap: str, topic: str, partitions: int, isolation: str = COMMITTED) -> list[Record]: ...


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def text_of(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


class ConfluentPeer:
    """confluent-kafka, which is librdkafka."""

    def write(self, bootstrap: str, topic: str, records: Sequence[Outgoing], aborted: bool | None = None) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, **SHORT, "log_level": 2}
        producer = Producer(settings if aborted is None else {**settings, "transactional.id": f"peer-{topic}"})
        if aborted is not None:
            producer.init_transactions(LIMIT_S)
            producer.begin_transaction()
        errors: list[KafkaError] = []
        for record in records:
            producer.produce(
                topic,
                record.value.encode(),
                bytes_of(record.key),
                record.partition,
                timestamp=record.timestamp_ms or 0,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(LIMIT_S) == 0
        assert errors == []
        if aborted is not None:
            (producer.abort_transaction if aborted else producer.commit_transaction)(LIMIT_S)

    def read(self, bootstrap: str, topic: str, partitions: int, isolation: str = COMMITTED) -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "log_level": 2,
            }
        )
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        found = []
        unread = set(range(partitions))
        while unread:
            message = consumer.poll(LIMIT_S)
            assert message is not None, f"partitions {unread} of {topic} cannot be read"
            error = message.error()
            if error is None:
                key, value = text_of(message.key()), message.value().decode()
                found.append(Record(message.partition(), message.offset(), key, value, message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise KafkaException(error)
        consumer.close()
        return found


class AiokafkaPeer:
    """aiokafka, a client in Python with a protocol of its own."""

    def write(self, bootstrap: str, topic: str, records: Sequence[Outgoing], aborted: bool | None = None) -> None:
        asyncio.run(self._write(bootstrap, topic, records, aborted))

    def read(self, bootstrap: str, topic: str, partitions: int, isolation: str = COMMITTED) -> list[Record]:
        return asyncio.run(self._read(bootstrap, topic, partitions, isolation))

    async def _write(self, bootstrap: str, topic: str, records: Sequence[Outgoing], aborted: bool | None) -> None:
        settings = {"enable_idempotence": True} if aborted is None else {"transactional_id": f"peer-{topic}"}
        async with asyncio.timeout(LIMIT_S), AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
            if aborted is not None:
                await producer.begin_transaction()
            deliveries = [
                await producer.send(topic, r.value.encode(), bytes_of(r.key), r.partition, timestamp_ms=r.timestamp_ms)
                for r in records
            ]
            await asyncio.gather(*deliveries)
            if aborted is not None:
                await (producer.abort_transaction() if aborted else producer.commit_transaction())

    async def _read(self, bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Record]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation,
        )
        places = [AioTopicPartition(topic, partition) for partition in range(partitions)]
        found = []
        async with asyncio.timeout(LIMIT_S), consumer:
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            while any([await consumer.position(place) < ends[place] for place in places]):
                for messages in (await consumer.getmany(*places, timeout_ms=100)).values():
                    found += [
                        Record(m.partition, m.offset, text_of(m.key), m.value.decode(), m.timestamp) for m in messages
                    ]
        return found
