"""FLT-33 with real processes: the data directory of a killed broker is emptied while the broker is in the ISR (INV-1, REP-7)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.conftest import ClusterFactory
from tests.integration.conftest import cli_of
from tests.support.background_load import BackgroundProducer, assert_all_read_back, read_everything
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import create_topics
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

VICTIM, OTHER = 2, 3


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    """Three brokers. Broker 1 is the controller and has no replica."""
    cluster = new_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})
    if cluster.controller_id() != 1:
        for broker in (VICTIM, OTHER):
            cluster.restart_broker(broker)
        cluster.wait_ready()
    return cluster


def make_topic(cluster: LocalCluster, name: str, *replicas: int) -> None:
    create_topics(cluster.bootstrap_servers, NewTopic(name, 1, replica_assignment=[list(replicas)]))


def produce(cluster: LocalCluster, topic: str) -> BackgroundProducer:
    with BackgroundProducer(cluster.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(300)
    return producer


def empty_disk(cluster: LocalCluster, broker: int) -> None:
    for path in data_of(cluster, broker).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def data_of(cluster: LocalCluster, broker: int) -> Path:
    return cluster.broker_directory(broker) / "data"


def led(zk: ZooKeeperView, topic: str) -> tuple[int, tuple[int, ...]]:
    state = zk.states(topic)[0]
    return state.leader, tuple(sorted(state.isr))


@pytest.mark.thorough
def test_the_last_member_comes_back_with_an_empty_disk(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """No follower truncates its log to nothing. The CLI says why nobody leads. After an unclean election by hand, all works again."""
    cli = cli_of(cluster)
    make_topic(cluster, "two", VICTIM, OTHER)
    make_topic(cluster, "one", VICTIM)
    both = produce(cluster, "two")
    produce(cluster, "one")
    cluster.kill(OTHER)
    eventually(lambda: led(zk, "two") == (VICTIM, (VICTIM,)), "the other has left the ISR")
    cluster.kill(VICTIM)
    eventually(lambda: (led(zk, "two")[0], led(zk, "one")[0]) == (-1, -1), "nobody leads")
    empty_disk(cluster, VICTIM)
    for life in (1, 2):  # its next life has a meta.properties again
        for broker in (VICTIM, OTHER):
            if life > 1:
                cluster.kill(broker)
            cluster.start_broker(broker)
        cluster.wait_ready()
        for topic in ("two", "one"):
            eventually(
                lambda t=topic: "broker 2 has no log of it" in cli.output("topic", "describe", t), "the CLI says why"
            )
            assert led(zk, topic) == (-1, (VICTIM,))
            assert not list(data_of(cluster, VICTIM).glob(f"{topic}-*")), "no empty log stands for the records"
        health = cli.run("cluster", "health")
        assert health.returncode == 1
        assert "two-0: no leader (ISR 2): broker 2 has no log of it" in health.stdout
    for topic in ("two", "one"):
        cli.output("elect", "--election-type", "unclean", "--topic", topic, "--partition", "0")
    assert led(zk, "two")[0] == OTHER, "who has records goes before who has none"
    assert led(zk, "one") == (VICTIM, (VICTIM,))
    eventually(lambda: led(zk, "two") == (OTHER, (VICTIM, OTHER)), "and the other copies")
    assert_all_read_back(both)
    assert read_everything(cluster.bootstrap_servers, "one", 1) == []
    again = produce(cluster, "one")
    cluster.restart_broker(VICTIM)
    cluster.wait_ready()
    assert_all_read_back(again)
    assert_healed(cluster, zk, "two")


def test_all_members_die_and_the_empty_one_is_back_first(cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """The controller dies, too, so the ISR does not shrink. A bounce within the session time loses no more."""
    make_topic(cluster, "two", VICTIM, OTHER)
    producer = produce(cluster, "two")
    eventually(lambda: led(zk, "two") == (VICTIM, (VICTIM, OTHER)), "both in sync")
    for end in (cluster.pause, cluster.kill):  # paused, none of them can act on the death of another
        for broker in (1, OTHER, VICTIM):
            end(broker)
    empty_disk(cluster, VICTIM)
    cluster.start_broker(VICTIM)
    cluster.wait_ready(brokers=[VICTIM])
    # The new controller may see the other's death before or after the refusal: the empty one is in the ISR still, or left it.
    others_turn = ((-1, (VICTIM, OTHER)), (-1, (OTHER,)), (OTHER, (OTHER,)))
    eventually(lambda: led(zk, "two") in others_turn, "it does not lead")
    for broker in (OTHER, 1):
        cluster.start_broker(broker)
    cluster.wait_ready()
    eventually(lambda: led(zk, "two") == (OTHER, (VICTIM, OTHER)), "the other leads, and it copies")
    assert_all_read_back(producer)
    cluster.kill(OTHER)
    empty_disk(cluster, OTHER)
    cluster.start_broker(OTHER)
    cluster.wait_ready()
    eventually(lambda: led(zk, "two") == (VICTIM, (VICTIM, OTHER)), "a leader with an empty disk makes way")
    assert_all_read_back(producer)
    assert_healed(cluster, zk, "two")
