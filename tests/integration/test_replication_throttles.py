"""Replication throttles that really throttle (KIP-73, CTL-11): bytes are counted, never milliseconds.

A replica that comes back copies what it missed; the test watches its segment grow. At no moment does it have more than
rate x time and one burst, while another topic's producers on the same brokers, acks=all, do not notice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType

from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.thorough import thorough
from tests.support.topics import new_topic, set_configs
from tools.cluster.local_cluster import LocalCluster
from tools.judge.reports import ACKED

pytestmark = pytest.mark.integration

LEADER, FOLLOWER = 1, 2
RATE = 2_000_000
MISSED = 8_000_000
BURST = 3 * RATE
"""What may be copied beyond rate x time: a second's worth, an answer's, and what the disk shows late."""
STALL_S = 30.0
"""For so long a copy may stand still before the test gives up."""


class Sample(NamedTuple):
    at: float
    size: int


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides={"auto.leader.rebalance.enable": "false"})


def led(cluster: LocalCluster) -> str:
    """A topic of one partition, led by LEADER and copied by FOLLOWER."""
    return new_topic(cluster.bootstrap_servers, assignment=[[LEADER, FOLLOWER]])


def throttle(cluster: LocalCluster, topic: str, sides: Sequence[str], replicas: str, rate: int) -> None:
    servers = cluster.bootstrap_servers
    lists = {f"{side}.replication.throttled.replicas": replicas for side in sides}
    set_configs(servers, ResourceType.TOPIC, topic, lists)
    for broker in (LEADER, FOLLOWER):
        rates = {f"{side}.replication.throttled.rate": str(rate) for side in sides}
        set_configs(servers, ResourceType.BROKER, str(broker), rates)


def unthrottle(cluster: LocalCluster, sides: Sequence[str]) -> None:
    for broker in (LEADER, FOLLOWER):
        rates = dict.fromkeys(f"{side}.replication.throttled.rate" for side in sides)
        set_configs(cluster.bootstrap_servers, ResourceType.BROKER, str(broker), rates)


def fill(cluster: LocalCluster, topic: str) -> None:
    """MISSED bytes that no compression makes smaller, acks=1."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1, "batch.size": 100_000})
    for number in range(MISSED // 10_000):
        producer.produce(topic, number.to_bytes(8, "big") + b"x" * 9_992)
        producer.poll(0)
    assert producer.flush(60) == 0


def copied(cluster: LocalCluster, topic: str) -> int:
    """Bytes of the topic's log at the follower."""
    segments = (cluster.broker_directory(FOLLOWER) / "data" / f"{topic}-0").glob("*.log")
    return sum(segment.stat().st_size for segment in segments)


def watch_copying(cluster: LocalCluster, topic: str, until: int) -> list[Sample]:
    """The size of the follower's log every 50 ms, from the last moment at which it was empty until it has `until` bytes."""
    samples = [Sample(time.monotonic(), copied(cluster, topic))]
    while samples[-1].size < until:
        time.sleep(0.05)
        now = Sample(time.monotonic(), copied(cluster, topic))
        samples = [*samples, now] if now.size else [now]
        assert now.at - next(s.at for s in samples if s.size == now.size) < STALL_S, f"stands still at {now.size}"
    return samples


@pytest.mark.parametrize(
    "sides",
    [thorough(["leader"]), thorough(["follower"]), ["leader", "follower"]],
    ids="-".join,
)
def test_a_replica_catches_up_at_the_rate_and_delays_no_other(
    cluster: LocalCluster, zk: ZooKeeperView, sides: list[str]
) -> None:
    throttled, free = led(cluster), led(cluster)
    assert_healed(cluster, zk, throttled)
    throttle(cluster, throttled, sides, f"0:{LEADER},0:{FOLLOWER}", RATE)
    cluster.stop_broker(FOLLOWER)
    eventually(lambda: zk.state(throttled, 0).isr == (LEADER,), "the follower out of the ISR")
    fill(cluster, throttled)

    with BackgroundProducer(cluster.bootstrap_servers, free, 1) as producer:
        producer.wait_for_acks(50)
        cluster.start_broker(FOLLOWER)
        samples = watch_copying(cluster, throttled, MISSED)
        began = samples[0].at
        acks = [report.at for report in producer.reports if report.event == ACKED]
        while_copying = sum(began <= at <= samples[-1].at for at in acks)
        producer.wait_for_acks(50)

    for at, size in samples:
        assert size <= RATE * (at - began) + BURST
    assert while_copying > 50, "the other topic's producer was held up"
    eventually(lambda: set(zk.state(throttled, 0).isr) == {LEADER, FOLLOWER}, "the follower in sync again")
    assert_healed(cluster, zk, throttled)
    assert_all_read_back(producer)
    unthrottle(cluster, sides)


def test_a_replica_in_sync_is_never_throttled(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """acks=all goes on though the rate is nothing and every replica is on the list."""
    topic, sides = led(cluster), ["leader", "follower"]
    assert_healed(cluster, zk, topic)
    throttle(cluster, topic, sides, "*", 0)
    with BackgroundProducer(cluster.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(300)
    assert producer.failed == []
    assert set(zk.state(topic, 0).isr) == {LEADER, FOLLOWER}
    unthrottle(cluster, sides)
