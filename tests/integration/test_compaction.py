"""A compacted topic under load, with brokers killed in the middle of cleanings (LOG-4).

What Kafka's tools say of compacted segments: test_kafka_and_our_directories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from broker.storage.checkpoints import CLEANED, decode_offsets
from protocol.kafka.record_batch import decode_records, iter_batches
from protocol.types import TopicPartition
from tests.conftest import ClusterFactory
from tests.support.background_load import read_everything
from tests.support.invariants import ZooKeeperView, eventually, replica_directory
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

TOPIC = "compacted"
KEYS = 40
Table = dict[bytes, bytes]
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "200",
    "min.insync.replicas": "2",
}


class KeyedWriter:
    """An idempotent producer that writes numbers to a few keys and deletes some of them again."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.table: Table = {}
        self.written = 0
        self.failed: list[str] = []
        self._random = Random(5)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 50,
                "compression.type": "zstd",
                "delivery.timeout.ms": 60000,
                "log_level": 2,
            }
        )

    def write(self, count: int) -> None:
        """Until all is acknowledged."""
        for _ in range(count):
            key = b"key-%d" % (self.written * 7 % KEYS)
            value = None if self.written % 11 == 0 else b"%d " % self.written + self._random.randbytes(60)
            self._producer.produce(TOPIC, key=key, value=value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value
            self.written += 1
        assert self._producer.flush(90) == 0
        assert self.failed == []

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))


def table_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> Table:
    """The last value of each key that has one."""
    return {key: value for key, value in dict(records).items() if key is not None and value is not None}


def stored(cluster: LocalCluster, broker: int) -> list[tuple[bytes | None, bytes | None]]:
    """The records in a stopped broker's files."""
    found = []
    for segment in sorted(replica_directory(cluster, broker, TOPIC, 0).glob("*.log")):
        data = segment.read_bytes()
        for position, _ in iter_batches(data):
            found += [(record.key, record.value) for record in decode_records(data, position)]
    return found


def is_clean_up_to(cluster: LocalCluster, offset: int) -> Callable[[], bool]:
    """Whether every broker has compacted the topic that far."""
    return lambda: all(cleaned(cluster, broker) >= offset for broker in cluster.broker_ids)


def cleaned(cluster: LocalCluster, broker: int) -> int:
    path = replica_directory(cluster, broker, TOPIC, 0).parent / CLEANED
    offsets = decode_offsets(path.read_bytes()) if path.exists() else {}
    return offsets.get(TopicPartition(TOPIC, 0), 0)


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    return new_cluster(brokers=3, overrides={"log.cleaner.backoff.ms": "100", "auto.leader.rebalance.enable": "false"})


def test_every_replica_keeps_the_last_value_of_each_key(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """Two brokers are killed while all of them compact and records come in; a third copies the compacted log from scratch."""
    create_topics(cluster.bootstrap_servers, NewTopic(TOPIC, 1, 3, config=TOPIC_SETTINGS))
    writer = KeyedWriter(cluster.bootstrap_servers)
    writer.write(3000)
    for victim in (zk.state(TOPIC, 0).leader, cluster.broker_ids[1]):
        cluster.kill(victim)
        writer.write(1500)
        cluster.start_broker(victim)
        cluster.wait_ready()
        eventually(lambda: len(zk.state(TOPIC, 0).isr) == 3, "full ISR")
        writer.write(1500)
    eventually(is_clean_up_to(cluster, writer.written * 3 // 4), "all replicas are compacted")
    found = read_everything(cluster.bootstrap_servers, TOPIC, 1)
    assert table_of((m.key(), m.value()) for m in found) == writer.table
    assert len(found) < writer.written // 2
    assert [m.offset() for m in found] == sorted({m.offset() for m in found})
    for broker in cluster.broker_ids:
        cluster.stop_broker(broker)
        assert table_of(stored(cluster, broker)) == writer.table
