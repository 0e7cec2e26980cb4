"""The cluster while servers of ZooKeeper restart (FLT-22)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import decode_response
from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of

pytestmark = pytest.mark.integration

PARTITIONS = 3
SETTINGS = {"zookeeper.session.timeout.ms": "6000", "auto.leader.rebalance.enable": "false"}


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path / "ensemble") as running:
        yield running


@pytest.fixture
def cluster(ensemble: ZooKeeperEnsemble, new_cluster: ClusterFactory) -> LocalCluster:
    return new_cluster(brokers=3, zookeeper=ensemble.connect, overrides=SETTINGS)


@pytest.mark.thorough
def test_a_rolling_restart(ensemble: ZooKeeperEnsemble, cluster: LocalCluster, zk: ZooKeeperView) -> None:
    """Producers see no error, no session is lost, and the controller decides between the restarts and afterwards."""
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    before = zk.controller_epoch(), zk.states(topic)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        for server in range(ensemble.SIZE):
            producer.wait_for_acks(200)
            ensemble.restart(server)
            new_topic(cluster.bootstrap_servers, replicas=3)  # the controller may have no connection just now
        producer.wait_for_acks(200)
    eventually(lambda: zk.live_brokers() == [1, 2, 3], "all sessions live")
    assert (zk.controller_epoch(), zk.states(topic)) == before, "no session was lost, no leader moved"
    assert_healed(cluster, zk, topic)
    assert_all_read_back(producer)
    for broker in cluster.broker_ids:
        assert "expired" not in session_states(cluster, broker)


def test_an_admin_request_waits_for_zookeeper(new_cluster: ClusterFactory) -> None:
    """A topic that is requested while no broker is connected to ZooKeeper is created as soon as one is."""
    with ZooKeeperServer() as server:
        cluster = new_cluster(brokers=1, zookeeper=server.connect)
        with Wire(cluster.port(1)) as wire:
            server.stop()
            eventually(lambda: "suspended" in session_states(cluster, 1), "the broker has noticed")
            topic = {"name": "patient", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            wire.send(ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 30_000, "validate_only": False})
            server.start()
            _, answer = decode_response(ApiKey.CREATE_TOPICS, 5, wire.receive_frame())
            assert answer.topics[0].error_code == 0


def session_states(cluster: LocalCluster, broker: int) -> list[str]:
    events = events_of(cluster.broker_directory(broker) / "events.jsonl")
    return [row["state"] for row in events if row["kind"] == "zookeeper_session"]
