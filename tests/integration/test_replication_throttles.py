"""Replication throttles that really throttle (KIP-73, CTL-11): bytes are counted, never milliseconds.

A replica that comes back copies what it missed; the test watches its segment grow. At no moment does it have more than
rate x time and one burst, while another topic's producers on the same brokers, acks=all, do not notice.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

LEADER, FOLLOWER = 1, 2
RATE = 2_000_000
MISSED = 8_000_000
BURST = 3 * RATE
"""What may be copied beyond rate x time: a second's worth, an answer's, and what the disk shows late."""
STALL_S = 8.0


class Sample(NamedTuple):
    at: float
    size: int


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=2, overrides={"auto.leader.rebalance.enable": "false"})


def made(admin: AdminClient, name: str) -> str:
    """A topic of one partition, led by LEADER and copied by FOLLOWER."""
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    new = NewTopic(topic, num_partitions=1, replica_assignment=[[LEADER, FOLLOWER]])
    admin.create_topics([new])[topic].result(30)
    return topic


def set_configs(admin: AdminClient, kind: ResourceType, name: str, values: dict[str, str | None]) -> None:
    """Sets, or with None resets."""
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in values.items()
    ]
    for future in admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        future.result(30)


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


@pytest.mark.parametrize("side", ["leader", "follower", "both"])
def test_a_replica_catches_up_at_the_rate_and_holds_up_nobody(
    cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    throttled, free = made(admin, f"throttled-{side}"), made(admin, "free")
    assert_healed(cluster, zk, throttled)
    sides = ["leader", "follower"] if side == "both" else [side]
    set_configs(
        admin,
        ResourceType.TOPIC,
        throttled,
        {f"{one}.replication.throttled.replicas": f"0:{LEADER},0:{FOLLOWER}" for one in sides},
    )
    rates = {f"{one}.replication.throttled.rate": str(RATE) for one in sides}
    for broker in (LEADER, FOLLOWER):
        set_configs(admin, ResourceType.BROKER, str(broker), dict(rates))
    cluster.stop_broker(FOLLOWER)
    eventually(lambda: zk.state(throttled, 0).isr == (LEADER,), "the follower out of the ISR")
    fill(cluster, throttled)
    leader_size = MISSED

    with BackgroundProducer(cluster.bootstrap_servers, free, 1) as producer:
        producer.wait_for_acks(50)
        cluster.start_broker(FOLLOWER)
        samples = watch_copying(cluster, throttled, leader_size)
        began = samples[0].at
        while_copying = sum(began <= at <= samples[-1].at for at in producer.acknowledged.times)
        producer.wait_for_acks(50)
        acknowledged = producer.stop()

    for at, size in samples:
        assert size <= RATE * (at - began) + BURST
    assert samples[-1].at - began > (MISSED - BURST) / RATE, "not throttled at all"
    assert while_copying > 50, "the other topic's producer was held up"
    assert acknowledged.failed == []
    eventually(lambda: set(zk.state(throttled, 0).isr) == {LEADER, FOLLOWER}, "the follower in sync again")
    assert_healed(cluster, zk, throttled)
    assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, free, 1))
    for broker in (LEADER, FOLLOWER):
        set_configs(admin, ResourceType.BROKER, str(broker), dict.fromkeys(rates))
    with capsys.disabled():
        seconds = samples[-1].at - began
        print(f"\n  {side}: {samples[-1].size / 1e6:.1f} MB in {seconds:.1f} s at {RATE / 1e6:.0f} MB/s")


def test_who_is_in_sync_is_never_throttled(cluster: LocalCluster, zk: ZooKeeperView, admin: AdminClient) -> None:
    """acks=all goes on though the rate is nothing and every replica is on the list."""
    topic = made(admin, "in-sync")
    assert_healed(cluster, zk, topic)
    sides = ("leader", "follower")
    set_configs(admin, ResourceType.TOPIC, topic, {f"{side}.replication.throttled.replicas": "*" for side in sides})
    for broker in (LEADER, FOLLOWER):
        rates = {f"{side}.replication.throttled.rate": "0" for side in sides}
        set_configs(admin, ResourceType.BROKER, str(broker), dict(rates))
    with BackgroundProducer(cluster.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(300)
        acknowledged = producer.stop()
    assert acknowledged.failed == []
    assert set(zk.state(topic, 0).isr) == {LEADER, FOLLOWER}
    for broker in (LEADER, FOLLOWER):
        set_configs(admin, ResourceType.BROKER, str(broker), dict.fromkeys(rates))
