"""librdkafka against three brokers: metadata, an idempotent producer with compression, read back by assigned partitions.

It must get back what it sent: same partition, offset, key, value, headers and timestamp. tests/clients tests every client with every
feature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import UnsupportedVersionError

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.background_load import read_everything
from tests.support.invariants import eventually, wait_known_everywhere
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 3
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


def write(servers: str, topic: str, compression: str) -> None:
    """Idempotently (LOG-5)."""
    metadata = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=10)
    assert sorted(metadata.topics[topic].partitions) == list(range(PARTITIONS))
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 5,
        }
    )
    errors: list[object] = []
    for r in RECORDS:
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


def read(servers: str, topic: str) -> list[Sent]:
    def records_if_all_are_readable() -> list[Any]:
        found = read_everything(servers, topic, PARTITIONS)
        return found if len(found) >= len(RECORDS) else []

    return [
        Sent(m.partition(), m.offset(), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1])
        for m in eventually(records_if_all_are_readable, "all records")
    ]


def new_topic_known_everywhere(cluster: LocalCluster) -> str:
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    wait_known_everywhere(cluster, topic, PARTITIONS)
    return topic


def test_records_come_back(shared_cluster: LocalCluster) -> None:
    servers, topic = shared_cluster.bootstrap_servers, new_topic_known_everywhere(shared_cluster)
    write(servers, topic, "lz4")
    assert sorted(read(servers, topic)) == sorted(RECORDS)
    assert last_sequences_of_producers(shared_cluster, topic) == [RECORDS_PER_PARTITION - 1] * PARTITIONS


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
    broker_at_level_3_9: LocalCluster, api_version: tuple[int, int, int]
) -> None:
    """It sends ListOffsets v0, which is served, and a Fetch that cannot carry the records: an error, and no end of the stream."""
    servers = broker_at_level_3_9.bootstrap_servers
    topic = new_topic(servers, PARTITIONS)
    write(servers, topic, "gzip")
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=servers.split(","), api_version=api_version)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert consumer.end_offsets([partition]) == {partition: RECORDS_PER_PARTITION}
        with pytest.raises(UnsupportedVersionError):
            consumer.poll(timeout_ms=30_000)
    finally:
        consumer.close()
