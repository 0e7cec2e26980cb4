"""CTL-16 with real processes: a dead process is noticed at once, whatever the session time-out is, and no live one is judged dead.

The session time-out is so long that it cannot help; where it must help, the test says so. INV-1, 4, 5, 27 are checked after each.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import closing
from typing import Any

import pytest

from tests.conftest import ClusterFactory
from tests.support import topics
from tests.support.background_load import BackgroundProducer, assert_all_read_back, longest_outages, under_load
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, victim_of
from tests.support.thorough import thorough
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of
from tools.faults.processes import ProcessCluster
from tools.faults.words import Breakage

pytestmark = pytest.mark.integration

SESSION_S = 30
SETTINGS = {
    "zookeeper.session.timeout.ms": str(1000 * SESSION_S),
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
    "min.insync.replicas": "2",
}
PARTITIONS = 4
AT_ONCE_S = 10.0
"""Generous for a busy machine, and far from the session time-out."""
A_WHILE_S = 2.5
"""In which a wrong judgement would have come many times over."""
FEW = 200


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=3, overrides=SETTINGS)


def new_topic(cluster: LocalCluster, zk: ZooKeeperView) -> str:
    """A topic with 4 partitions on all three brokers, with full ISRs."""
    eventually(lambda: zk.live_brokers() == sorted(cluster.broker_ids), "all brokers live before the test")
    name = topics.new_topic(cluster.bootstrap_servers, PARTITIONS, 3)
    assert_healed(cluster, zk, name)
    return name


def czxid(zk: ZooKeeperView, broker: int) -> int | None:
    stat = zk.client.exists(f"/brokers/ids/{broker}")
    return None if stat is None else stat.czxid


def events(cluster: LocalCluster, kind: str) -> list[dict[str, Any]]:
    rows = []
    for broker in cluster.broker_ids:
        rows += [row for row in events_of(cluster.broker_directory(broker) / "events.jsonl") if row["kind"] == kind]
    return rows


@pytest.mark.parametrize("role", ["leader", "both"])
@pytest.mark.parametrize("client", ["tuned", thorough("defaults")])
def test_a_killed_broker_is_replaced_at_once(cluster: LocalCluster, zk: ZooKeeperView, role: str, client: str) -> None:
    """FLT-1, FLT-4: long before its session ends, its registration is deleted, others lead, and acks=all continues."""
    topic = new_topic(cluster, zk)
    defaults = {
        "retry.backoff.ms": 100,
        "retry.backoff.max.ms": 1000,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 10000,
        "topic.metadata.refresh.fast.interval.ms": 100,
    }
    settings: dict[str, Any] = defaults if client == "defaults" else {}
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, **settings) as producer:
        producer.wait_for_acks(FEW)
        victim, epoch = victim_of(role, zk, topic), zk.controller_epoch()
        led = [p for p, s in zk.states(topic).items() if s.leader == victim]
        cluster.signal(victim, signal.SIGKILL)
        eventually(lambda: victim not in zk.live_brokers(), "it is unregistered", AT_ONCE_S)
        eventually(lambda: all(zk.state(topic, p).leader not in (victim, -1) for p in led), "others lead", AT_ONCE_S)
        producer.wait_for_acks(2 * FEW, AT_ONCE_S)
        if role != "leader":
            eventually(lambda: zk.controller() not in (None, victim), "another controller", AT_ONCE_S)
            assert zk.controller_epoch() == epoch + 1
        eventually(lambda: cluster.pid(victim) is None, "its process is gone")
        cluster.start_broker(victim)
        eventually(lambda: victim in zk.live_brokers(), "it is back")
        producer.wait_for_acks(FEW)
    assert_healed(cluster, zk, topic)
    outages = longest_outages(assert_all_read_back(producer))
    assert max(outages.values(), default=0.0) < AT_ONCE_S


@pytest.mark.thorough
def test_two_of_five_die_in_one_moment(new_cluster: ClusterFactory) -> None:
    """The new controller notices the other dead broker too, although it never had a connection to it."""
    cluster = new_cluster(brokers=5, overrides=SETTINGS)
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        controller = eventually(zk.controller, "a controller")
        other = next(broker for broker in cluster.broker_ids if broker != controller)
        for victim in (controller, other):
            cluster.signal(victim, signal.SIGKILL)
        live = sorted(set(cluster.broker_ids) - {controller, other})
        eventually(lambda: zk.live_brokers() == live, "both are unregistered", AT_ONCE_S)
        eventually(lambda: zk.controller() in live, "another controller", AT_ONCE_S)


@pytest.mark.parametrize("role", [thorough("leader"), "both"])
def test_a_paused_broker_is_not_judged_dead(cluster: LocalCluster, zk: ZooKeeperView, role: str) -> None:
    """FLT-5: its kernel still listens. There is no election and no ISR change, only latency."""
    topic = new_topic(cluster, zk)
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        victim, before, epoch = victim_of(role, zk, topic), zk.states(topic), zk.controller_epoch()
        registered = czxid(zk, victim)
        cluster.pause(victim)
        try:
            time.sleep(A_WHILE_S)  # the fault itself
        finally:
            cluster.resume(victim)
        producer.wait_for_acks(FEW)
        assert czxid(zk, victim) == registered
        assert zk.controller_epoch() == epoch
        assert {p: s.leader_epoch for p, s in zk.states(topic).items()} == {
            p: s.leader_epoch for p, s in before.items()
        }


@pytest.mark.thorough
def test_a_broker_that_restarts_while_it_is_judged_dead_rejoins(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """FLT-23, BUG-16: the broker is killed, and started again before, while or after it is judged dead. It rejoins every time."""
    chance = random.Random(1)
    topic = new_topic(cluster, zk)
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        for number in range(5):
            victim = chance.choice(cluster.broker_ids)
            before = czxid(zk, victim)
            cluster.kill(victim)
            time.sleep(0.03 * number)
            cluster.start_broker(victim)
            eventually(lambda v=victim, b=before: czxid(zk, v) not in (None, b), "its next life is registered")
            producer.wait_for_acks(FEW)
            cluster.wait_ready(60)
    assert zk.live_brokers() == sorted(cluster.broker_ids)


@pytest.mark.parametrize("role", ["leader", "both"])
def test_a_broker_wrongly_judged_dead_rejoins(cluster: LocalCluster, zk: ZooKeeperView, role: str) -> None:
    """Its registration and `/controller` are deleted while it lives: it stops leading, and registers again in the same session."""
    topic = new_topic(cluster, zk)
    with under_load(cluster, zk, topic, PARTITIONS) as producer:
        victim, epoch = victim_of(role, zk, topic), zk.controller_epoch()
        led = [p for p, s in zk.states(topic).items() if s.leader == victim]
        pid, registered = cluster.pid(victim), czxid(zk, victim)
        session = zk.client.exists(f"/brokers/ids/{victim}").ephemeralOwner
        with zk.client.transaction() as transaction:
            if role != "leader":
                transaction.delete("/controller")
            transaction.delete(f"/brokers/ids/{victim}")
        eventually(lambda: czxid(zk, victim) not in (None, registered), "it registers again", AT_ONCE_S)
        if role == "leader":
            eventually(
                lambda: all(zk.state(topic, p).leader not in (victim, -1) for p in led), "others lead", AT_ONCE_S
            )
        # Otherwise the next controller may find it registered again, and leave it what it led.
        producer.wait_for_acks(2 * FEW, AT_ONCE_S)
        assert cluster.pid(victim) == pid
        assert zk.client.exists(f"/brokers/ids/{victim}").ephemeralOwner == session
        assert any(row["broker_epoch"] == registered for row in events(cluster, "registration_lost"))
        eventually(zk.controller, "a controller")
        assert zk.controller_epoch() == epoch + (role != "leader")
        assert zk.live_brokers() == sorted(cluster.broker_ids)


@pytest.mark.thorough
@pytest.mark.parametrize("role", ["leader", "both"])
def test_a_broker_that_was_cut_off_is_not_judged_dead(new_cluster: ClusterFactory, role: str) -> None:
    """FLT-9, FLT-10: silence proves nothing, whoever is cut off; only the session decides."""
    cluster = new_cluster(brokers=3, overrides=SETTINGS, links=True)
    with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
        topic = new_topic(cluster, zk)
        with under_load(cluster, zk, topic, PARTITIONS):
            victim, epoch = victim_of(role, zk, topic), zk.controller_epoch()
            registered = czxid(zk, victim)
            isolated = ProcessCluster(cluster).broker(victim)
            isolated.sever(Breakage())
            time.sleep(A_WHILE_S)  # the fault itself
            assert czxid(zk, victim) == registered
            assert zk.controller_epoch() == epoch
            isolated.join(None)
