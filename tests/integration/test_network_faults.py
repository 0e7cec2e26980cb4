"""Links between brokers, and to ZooKeeper, are cut while records are produced (FLT-9 to FLT-15). Each broker has a network of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.support.background_load import BackgroundProducer, under_load
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.network_cluster import NetworkCluster, why_not
from tests.support.thorough import thorough
from tests.support.topics import create_topics, produce_body
from tests.support.wire import Wire

REASON = why_not()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

TOPIC = "cut"
PARTITIONS = 3
SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
    "replica.socket.timeout.ms": "1500",
    "controller.socket.timeout.ms": "1500",
    "auto.leader.rebalance.enable": "false",
    "min.insync.replicas": "2",
}
FEW = 200
"""Acknowledged records that tell that the topic is being written to."""


@contextmanager
def a_cluster(directory: Path) -> Iterator[tuple[NetworkCluster, ZooKeeperView, BackgroundProducer]]:
    """Three brokers under load; in the end everything must be healed, and what was acknowledged be there."""
    cluster = NetworkCluster(directory)
    try:
        cluster.create(brokers=3, overrides=SETTINGS)
        cluster.start()
        # Broker n leads partition n - 1.
        assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        create_topics(cluster.bootstrap_servers, NewTopic(TOPIC, PARTITIONS, replica_assignment=assignment))
        with (
            closing(ZooKeeperView(cluster.zookeeper_connect)) as zk,
            under_load(cluster, zk, TOPIC, PARTITIONS) as producer,
        ):
            yield cluster, zk, producer
    finally:
        cluster.destroy()


def produced(cluster: NetworkCluster, broker: int, partition: int) -> ErrorCode:
    """The answer of that broker to one more record with acks=all."""
    with Wire(9092, cluster.host(broker)) as wire:
        body = produce_body(TOPIC, build_batch([(None, b"one more", [], 0)]), partitions=[partition])
        answer = wire.call(ApiKey.PRODUCE, 9, body)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def another_than(zk: ZooKeeperView) -> int:
    """A broker that is not the controller."""
    return next(broker for broker in (1, 2, 3) if broker != zk.controller())


def wait_until_out(zk: ZooKeeperView, leader: int, follower: int) -> None:
    """Until the follower has left the ISR of what the leader leads."""
    eventually(lambda: follower not in zk.state(TOPIC, leader - 1).isr, f"{follower} has left the ISR of {leader}")


def test_cut_from_its_peers_but_not_from_zookeeper(tmp_path: Path) -> None:
    """FLT-9, INV-17: the leader's ISR shrinks to itself, and nothing is acknowledged below min.insync.replicas."""
    with a_cluster(tmp_path) as (cluster, zk, _):
        leader = another_than(zk)
        others = [broker for broker in (1, 2, 3) if broker != leader]
        for other in others:
            cluster.cut(leader, f"from broker:{other}")
        eventually(lambda: zk.state(TOPIC, leader - 1).isr == (leader,), "the leader is alone in the ISR")
        assert zk.state(TOPIC, leader - 1).leader == leader
        refused = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert produced(cluster, leader, leader - 1) in refused
        for other in others:
            wait_until_out(zk, other, leader)
            assert produced(cluster, other, other - 1) is ErrorCode.NONE
        cluster.heal()


@pytest.mark.thorough
def test_cut_from_zookeeper_but_not_from_its_peers(tmp_path: Path) -> None:
    """FLT-10: its session expires and others lead; back on the net it registers anew.

    It cannot know that from a ZooKeeper that is down for all, in which case it must go on (CTL-14). So it still takes
    records, but cannot acknowledge one: its followers have gone over to the new epoch.
    """
    with a_cluster(tmp_path) as (cluster, zk, producer):
        leader = another_than(zk)
        before = zk.state(TOPIC, leader - 1)
        cluster.cut(leader, "from zookeeper")
        eventually(lambda: leader not in zk.live_brokers(), "its session has expired")
        eventually(lambda: zk.state(TOPIC, leader - 1).leader not in (leader, -1), "another leads")
        after = zk.state(TOPIC, leader - 1)
        assert after.leader_epoch > before.leader_epoch
        # Until its followers have heard of that, they copy from it, and what they have copied may be acknowledged.
        eventually(lambda: produced(cluster, after.leader, leader - 1) is ErrorCode.NONE, "it serves")
        refused = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert produced(cluster, leader, leader - 1) in refused
        producer.wait_for_acks(FEW)
        cluster.heal()
        eventually(lambda: leader in zk.live_brokers(), "it has registered again")


def test_cut_from_the_controller_only(tmp_path: Path) -> None:
    """FLT-11, CTL-15: its control requests wait, in order, and arrive when the link is back; it leads on meanwhile."""
    with a_cluster(tmp_path) as (cluster, zk, producer):
        broker, controller = another_than(zk), zk.controller()
        assert controller is not None
        cluster.cut(broker, "from controller")
        for name in ("first", "second"):
            create_topics(
                f"{cluster.host(controller)}:9092", NewTopic(name, 1, replica_assignment=[[controller, broker]])
            )
        assert not {"first", "second"} & set(known_topics(cluster, broker))
        assert broker in zk.live_brokers(), "silence proves nothing: the session decides"
        assert zk.state(TOPIC, broker - 1).leader == broker
        producer.wait_for_acks(FEW)
        cluster.heal()
        eventually(lambda: {"first", "second"} <= set(known_topics(cluster, broker)), "it has heard of the topics")
        assert_healed(cluster, zk, "first")
        assert_healed(cluster, zk, "second")


def known_topics(cluster: NetworkCluster, broker: int) -> list[str]:
    with Wire(9092, cluster.host(broker)) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("deaf", ["leader", thorough("follower")])
def test_a_one_way_cut(tmp_path: Path, deaf: str) -> None:
    """FLT-12: as if it were cut both ways, and the ISR does not flap."""
    with a_cluster(tmp_path) as (cluster, zk, producer):
        leader = another_than(zk)
        follower = next(broker for broker in (1, 2, 3) if broker not in (leader, zk.controller()))
        before = zk.state(TOPIC, leader - 1)
        deaf_one, other = (leader, follower) if deaf == "leader" else (follower, leader)
        cluster.cut(deaf_one, f"from broker:{other} one-way in")
        wait_until_out(zk, leader, follower)
        producer.wait_for_acks(FEW)
        once = zk.state(TOPIC, leader - 1)
        assert (once.leader, once.zk_version) == (leader, before.zk_version + 1), "one write: it did not come and go"
        cluster.heal()


@pytest.mark.thorough
def test_a_ring_of_majorities(tmp_path: Path) -> None:
    """FLT-13: each of two brokers sees the third one only; at most one leader per epoch, and acknowledged records stay."""
    with a_cluster(tmp_path) as (cluster, zk, producer):
        cluster.cut(1, "from broker:3")
        wait_until_out(zk, 1, 3)
        wait_until_out(zk, 3, 1)
        assert set(zk.state(TOPIC, 1).isr) == {1, 2, 3}, "2 sees both"
        producer.wait_for_acks(FEW)
        cluster.heal()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
def test_links_go_one_by_one_and_come_back_in_another_order(tmp_path: Path, seed: int) -> None:
    """FLT-14: it converges."""
    order = random.Random(seed)
    links = list(itertools.combinations((1, 2, 3), 2))
    with a_cluster(tmp_path) as (cluster, zk, producer):
        order.shuffle(links)
        for one, other in links:
            cluster.cut(one, f"from broker:{other}")
            eventually(
                lambda a=one, b=other: b not in zk.state(TOPIC, a - 1).isr or a not in zk.state(TOPIC, b - 1).isr,
                f"{one} and {other} miss each other",
            )
        order.shuffle(links)
        for one, other in links:
            cluster.join(one, f"from broker:{other}")
        producer.wait_for_acks(FEW)


@pytest.mark.thorough
@pytest.mark.parametrize("whom", ["controller and broker", "leader and follower", "all"])
def test_a_storm_of_resets(tmp_path: Path, whom: str) -> None:
    """FLT-15: a firewall resets and refuses everything between brokers that live. Nothing is lost, and it ends with the storm."""
    with a_cluster(tmp_path) as (cluster, zk, producer):
        controller = zk.controller()
        assert controller is not None
        others = [broker for broker in (1, 2, 3) if broker != controller]
        pairs = {
            "controller and broker": [(controller, others[0])],
            "leader and follower": [(others[0], others[1])],
            "all": list(itertools.combinations((1, 2, 3), 2)),
        }[whom]
        for one, other in pairs:
            cluster.cut(one, f"from broker:{other} one-way in reset")
            cluster.cut(other, f"from broker:{one} one-way in reset")
        if whom == "leader and follower":
            wait_until_out(zk, *others)
            producer.wait_for_acks(FEW)
        elif whom == "all":
            eventually(
                lambda: any(len(state.isr) == 1 for state in zk.states(TOPIC).values()), "somebody is alone in an ISR"
            )
        else:

            def miss_each_other() -> bool:
                state = zk.state(TOPIC, others[0] - 1)
                return controller not in state.isr or state.leader != others[0]

            eventually(miss_each_other, "they miss each other")
        cluster.heal()
