"""Every new leader is stopped or killed as soon as it leads (FLT-3)."""

from __future__ import annotations

import pytest

from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    return new_cluster(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})


@pytest.mark.thorough
@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_five_leaders_in_a_row_stop_or_die(cluster: LocalCluster, zk: ZooKeeperView, is_clean: bool) -> None:
    """INV-1, INV-7: no acknowledged record is lost, and every leader has its own epoch."""
    topic = new_topic(cluster.bootstrap_servers, replicas=3, min_insync_replicas="2")
    epochs = [zk.state(topic, 0).leader_epoch]
    with BackgroundProducer(cluster.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(100)
        for _ in range(5):
            leader = zk.state(topic, 0).leader
            (cluster.stop_broker if is_clean else cluster.kill)(leader)
            eventually(lambda old=leader: zk.state(topic, 0).leader not in (old, -1), f"another than {leader} leads")
            epochs.append(zk.state(topic, 0).leader_epoch)
            producer.wait_for_acks(100)
            cluster.start_broker(leader)
            eventually(lambda: len(zk.state(topic, 0).isr) == 3, "full ISR")
    assert epochs == sorted(set(epochs))
    assert_healed(cluster, zk, topic)
    assert_all_read_back(producer)
