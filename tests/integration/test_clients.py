"""Unmodified clients against three brokers: metadata, produce with every acks and compression, read back by assigned partitions.

Each client must get back what it sent: same partition, offset, key, value, headers and timestamp.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.invariants import eventually, metadata_of
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 3
RECORDS_PER_PARTITION = 20
FIRST_TIMESTAMP_MS = 1_357_000_000_123
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Sent(NamedTuple):
    """A record as the client wrote it, with the offset that it must have."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def records() -> Iterator[Sent]:
    """Records that cover empty, missing and large keys and values, binary data and doubled header names."""
    for number in range(RECORDS_PER_PARTITION):
        for partition in range(PARTITIONS):
            value: bytes | None = b"value %d " % number + bytes(range(256)) * (number * 3)
            key: bytes | None = b"key-%d" % number
            if number == 3:
                key = None
            elif number == 4:
                value = b""
            headers = (("trace", b"%d" % number), ("trace", b"\x00\xff"), ("empty", b"")) if number % 2 else ()
            yield Sent(partition, number, key, value, headers, FIRST_TIMESTAMP_MS + 1000 * number + partition)


EXPECTED = sorted(records())


def new_topic(cluster: LocalCluster) -> str:
    name = f"clients-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"})]).values():
        future.result(30)
    # The controller answers when it knows the topic itself: the others may hear of it a moment later, as with Kafka.
    for broker in cluster.broker_ids:
        eventually(
            lambda asked=broker: len(metadata_of(cluster, name, asked)[2]) == PARTITIONS, f"{broker} knows {name}"
        )
    return name


ACKS_AND_COMPRESSION = [("all", c) for c in COMPRESSIONS] + [("1", "none"), ("0", "none"), ("1", "zstd"), ("0", "lz4")]
IDEMPOTENT = "idempotent"
"""acks=all with `enable.idempotence`, which is the default of kafka-python and of the Java producer (LOG-5)."""
ACKS_AND_COMPRESSION += [(IDEMPOTENT, "none"), (IDEMPOTENT, "zstd")]


def acks_of(acks: str) -> str | int:
    return "all" if acks in ("all", IDEMPOTENT) else int(acks)


@pytest.mark.parametrize(("acks", "compression"), ACKS_AND_COMPRESSION)
def test_confluent_kafka(shared_cluster: LocalCluster, acks: str, compression: str) -> None:
    topic = new_topic(shared_cluster)
    metadata = AdminClient({"bootstrap.servers": shared_cluster.bootstrap_servers}).list_topics(topic, timeout=10)
    assert sorted(metadata.brokers) == sorted(shared_cluster.broker_ids)
    assert sorted(metadata.topics[topic].partitions) == list(range(PARTITIONS))

    producer = Producer(
        {
            "bootstrap.servers": shared_cluster.bootstrap_servers,
            "acks": acks_of(acks),
            "enable.idempotence": acks == IDEMPOTENT,
            "compression.type": compression,
            "linger.ms": 5,
        }
    )
    errors: list[object] = []
    for r in records():
        producer.produce(
            topic,
            r.value,
            r.key,
            r.partition,
            timestamp=r.timestamp_ms,
            headers=list(r.headers),
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert errors == []
    assert read_with_confluent(shared_cluster, topic) == EXPECTED


def read_with_confluent(cluster: LocalCluster, topic: str) -> list[Sent]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        found: list[Sent] = []
        while len(found) < len(EXPECTED):
            batch = consumer.consume(len(EXPECTED) - len(found), timeout=20)
            assert batch, f"only {len(found)} of {len(EXPECTED)} records came"
            for m in batch:
                assert m.error() is None, m.error()
                found.append(
                    Sent(m.partition(), m.offset(), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1])
                )
        return sorted(found)
    finally:
        consumer.close()


@pytest.mark.parametrize(("acks", "compression"), ACKS_AND_COMPRESSION)
def test_kafka_python(shared_cluster: LocalCluster, acks: str, compression: str) -> None:
    topic = new_topic(shared_cluster)
    servers = shared_cluster.bootstrap_servers.split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    assert topic in admin.list_topics()
    admin.close()
    producer = KafkaProducer(
        bootstrap_servers=servers,
        acks=acks_of(acks),
        compression_type=None if compression == "none" else compression,
        enable_idempotence=acks == IDEMPOTENT,
        linger_ms=5,
    )
    futures = [
        producer.send(topic, r.value, r.key, list(r.headers), r.partition, timestamp_ms=r.timestamp_ms)
        for r in records()
    ]
    producer.flush(30)
    for future in futures:
        future.get(30)
    producer.close()

    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20000,
    )
    consumer.assign([PythonTopicPartition(topic, p) for p in range(PARTITIONS)])
    found = []
    for m in consumer:
        found.append(Sent(m.partition, m.offset, m.key, m.value, tuple(tuple(h) for h in m.headers), m.timestamp))
        if len(found) == len(EXPECTED):
            break
    consumer.close()
    assert sorted(found) == EXPECTED


@pytest.mark.parametrize(("acks", "compression"), ACKS_AND_COMPRESSION)
def test_aiokafka(shared_cluster: LocalCluster, acks: str, compression: str) -> None:
    topic = new_topic(shared_cluster)

    async def produce_and_read() -> list[Sent]:
        async with AIOKafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap_servers,
            acks=acks_of(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=acks == IDEMPOTENT,
            linger_ms=5,
        ) as producer:
            assert await producer.partitions_for(topic) == set(range(PARTITIONS))
            deliveries = [
                await producer.send(
                    topic, r.value, r.key, r.partition, timestamp_ms=r.timestamp_ms, headers=list(r.headers)
                )
                for r in records()
            ]
            await producer.flush()
            await asyncio.gather(*deliveries)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=shared_cluster.bootstrap_servers,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            consumer.assign([AioTopicPartition(topic, p) for p in range(PARTITIONS)])
            found = []
            async with asyncio.timeout(30):
                while len(found) < len(EXPECTED):
                    m = await consumer.getone()
                    found.append(Sent(m.partition, m.offset, m.key, m.value, tuple(m.headers), m.timestamp))
            return sorted(found)
        finally:
            await consumer.stop()

    assert asyncio.run(produce_and_read()) == EXPECTED


needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (apt-get install kcat)")


def kcat(*arguments: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["kcat", *arguments], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@needs_kcat
@pytest.mark.parametrize(("acks", "compression"), ACKS_AND_COMPRESSION)
def test_kcat(shared_cluster: LocalCluster, acks: str, compression: str) -> None:
    topic = new_topic(shared_cluster)
    servers = shared_cluster.bootstrap_servers
    listing = json.loads(kcat("-b", servers, "-L", "-J", "-t", topic))
    assert sorted(b["id"] for b in listing["brokers"]) == sorted(shared_cluster.broker_ids)
    assert len(listing["topics"][0]["partitions"]) == PARTITIONS

    for partition in range(PARTITIONS):
        lines = "".join(f"k{n}:v{n} of {partition}\n" for n in range(RECORDS_PER_PARTITION))
        # fmt: off
        kcat("-b", servers, "-P", "-t", topic, "-p", str(partition), "-K:", "-z", compression, "-H", "origin=EWR",
             "-X", f"acks={acks_of(acks)}", "-X", f"enable.idempotence={str(acks == IDEMPOTENT).lower()}",
             stdin=lines.encode())
        # fmt: on
    for partition in range(PARTITIONS):
        printed = kcat(
            "-b", servers, "-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\n"
        )
        assert printed.splitlines() == [
            f"{n} k{n} v{n} of {partition} origin=EWR" for n in range(RECORDS_PER_PARTITION)
        ]


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_producers_that_are_idempotent_by_choice_or_default_are_known_to_the_leader(
    shared_cluster: LocalCluster, client: str
) -> None:
    """LOG-5, KIP-664: the batches carried an id and sequences, and DescribeProducers tells of them."""
    topic = new_topic(shared_cluster)
    servers = shared_cluster.bootstrap_servers
    match client:
        case "confluent-kafka":
            librdkafka = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
            for _ in range(7):
                librdkafka.produce(topic, b"v", partition=1)
            assert librdkafka.flush(30) == 0
        case "kafka-python":
            python = KafkaProducer(bootstrap_servers=servers.split(","))
            for _ in range(7):
                python.send(topic, b"v", partition=1)
            python.flush(30)
            python.close()
        case _:

            async def produce() -> None:
                async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
                    await asyncio.gather(*[await producer.send(topic, b"v", partition=1) for _ in range(7)])

            asyncio.run(produce())
    metadata = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=10)
    body = {"topics": [{"name": topic, "partition_indexes": (0, 1, 2)}]}
    known = {}
    for broker in shared_cluster.broker_ids:
        with Wire(shared_cluster.port(broker)) as wire:
            answer = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0]
        for partition in answer.partitions:
            leads = metadata.topics[topic].partitions[partition.partition_index].leader == broker
            assert partition.error_code == (ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leads:
                known[partition.partition_index] = [
                    (p.producer_epoch, p.last_sequence) for p in partition.active_producers
                ]
    assert known == {0: [], 1: [(0, 6)], 2: []}
