"""One broker process: what it finds of its own earlier life, and what a restart keeps. Other refusals: test_cluster_cli.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.topics import new_topic, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import events_of
from tools.cluster.ports import free_ports

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
NODE = "/brokers/ids/1"


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=1)


def produced(cluster: LocalCluster, topic: str) -> list[int]:
    """The offset of one more record; nothing when the broker does not lead the topic."""
    try:
        with Wire(cluster.port(1)) as wire:
            answer = produce_batch(wire, topic, build_batch([(None, b"value", [], 1)]))
    except ConnectionError:
        return []
    return [answer.base_offset] if answer.error_code == 0 else []


def test_the_id_and_advertised_address_of_a_live_broker(
    cluster: LocalCluster, zk: ZooKeeperView, tmp_path: Path
) -> None:
    """The second broker takes the first for its own earlier life, until that one registers again: then the second ends."""
    pid = cluster.pid(1)
    data, stat = zk.client.get(NODE)
    endpoints = json.loads(data)["endpoints"]
    names = [endpoint.partition(":")[0] for endpoint in endpoints]
    bound = [f"{name}://127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)]
    settings = {
        "broker.id": "1",
        "listeners": ",".join(bound),
        "advertised.listeners": ",".join(endpoints),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "log.dirs": str(tmp_path / "data"),
        "zookeeper.connect": cluster.zookeeper_connect,
        "zookeeper.session.timeout.ms": "2000",
    }
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "broker", "--config", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    same = f"is registered by another live process, ZooKeeper session 0x{stat.ephemeralOwner:x}"
    assert same in done.stderr.splitlines()[-1]

    def is_back() -> bool:
        found = zk.client.exists(NODE)
        return found is not None and found.ephemeralOwner == stat.ephemeralOwner

    eventually(is_back, "the first one registered")
    topic = new_topic(cluster.bootstrap_servers)
    eventually(lambda: produced(cluster, topic), "it leads again")
    assert cluster.pid(1) == pid


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_restart_keeps_port_data_and_offsets(cluster: LocalCluster, how: signal.Signals) -> None:
    topic = new_topic(cluster.bootstrap_servers)
    eventually(lambda: produced(cluster, topic) == [0], "the partition led")
    assert [produced(cluster, topic) for _ in range(4)] == [[1], [2], [3], [4]]
    cluster.signal(1, how)
    eventually(lambda: cluster.pid(1) is None, "the process ended")
    cluster.start_broker(1)
    cluster.wait_ready()
    assert eventually(lambda: produced(cluster, topic), "the partition led again") == [5]
    assert "registered" in {event["kind"] for event in events_of(cluster.broker_directory(1) / "events.jsonl")}, "RUN-3"
