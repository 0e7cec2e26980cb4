"""Packets between brokers are dropped or refused while records are produced (FLT-12, FLT-15). Each broker has a network of its own.

The other faults of links: test_faults_by_role.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.background_load import BackgroundProducer, under_load
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.network_cluster import NetworkCluster, running_network, why_not
from tests.support.topics import create_topics

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
    with running_network(directory, SETTINGS) as (cluster, zk):
        # Broker n leads partition n - 1.
        assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        create_topics(cluster.bootstrap_servers, NewTopic(TOPIC, PARTITIONS, replica_assignment=assignment))
        with under_load(cluster, zk, TOPIC, PARTITIONS) as producer:
            yield cluster, zk, producer


@pytest.mark.thorough
def test_a_one_way_cut(tmp_path: Path) -> None:
    """FLT-12: a leader that gets no packets of a follower is as good as cut off from it, and the ISR does not flap."""
    with a_cluster(tmp_path) as (cluster, zk, producer):
        leader, follower = sorted({1, 2, 3} - {zk.controller()})
        before = zk.state(TOPIC, leader - 1)
        cluster.cut(leader, f"from broker:{follower} one-way in")
        eventually(lambda: follower not in zk.state(TOPIC, leader - 1).isr, "the follower has left the ISR")
        producer.wait_for_acks(FEW)
        once = zk.state(TOPIC, leader - 1)
        assert (once.leader, once.zk_version) == (leader, before.zk_version + 1), "one write: it did not come and go"
        cluster.heal()


@pytest.mark.thorough
def test_a_storm_of_resets(tmp_path: Path) -> None:
    """FLT-15: a firewall resets and refuses everything between brokers that live. Nothing is lost, and it ends with the storm."""
    with a_cluster(tmp_path) as (cluster, zk, _):
        for one, other in itertools.permutations((1, 2, 3), 2):
            cluster.cut(one, f"from broker:{other} one-way in reset")
        eventually(
            lambda: any(len(state.isr) == 1 for state in zk.states(TOPIC).values()), "somebody is alone in an ISR"
        )
        cluster.heal()
