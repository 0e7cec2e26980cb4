"""Old records go from a running cluster, the last segment's too (LOG-1, INV-22)."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import watermarks
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

TOPIC = "short"
RECORDS = 50


def produce(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def first_and_end(cluster: LocalCluster) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "unused"})
    try:
        return watermarks(consumer, TopicPartition(TOPIC, 0))
    finally:
        consumer.close()


def test_all_goes_and_the_offsets_go_on(new_cluster: ClusterFactory) -> None:
    """On each replica for itself; the next leader goes on where the last one ended."""
    cluster = new_cluster(brokers=3, overrides={"log.retention.check.interval.ms": "1000"})
    zk = ZooKeeperView(cluster.zookeeper_connect)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 3, config={"retention.ms": "1000"})])[TOPIC].result(30)
    try:
        for count in (1, 2):
            produce(cluster)
            end = count * RECORDS
            eventually(lambda end=end: first_and_end(cluster) == (end, end), f"the leader has nothing below {end}")
            leader = zk.state(TOPIC, 0).leader
            cluster.kill(leader)
            eventually(lambda gone=leader: zk.state(TOPIC, 0).leader not in (-1, gone), "the next leader")
            cluster.start_broker(leader)
            cluster.wait_ready()
            assert_healed(cluster, zk, TOPIC)
    finally:
        zk.close()
