"""The leader is chased through the cluster, stopped or killed as soon as it leads (FLT-3)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tests.support.thorough import thorough

pytestmark = pytest.mark.integration

TOPIC = "chased"
ROUNDS = 5


@pytest.mark.parametrize("how", [thorough("clean_bounce"), "hard_bounce"])
def test_the_leader_is_chased_five_times(new_cluster: ClusterFactory, how: str) -> None:
    """INV-1, INV-7: nothing acknowledged is lost, and every leadership has an epoch of its own."""
    cluster = new_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(30)
    zk = ZooKeeperView(cluster.zookeeper_connect)
    try:
        epochs = [zk.state(TOPIC, 0).leader_epoch]
        with BackgroundProducer(cluster.bootstrap_servers, TOPIC, 1) as producer:
            producer.wait_for_acks(100)
            for _ in range(ROUNDS):
                leader = zk.state(TOPIC, 0).leader
                if how == "clean_bounce":
                    cluster.stop_broker(leader)
                else:
                    cluster.kill(leader)
                moved = eventually(
                    lambda old=leader: [s for s in [zk.state(TOPIC, 0)] if s.leader not in (old, -1)],
                    f"another than {leader} leads",
                )[0]
                epochs.append(moved.leader_epoch)
                producer.wait_for_acks(100)
                cluster.start_broker(leader)
                eventually(lambda: len(zk.state(TOPIC, 0).isr) == 3, "full ISR")
        acknowledged = producer.stop()
        assert acknowledged.failed == []
        assert epochs == sorted(set(epochs))
        assert_healed(cluster, zk, TOPIC)
        assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, TOPIC, 1))
    finally:
        zk.close()
