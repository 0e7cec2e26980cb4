"""A broker that is asked to stop, stops: also when nobody could take over what it leads (STA-2, FLT-2)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.load import read_everything
from tests.support.thorough import thorough
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import lines_of

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration

RETRIES, BACKOFF_S = 3, 1.0
BOUND_S = RETRIES * BACKOFF_S + 7.0


@pytest.mark.parametrize("is_controller", [True, thorough(False)], ids=["the controller", "not the controller"])
def test_with_one_replica_left_it_stops_in_bounded_time(
    new_cluster: Callable[..., LocalCluster], is_controller: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks as often as `controlled.shutdown.max.retries` says, then stops all the same, and loses nothing by it."""
    cluster = new_cluster(
        brokers=3,
        overrides={
            "controlled.shutdown.max.retries": str(RETRIES),
            "controlled.shutdown.retry.backoff.ms": str(round(BACKOFF_S * 1000)),
        },
    )
    zk = ZooKeeperView(cluster.zookeeper_connect)
    try:
        controller = zk.controller()
        assert controller is not None
        others = [b for b in cluster.broker_ids if b != controller]
        last, gone = (controller, others[0]) if is_controller else (others[0], others[1])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        made = admin.create_topics([NewTopic("t", 1, replica_assignment=[[last, gone]]), NewTopic("solo", 1, 1)])
        for future in made.values():
            future.result(30)
        assert_healed(cluster, zk, "t")
        cluster.kill(gone)
        eventually(lambda: zk.state("t", 0).isr == (last,), "one in-sync replica left")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for number in range(50):
            producer.produce("t", str(number).encode())
        assert producer.flush(30) == 0

        began = time.monotonic()
        cluster.signal(last, signal.SIGTERM)
        eventually(lambda: cluster.pid(last) is None, "the process ended", timeout_s=BOUND_S)
        took = time.monotonic() - began
        with capsys.disabled():
            print(f" [stopped in {took:.1f} s]", end="")
        eventually(lambda: zk.state("t", 0).leader == -1, "nobody leads")
        assert zk.state("t", 0).isr == (last,), "INV-4: the lone member stays in the ISR"

        cluster.start_broker(gone)
        cluster.wait_ready(brokers=[gone])
        assert zk.state("t", 0).leader == -1, "INV-18: the other one is not in the ISR"
        cluster.start_broker(last)
        cluster.wait_ready()
        assert_healed(cluster, zk, "t")
        records = read_everything(cluster.bootstrap_servers, "t", 1)
        assert {record.value() for record in records} == {str(number).encode() for number in range(50)}
    finally:
        zk.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_waits_for_zookeeper(tmp_path: Path, number: signal.Signals) -> None:
    """The broker would wait 18 s for a ZooKeeper that does not answer. Its logs are open, and are closed cleanly."""
    settings = {
        "broker.id": "1",
        "zookeeper.connect": "127.0.0.1:1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
    }
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    log = tmp_path / "server.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "broker", "--config", str(config), "--log-file", str(log)],
        cwd=REPOSITORY,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        eventually(lambda: log.exists() and "logs of" in log.read_text(), "the logs are open")
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(60) == 0
        assert time.monotonic() - began < 9, "half of what it would have waited"
    finally:
        process.kill()
        process.wait()
    assert "stopped during the start" in log.read_text()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_stop_does_not_wait_for_a_controller_that_stands_still(
    new_cluster: Callable[..., LocalCluster], capsys: pytest.CaptureFixture[str]
) -> None:
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
        began = time.monotonic()
        cluster.signal(other, signal.SIGTERM)
        eventually(lambda: cluster.pid(other) is None, "the process ended", timeout_s=20)
        with capsys.disabled():
            print(f" [stopped in {time.monotonic() - began:.1f} s]", end="")
    finally:
        cluster.resume(controller)
    words = "\n".join(lines_of(cluster.broker_directory(other) / "server.log"))
    assert "not all leaderships were handed over in time" in words
    assert (cluster.broker_directory(other) / "data" / ".kafka_cleanshutdown").exists()
