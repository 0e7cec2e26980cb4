"""Unmodified clients against three brokers: metadata, an idempotent producer with compression, read back by assigned partitions.

Each client must get back what it sent: same partition, offset, key, value, headers and timestamp. This is the quick look at the
clients; tests/clients tests every client with every feature.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.errors import UnsupportedVersionError

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import iter_batches
from tests.support.background_load import read_everything
from tests.support.invariants import eventually, replica_directory, wait_known_everywhere
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 3
COMPRESSIBLE = 100 * "x"
RECORDS_PER_PARTITION = 20
FIRST_TIMESTAMP_MS = 1000 * (int(time.time()) - 24 * 3600) + 123
"""Of yesterday: retention would delete much older records in the middle of a slow run."""


class Sent(NamedTuple):
    """A record as the client wrote it, with the offset that it must have."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def all_records() -> Iterator[Sent]:
    """Records that cover empty, missing and large keys and values, binary data and doubled header names."""
    for number in range(RECORDS_PER_PARTITION):
        for partition in range(PARTITIONS):
            value = b"" if number == 4 else b"value %d " % number + bytes(range(256)) * (number * 3)
            key = None if number == 3 else b"key-%d" % number
            headers = (("trace", b"%d" % number), ("trace", b"\x00\xff"), ("empty", b"")) if number % 2 else ()
            yield Sent(partition, number, key, value, headers, FIRST_TIMESTAMP_MS + 1000 * number + partition)


RECORDS = list(all_records())


class Way(NamedTuple):
    """To whom and how a client writes: idempotently (LOG-5), which is the default of kafka-python and of the Java producer."""

    servers: str
    topic: str
    compression: str


class Confluent:
    def write(self, way: Way) -> None:
        metadata = AdminClient({"bootstrap.servers": way.servers}).list_topics(way.topic, timeout=10)
        assert sorted(metadata.brokers) == [1, 2, 3]
        assert sorted(metadata.topics[way.topic].partitions) == list(range(PARTITIONS))
        producer = Producer(
            {
                "bootstrap.servers": way.servers,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": way.compression,
                "linger.ms": 5,
            }
        )
        errors: list[object] = []
        for r in RECORDS:
            producer.produce(
                way.topic,
                r.value,
                r.key,
                r.partition,
                timestamp=r.timestamp_ms,
                headers=list(r.headers),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(30) == 0
        assert errors == []

    def read(self, servers: str, topic: str) -> list[Sent]:
        def records_if_all_are_readable() -> list[Any]:
            found = read_everything(servers, topic, PARTITIONS)
            return found if len(found) >= len(RECORDS) else []

        return [
            Sent(m.partition(), m.offset(), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1])
            for m in eventually(records_if_all_are_readable, "all records")
        ]


class KafkaPython:
    def write(self, way: Way) -> None:
        admin = KafkaAdminClient(bootstrap_servers=way.servers.split(","))
        assert way.topic in admin.list_topics()
        admin.close()
        producer = KafkaProducer(
            bootstrap_servers=way.servers.split(","),
            acks="all",
            compression_type=way.compression,
            enable_idempotence=True,
            linger_ms=5,
        )
        futures = [
            producer.send(way.topic, r.value, r.key, list(r.headers), r.partition, timestamp_ms=r.timestamp_ms)
            for r in RECORDS
        ]
        producer.flush(30)
        for future in futures:
            future.get(30)
        producer.close()

    def read(self, servers: str, topic: str) -> list[Sent]:
        consumer = KafkaConsumer(
            bootstrap_servers=servers.split(","),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            consumer_timeout_ms=20000,
        )
        consumer.assign([PythonTopicPartition(topic, p) for p in range(PARTITIONS)])
        found = [next(consumer) for _ in RECORDS]
        consumer.close()
        return [
            Sent(m.partition, m.offset, m.key, m.value, tuple(tuple(h) for h in m.headers), m.timestamp) for m in found
        ]


class Aiokafka:
    def write(self, way: Way) -> None:
        asyncio.run(self._write(way))

    def read(self, servers: str, topic: str) -> list[Sent]:
        return asyncio.run(self._read(servers, topic))

    async def _write(self, way: Way) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=way.servers,
            acks="all",
            compression_type=way.compression,
            enable_idempotence=True,
            linger_ms=5,
        ) as producer:
            assert await producer.partitions_for(way.topic) == set(range(PARTITIONS))
            deliveries = [
                await producer.send(
                    way.topic, r.value, r.key, r.partition, timestamp_ms=r.timestamp_ms, headers=list(r.headers)
                )
                for r in RECORDS
            ]
            await producer.flush()
            await asyncio.gather(*deliveries)

    async def _read(self, servers: str, topic: str) -> list[Sent]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        async with asyncio.timeout(60), consumer:
            consumer.assign([AioTopicPartition(topic, p) for p in range(PARTITIONS)])
            found = [await consumer.getone() for _ in RECORDS]
        return [Sent(m.partition, m.offset, m.key, m.value, tuple(m.headers), m.timestamp) for m in found]


def new_topic_known_everywhere(cluster: LocalCluster) -> str:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    wait_known_everywhere(cluster, topic, PARTITIONS)
    return topic


@pytest.mark.parametrize(
    ("client", "compression"),
    [(Confluent(), "lz4"), (KafkaPython(), "gzip"), (Aiokafka(), "zstd")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_records_come_back(
    shared_cluster: LocalCluster, client: Confluent | KafkaPython | Aiokafka, compression: str
) -> None:
    way = Way(shared_cluster.bootstrap_servers, new_topic_known_everywhere(shared_cluster), compression)
    client.write(way)
    assert sorted(client.read(way.servers, way.topic)) == sorted(RECORDS)
    assert last_sequences_of_producers(shared_cluster, way.topic) == [RECORDS_PER_PARTITION - 1] * PARTITIONS


def last_sequences_of_producers(cluster: LocalCluster, topic: str) -> Sequence[int]:
    """LOG-5, KIP-664: the last sequences of all partitions' producers, as their leaders tell."""
    found = []
    for number, partition in (
        AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        .list_topics(topic)
        .topics[topic]
        .partitions.items()
    ):
        with Wire(cluster.port(partition.leader)) as wire:
            body = {"topics": [{"name": topic, "partition_indexes": [number]}]}
            (answer,) = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
        (described,) = answer.partitions
        assert described.error_code == ErrorCode.NONE
        assert all(producer.producer_epoch == 0 for producer in described.active_producers)
        found += [producer.last_sequence for producer in described.active_producers]
    return found


@pytest.mark.parametrize("api_version", [(0, 10, 0), (0, 8, 2)])
def test_a_client_that_does_not_ask_for_versions_learns_why_it_reads_nothing(
    shared_cluster: LocalCluster, api_version: tuple[int, int, int]
) -> None:
    """It sends ListOffsets v0, which is served, and a Fetch that cannot carry the records: an error, and no end of the stream."""
    way = Way(shared_cluster.bootstrap_servers, new_topic_known_everywhere(shared_cluster), "gzip")
    Confluent().write(way)
    partition = PythonTopicPartition(way.topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=way.servers.split(","), api_version=api_version)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert consumer.end_offsets([partition]) == {partition: RECORDS_PER_PARTITION}
        with pytest.raises(UnsupportedVersionError):
            consumer.poll(timeout_ms=30_000)
    finally:
        consumer.close()


def kcat(*arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")
def test_kcat(shared_cluster: LocalCluster) -> None:
    """kcat compresses only if the broker says that it can: codec 2 is snappy, in every batch."""
    topic = new_topic_known_everywhere(shared_cluster)
    here = ["-b", shared_cluster.bootstrap_servers, "-t", topic]
    listing = json.loads(kcat(*here, "-L", "-J"))
    assert sorted(b["id"] for b in listing["brokers"]) == sorted(shared_cluster.broker_ids)
    assert len(listing["topics"][0]["partitions"]) == PARTITIONS
    for partition in range(PARTITIONS):
        values = [f"v{n} of {partition} {COMPRESSIBLE}" for n in range(RECORDS_PER_PARTITION)]
        lines = "".join(f"k{n}:{value}\n" for n, value in enumerate(values))
        place = ["-p", str(partition)]
        options = ["-X", "acks=all", "-X", "enable.idempotence=true"]
        kcat(*here, *place, "-P", "-K:", "-z", "snappy", "-H", "origin=EWR", *options, stdin=lines.encode())
        printed = kcat(*here, *place, "-C", "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\n")
        assert printed.splitlines() == [f"{n} k{n} {value} origin=EWR" for n, value in enumerate(values)]
        directory = replica_directory(shared_cluster, shared_cluster.broker_ids[0], topic, partition)
        (segment,) = directory.glob("*.log")
        assert {batch.attributes & 7 for _, batch in iter_batches(memoryview(segment.read_bytes()))} == {2}
