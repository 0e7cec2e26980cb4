"""The cluster while servers of ZooKeeper restart (FLT-22)."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of

pytestmark = pytest.mark.integration

TOPIC = "rolling"
PARTITIONS = 3
SETTINGS = {"zookeeper.session.timeout.ms": "6000", "auto.leader.rebalance.enable": "false"}


def test_a_rolling_restart(tmp_path: Path, new_cluster: ClusterFactory) -> None:
    """Producers notice nothing, no session is lost, and what needs a decision is decided in between and afterwards."""
    with ZooKeeperEnsemble(tmp_path / "ensemble") as ensemble:
        cluster = new_cluster(brokers=3, zookeeper=ensemble.connect, overrides=SETTINGS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(30)
        zk = ZooKeeperView(cluster.zookeeper_connect)
        try:
            before = zk.controller_epoch(), zk.states(TOPIC)
            with BackgroundProducer(cluster.bootstrap_servers, TOPIC, PARTITIONS) as producer:
                for server in range(ensemble.SIZE):
                    producer.wait_for_acks(200)
                    ensemble.restart(server)
                    name = f"made-after-{server}"  # the controller may be without a connection just now
                    admin.create_topics([NewTopic(name, 1, 3)])[name].result(30)
                producer.wait_for_acks(200)
            acknowledged = producer.stop()
            assert acknowledged.failed == []
            eventually(lambda: zk.live_brokers() == [1, 2, 3], "all sessions live")
            assert (zk.controller_epoch(), zk.states(TOPIC)) == before, "no session was lost, no leader moved"
            assert_healed(cluster, zk, TOPIC)
            assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, TOPIC, PARTITIONS))
        finally:
            zk.close()
        for broker in cluster.broker_ids:
            assert "expired" not in session_states(cluster, broker)


def test_an_admin_request_waits_for_zookeeper(new_cluster: ClusterFactory) -> None:
    """A topic that is asked for while no broker has a connection is made as soon as one has."""
    with ZooKeeperServer() as server:
        cluster = new_cluster(brokers=1, zookeeper=server.connect)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.list_topics(timeout=30)
        server.stop()
        asked = admin.create_topics([NewTopic("patient", 1, 1)], operation_timeout=30)["patient"]
        eventually(lambda: "suspended" in session_states(cluster, 1), "the broker has noticed")
        assert not asked.done()
        server.start()
        asked.result(30)


def session_states(cluster: LocalCluster, broker: int) -> list[str]:
    events = events_of(cluster.broker_directory(broker) / "events.jsonl")
    return [row["state"] for row in events if row["kind"] == "zookeeper_session"]
