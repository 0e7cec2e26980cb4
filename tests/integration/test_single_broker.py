"""One broker process: what it needs to start, one clear line when it cannot, and what a restart keeps."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(brokers=1)


def run_broker(config: Path, timeout_s: float = 30) -> tuple[int, str]:
    """(exit code, last line of stderr) of a broker that ends by itself."""
    command = [sys.executable, "-m", "broker", "--config", str(config)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def other_broker(cluster: LocalCluster, tmp_path: Path, **settings: str) -> Path:
    """server.properties of another broker of the same cluster."""
    properties = {
        "broker.id": "7",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "log.dirs": str(tmp_path / "data"),
        "zookeeper.connect": cluster.zookeeper_connect,
        "zookeeper.session.timeout.ms": "2000",
    } | {key.replace("_", "."): value for key, value in settings.items()}
    path = tmp_path / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


class TestCannotStart:
    """Exit code 1 and one line that names the trouble; the running broker is not harmed. More of them: test_cluster_cli.py."""

    @pytest.fixture(autouse=True)
    def unharmed(self, cluster: LocalCluster) -> Iterator[None]:
        pid = cluster.pid(1)
        yield
        assert cluster.pid(1) == pid
        with Wire(cluster.port(1)) as wire:
            answer = wire.call(ApiKey.METADATA, 9, {"topics": [], "allow_auto_topic_creation": False})
        assert [b.node_id for b in answer.brokers] == [1]

    def test_id_and_advertised_address_in_use(self, cluster: LocalCluster, tmp_path: Path) -> None:
        """It takes the live broker for its own earlier life, until that one registers again: then it ends."""
        client = KazooClient(cluster.zookeeper_connect)
        client.start()
        try:
            data, stat = client.get("/brokers/ids/1")
            endpoints = json.loads(data)["endpoints"]
            bound = [f"{endpoint.rpartition(':')[0]}:{free_port()}" for endpoint in endpoints]
            config = other_broker(
                cluster,
                tmp_path,
                broker_id="1",
                listeners=",".join(bound),
                advertised_listeners=",".join(endpoints),
                listener_security_protocol_map=",".join(f"{e.partition(':')[0]}:PLAINTEXT" for e in endpoints),
            )
            code, line = run_broker(config)
            assert code == 1
            assert f"is registered by another live process, ZooKeeper session 0x{stat.ephemeralOwner:x}" in line

            def is_back() -> bool:
                found = client.exists("/brokers/ids/1")
                return found is not None and found.ephemeralOwner == stat.ephemeralOwner

            eventually(is_back, "the first one registered")
        finally:
            client.stop()
            client.close()
        eventually(lambda: produces(cluster, new_topic(cluster)), "it leads again")

    def test_another_clusters_directory(self, cluster: LocalCluster, tmp_path: Path) -> None:
        config = other_broker(cluster, tmp_path)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=other\n")
        code, line = run_broker(config)
        assert code == 1
        assert "cluster.id" in line


def produce(wire: Wire, topic: str, value: bytes, acks: int = -1) -> int:
    """The record's offset."""
    data = [{"name": topic, "partition_data": [{"index": 0, "records": build_batch([(None, value, [], 1)])}]}]
    body = {"transactional_id": None, "acks": acks, "timeout": 5000, "topic_data": data}
    answer = wire.call(ApiKey.PRODUCE, 9, body).responses[0].partition_responses[0]
    assert int(answer.error_code) == 0, answer
    return int(answer.base_offset)


def new_topic(cluster: LocalCluster) -> str:
    name = f"single-{uuid.uuid4().hex[:8]}"
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with Wire(cluster.port(1)) as wire:
        body = {"topics": [topic], "timeout": 10000, "validate_only": False}
        answer = wire.call(ApiKey.CREATE_TOPICS, 5, body)
    assert int(answer.topics[0].error_code) == 0
    return name


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_restart_keeps_port_data_and_offsets(cluster: LocalCluster, how: signal.Signals) -> None:
    topic = new_topic(cluster)
    with Wire(cluster.port(1)) as wire:
        assert [produce(wire, topic, b"%d" % n) for n in range(5)] == list(range(5))
    cluster.signal(1, how)
    eventually(lambda: cluster.pid(1) is None, "the process ended")
    cluster.start_broker(1)
    cluster.wait_ready(30)

    def next_offset() -> list[int]:
        try:
            with Wire(cluster.port(1)) as wire:
                return [produce(wire, topic, b"again")]
        except (AssertionError, ConnectionError):
            return []

    assert eventually(next_offset, "the partition led again") == [5]


def test_a_broker_whose_znode_is_removed_registers_again(cluster: LocalCluster) -> None:
    """STA-4: the session lives, the node is gone (as fast failure detection does): a new broker epoch, and it leads again."""
    topic = new_topic(cluster)
    client = KazooClient(cluster.zookeeper_connect)
    client.start()
    try:
        _, before = client.get("/brokers/ids/1")
        client.delete("/brokers/ids/1")
        stat = eventually(lambda: client.exists("/brokers/ids/1"), "the znode back")
        assert stat.czxid > before.czxid
    finally:
        client.stop()
        client.close()

    assert eventually(lambda: produces(cluster, topic), "the partition led again")


def produces(cluster: LocalCluster, topic: str) -> list[int]:
    try:
        with Wire(cluster.port(1)) as wire:
            return [produce(wire, topic, b"value")]
    except (AssertionError, ConnectionError):
        return []


def test_the_event_log_tells_of_registration(cluster: LocalCluster) -> None:
    """RUN-3"""
    lines = (cluster.directory / "broker-1" / "events.jsonl").read_text().splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert "registered" in {event["kind"] for event in events}
    assert all(isinstance(event["time_ms"], int) for event in events)
