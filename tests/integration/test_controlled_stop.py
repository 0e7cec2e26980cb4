"""A broker that is asked to stop does so, even if no other broker can take over its leaderships (STA-2, FLT-2)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ClusterFactory
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.thorough import thorough
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import LogReader

REPOSITORY = Path(__file__).resolve().parents[2]
CLEAN = ".kafka_cleanshutdown"
pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(new_cluster: ClusterFactory) -> LocalCluster:
    retries = {"controlled.shutdown.max.retries": "3", "controlled.shutdown.retry.backoff.ms": "1000"}
    return new_cluster(brokers=3, overrides=retries)


@pytest.mark.parametrize("is_controller", [True, thorough(False)], ids=["the controller", "not the controller"])
def test_the_last_replica_stops_and_loses_nothing(
    cluster: LocalCluster, zk: ZooKeeperView, is_controller: bool
) -> None:
    """The broker asks the controller as often as `controlled.shutdown.max.retries` allows, and then stops anyway."""
    controller = cluster.controller_id()
    others = [b for b in cluster.broker_ids if b != controller]
    last, dead = (controller, others[0]) if is_controller else (others[0], others[1])
    topic = new_topic(cluster.bootstrap_servers, assignment=[[last, dead]])
    new_topic(cluster.bootstrap_servers)
    assert_healed(cluster, zk, topic)
    cluster.kill(dead)
    eventually(lambda: zk.state(topic, 0).isr == (last,), "one in-sync replica left")
    with BackgroundProducer(cluster.bootstrap_servers, topic, 1) as producer:
        producer.wait_for_acks(50)

    cluster.signal(last, signal.SIGTERM)
    eventually(lambda: cluster.pid(last) is None, "the process ended")
    eventually(lambda: zk.state(topic, 0).leader == -1, "nobody leads")
    assert zk.state(topic, 0).isr == (last,), "INV-4: the lone member stays in the ISR"

    cluster.start_broker(dead)
    cluster.wait_ready(brokers=[dead])
    assert zk.state(topic, 0).leader == -1, "INV-18: the other one is not in the ISR"
    cluster.start_broker(last)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    assert_all_read_back(producer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_waits_for_zookeeper(tmp_path: Path, number: signal.Signals) -> None:
    """The broker would wait ten minutes for a ZooKeeper that does not answer. Its open logs are closed cleanly."""
    settings = {
        "broker.id": "1",
        "zookeeper.connect": "127.0.0.1:1",
        "zookeeper.connection.timeout.ms": "600000",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
    }
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    log = tmp_path / "server.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", "--config", str(config), "--log-file", str(log)], cwd=REPOSITORY
    )
    try:
        eventually(lambda: log.exists() and "logs of" in log.read_text(), "the logs are open")
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "stopped during the start" in log.read_text()
    assert (tmp_path / "data" / CLEAN).exists()


def test_a_stop_does_not_wait_for_a_controller_that_stands_still(new_cluster: ClusterFactory) -> None:
    """`broker.stop.timeout.ms` bounds the hand-over, however long a controller may take to answer."""
    cluster = new_cluster(
        brokers=2,
        overrides={
            "zookeeper.session.timeout.ms": "60000",
            "broker.stop.timeout.ms": "5000",
            "offsets.topic.num.partitions": "1",
        },
    )
    controller = cluster.controller_id()
    (other,) = set(cluster.broker_ids) - {controller}
    cluster.pause(controller)
    try:
        cluster.signal(other, signal.SIGTERM)
        eventually(lambda: cluster.pid(other) is None, "the process ended", timeout_s=40)
    finally:
        cluster.resume(controller)
    home = cluster.broker_directory(other)
    assert b"not all leaderships were handed over in time" in b"".join(LogReader(home / "server.log").new_lines())
    assert (home / "data" / CLEAN).exists()
