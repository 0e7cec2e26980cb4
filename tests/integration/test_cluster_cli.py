"""`ottla cluster` from the outside: what it prints, what it keeps, what it refuses, and that nothing is left running (RUN-1, RUN-2)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.zookeeper import ZooKeeperServer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import accepts_connections, free_ports

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60

Ottla = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    LocalCluster(tmp_path / "run").destroy()


@pytest.fixture
def ottla(directory: Path) -> Ottla:
    """Runs `ottla cluster ARGUMENTS --dir directory` to its end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(directory, *arguments),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=REPOSITORY,
            check=False,
        )

    return run


def command(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.cli", "cluster", *arguments, "--dir", str(directory)]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_cluster_from_start_to_destroy(ottla: Ottla, directory: Path) -> None:
    started = ottla("start")
    assert started.returncode == 0, started.stderr
    cluster = LocalCluster(directory)
    heading, *nodes = started.stdout.splitlines()[:5]
    assert heading.split() == ["NODE", "ADDRESS", "PID", "DIRECTORY"]
    assert [node.split()[0] for node in nodes] == ["zookeeper", "broker", "broker", "broker"]
    assert f"bootstrap servers: {cluster.bootstrap_servers}\n" in started.stdout
    assert "is in use by a running cluster" in refused(ottla("start"))

    ottla("kill", "2")
    status = ottla("status", "--format", "json")
    assert status.returncode == 1
    states = {node["id"]: node["state"] for node in json.loads(status.stdout)["nodes"] if node["id"]}
    assert states[2] == "stopped"
    assert "broker 2 does not run" in refused(ottla("kill", "2"))
    assert "its brokers are 1, 2, 3" in refused(ottla("kill", "4"))
    ports = [cluster.port(broker_id) for broker_id in cluster.broker_ids]
    restarted = ottla("restart-broker", "2")
    assert restarted.returncode == 0, restarted.stderr
    assert ottla("pause", "3").returncode == 0
    assert cluster.is_paused(3)
    assert ottla("resume", "3").returncode == 0
    cluster.wait_ready(TIMEOUT_S)
    status = ottla("status")
    assert status.returncode == 0, status.stdout
    assert status.stdout.count("controller") == 1

    assert ottla("stop").returncode == 0
    assert LocalCluster(directory).running() == []
    assert "does not run" in ottla("stop").stdout
    config = cluster.broker_directory(1) / "server.properties"
    edited = config.read_text() + "\n# by hand\nnum.partitions=7\n"
    config.write_text(edited)
    again = ottla("start")
    assert again.returncode == 0, again.stderr
    assert config.read_text() == edited
    assert [cluster.port(broker_id) for broker_id in cluster.broker_ids] == ports

    destroyed = ottla("destroy", "--yes")
    assert destroyed.returncode == 0, destroyed.stderr
    assert not directory.exists()
    assert not any(accepts_connections("127.0.0.1", port, 1) for port in ports)


def test_another_zookeeper_with_a_chroot_and_overrides(ottla: Ottla, directory: Path) -> None:
    with ZooKeeperServer() as server:
        where = f"{server.connect}/clusters/one"
        started = ottla("start", "--brokers", "1", "--zookeeper", where, "--override", "num.partitions=5")
        assert started.returncode == 0, started.stderr
        cluster = LocalCluster(directory)
        assert cluster.broker_ids == (1,)
        assert cluster.zookeeper_connect == where
        assert cluster.zookeeper is None
        assert "num.partitions=5" in (cluster.broker_directory(1) / "server.properties").read_text()
        assert ottla("stop").returncode == 0


def test_a_bad_setting_is_one_line_and_leaves_nothing(ottla: Ottla, directory: Path) -> None:
    reason = refused(ottla("start", "--brokers", "1", "--override", "num.partitions=many"))
    assert "num.partitions" in reason
    assert "many" in reason
    assert not directory.exists()


def test_no_zookeeper(ottla: Ottla, directory: Path) -> None:
    (port,) = free_ports(1)
    assert f"no ZooKeeper answers at 127.0.0.1:{port}" in refused(ottla("start", "--zookeeper", f"127.0.0.1:{port}"))
    assert not directory.exists()


def test_a_port_in_use(ottla: Ottla, directory: Path) -> None:
    cluster = LocalCluster(directory)
    cluster.create(brokers=1)
    with socket.create_server(("127.0.0.1", cluster.port(1))):
        assert f"port {cluster.port(1)} of broker 1 is in use" in refused(ottla("start"))
    assert cluster.running() == []


@pytest.mark.parametrize("when", ["starting", "serving"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_what_it_started(directory: Path, when: str, how: signal.Signals) -> None:
    process = subprocess.Popen(
        command(directory, "start", "--brokers", "2", "--foreground"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    cluster = LocalCluster(directory)
    try:
        if when == "serving":
            while not process.stdout.readline().startswith("Ctrl-C"):
                assert process.poll() is None
        else:
            deadline = time.monotonic() + TIMEOUT_S
            while len(cluster.running()) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        process.send_signal(how)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        # CPython dies of SIGINT itself when the signal came inside an exec(), as of dataclasses: to a shell both are 130.
        assert process.returncode in (130, -signal.SIGINT), errors
    finally:
        process.kill()
        process.communicate()
    assert cluster.running() == []
    assert cluster.exists() == (when == "serving"), "a cluster that has served is kept, one that never did is not"


def test_a_broker_in_the_foreground(directory: Path) -> None:
    """`ottla broker` on a file of the run directory is that broker, for every other command too."""
    cluster = LocalCluster(directory)
    cluster.create(brokers=1)
    cluster.start(TIMEOUT_S)
    cluster.stop_broker(1)
    config = cluster.broker_directory(1) / "server.properties"
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "broker", "--config", str(config)],
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
    )
    try:
        other = LocalCluster(directory)
        deadline = time.monotonic() + TIMEOUT_S
        while other.problems():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert other.pid(1) == process.pid
        assert other.stop() == []
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
