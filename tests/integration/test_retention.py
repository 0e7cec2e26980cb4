"""A running cluster deletes old records, also those of the last segment (LOG-1, INV-22)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster
from tools.faults.reporting_clients import watermarks

pytestmark = pytest.mark.integration

RECORDS = 50


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    return new_cluster(brokers=3, overrides={"log.retention.check.interval.ms": "1000"})


def test_all_records_are_deleted_and_offsets_continue(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """Each replica deletes them itself. The next leader continues at the LEO of the last one."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    topic = new_topic(cluster.bootstrap_servers, replicas=3, retention_ms="1000")
    consumer = Consumer(servers | {"group.id": "unused"})
    for end in (RECORDS, 2 * RECORDS):
        producer = Producer(servers | {"enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(30) == 0

        def first_and_end() -> tuple[int, int]:
            return watermarks(consumer, TopicPartition(topic, 0))

        eventually(lambda end=end: first_and_end() == (end, end), f"the leader has nothing below {end}")
        leader = zk.state(topic, 0).leader
        cluster.kill(leader)
        eventually(lambda old=leader: zk.state(topic, 0).leader not in (-1, old), "the next leader")
        cluster.start_broker(leader)
        cluster.wait_ready()
        assert_healed(cluster, zk, topic)
    consumer.close()
