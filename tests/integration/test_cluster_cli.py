"""`ottla cluster` and `ottla broker` from the outside: what they print, keep, refuse, and that nothing is left running (RUN-1, RUN-2).

What they refuse before a process starts is in tests/unit/tools/cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ClusterFactory
from tests.support.invariants import eventually
from tests.support.thorough import thorough
from tests.support.zookeeper import ZooKeeperServer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import accepts_connections

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
OTTLA = [sys.executable, "-m", "tools.cli"]
TIMEOUT_S = 60

Ottla = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run"
    LocalCluster(tmp_path / "run").destroy()


@pytest.fixture
def ottla(directory: Path) -> Ottla:
    """Runs `ottla cluster ARGUMENTS --dir directory` to its end."""

    return lambda *arguments: run_cli("cluster", *arguments, "--dir", str(directory))


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`ottla ARGUMENTS` to its end."""
    command = [*OTTLA, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=REPOSITORY, check=False)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """What it prints."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that says why."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_cluster_from_start_to_destroy(ottla: Ottla, directory: Path) -> None:
    started = succeeded(ottla("start"))
    cluster = LocalCluster(directory)
    heading, *nodes = started.splitlines()[:5]
    assert heading.split() == ["NODE", "ADDRESS", "PID", "DIRECTORY"]
    assert [node.split()[0] for node in nodes] == ["zookeeper", "broker", "broker", "broker"]
    assert f"bootstrap servers: {cluster.bootstrap_servers}\n" in started
    assert "is in use by a running cluster" in refused(ottla("start"))
    for broker_id in cluster.broker_ids:  # they started together, but are processes of their own
        pid = cluster.pid(broker_id)
        assert pid is not None
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/comm").read_text() == f"broker-{broker_id}\n"

    ottla("kill", "2")
    status = ottla("status", "--format", "json")
    assert status.returncode == 1
    states = {node["id"]: node["state"] for node in json.loads(status.stdout)["nodes"] if node["id"]}
    assert states[2] == "stopped"
    assert "broker 2 is not running" in refused(ottla("kill", "2"))
    assert "the brokers are 1, 2, 3" in refused(ottla("kill", "4"))
    ports = [cluster.port(broker_id) for broker_id in cluster.broker_ids]
    succeeded(ottla("restart-broker", "2"))
    succeeded(ottla("pause", "3"))
    assert cluster.is_paused(3)
    succeeded(ottla("resume", "3"))
    cluster.wait_ready(TIMEOUT_S)
    assert succeeded(ottla("status")).count("controller") == 1

    succeeded(ottla("stop"))
    assert LocalCluster(directory).running() == []
    assert "is not running" in ottla("stop").stdout
    config = cluster.broker_directory(1) / "server.properties"
    edited = config.read_text() + "\n# by hand\nnum.partitions=7\n"
    config.write_text(edited)
    wrong = cluster.broker_directory(2) / "server.properties"
    intact = wrong.read_text()
    wrong.write_text(f"{intact}\nnum.partitions=many\n")
    assert f"broker 2 did not start: {wrong}:" in refused(ottla("start"))
    assert LocalCluster(directory).running() == []
    wrong.write_text(intact)
    succeeded(ottla("start"))
    assert config.read_text() == edited
    assert [cluster.port(broker_id) for broker_id in cluster.broker_ids] == ports

    succeeded(ottla("destroy", "--yes"))
    assert not directory.exists()
    assert not any(accepts_connections("127.0.0.1", port, 1) for port in ports)


def test_another_zookeeper_with_a_chroot_and_overrides(
    ottla: Ottla, directory: Path, tmp_path: Path, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that nobody knows is a warning."""
    monkeypatch.setenv("KAFKA_MIN_INSYNC_REPLICA", "1")
    where = ["--zookeeper", f"{server.connect}/clusters/one"]
    started = ottla(
        "start",
        "--brokers",
        "1",
        "--as",
        "4",
        *where,
        "--override",
        "num.partitions=5",
        "--override",
        "num.prtitions=3",
    )
    assert sorted(started.stderr.splitlines()) == [
        "Warning: unknown setting 'min.insync.replica' is ignored; did you mean min.insync.replicas?",
        "Warning: unknown setting 'num.prtitions' is ignored; did you mean num.partitions?",
    ]
    succeeded(started)
    cluster = LocalCluster(directory)
    assert (cluster.broker_ids, cluster.zookeeper_connect, cluster.zookeeper) == ((1,), where[1], None)
    settings = (cluster.broker_directory(1) / "server.properties").read_text().splitlines()
    assert {"num.partitions=5", "broker.api.level=4"} <= set(settings)

    second = tmp_path / "second"
    reason = refused(run_cli("cluster", "start", "--brokers", "1", *where, "--dir", str(second)))
    assert f"broker id 1 is registered by a live broker at {cluster.address(1)}" in reason
    assert not second.exists()
    assert cluster.problems() == {}
    succeeded(ottla("stop"))


@pytest.mark.parametrize("where", ["/dev/null", "/proc/run"])
def test_a_directory_that_cannot_be_used_is_refused(where: str) -> None:
    assert f"{where} cannot be used as a run directory" in refused(run_cli("cluster", "start", "--dir", where))


@pytest.mark.parametrize(
    ("how", "when"),
    [
        (signal.SIGINT, "starting"),
        thorough(signal.SIGINT, "serving"),
        thorough(signal.SIGTERM, "starting"),
        (signal.SIGTERM, "serving"),
    ],
)
def test_interrupted_it_stops_what_it_started(directory: Path, how: signal.Signals, when: str) -> None:
    cluster = LocalCluster(directory)
    with subprocess.Popen(
        [*OTTLA, "cluster", "start", "--brokers", "2", "--foreground", "--dir", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            if when == "starting":
                eventually(lambda: len(cluster.running()) == 3, "all processes have started")
            while when == "serving" and not process.stdout.readline().startswith("Ctrl-C"):
                assert process.poll() is None
            process.send_signal(how)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    # -SIGINT: CPython ends itself by SIGINT if the signal arrives inside exec(), which dataclasses use. A shell shows 130 for both.
    assert process.returncode in (130, -signal.SIGINT), errors
    assert cluster.running() == []
    assert cluster.exists() == (when == "serving"), "a cluster that has served is kept, one that never did is not"


def test_a_broker_in_the_foreground(directory: Path) -> None:
    """`ottla broker` on a file of the run directory is that broker, for every other command too."""
    cluster = LocalCluster(directory)
    cluster.create(brokers=1)
    cluster.start(TIMEOUT_S)
    cluster.stop_broker(1)
    config = cluster.broker_directory(1) / "server.properties"
    with subprocess.Popen(
        [*OTTLA, "broker", "--config", str(config)], stderr=subprocess.DEVNULL, cwd=REPOSITORY
    ) as process:
        try:
            other = LocalCluster(directory)
            eventually(lambda: not other.problems(), "the broker serves")
            assert other.pid(1) == process.pid
            assert other.stop() == []
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def serving(new_module_cluster: ClusterFactory) -> LocalCluster:
    """One broker that serves while others are refused beside it."""
    return new_module_cluster(brokers=1)


def refused_broker(serving: LocalCluster, tmp_path: Path, settings: Mapping[str, str]) -> str:
    """Starts another broker of the same cluster (id 9, changed settings), which must end. Returns its last line."""
    properties = {
        "broker.id": "9",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "control.plane.listener.name": "CONTROLLER",
        "log.dirs": str(tmp_path / "data"),
        "zookeeper.connect": serving.zookeeper_connect,
        **settings,
    }
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    done = run_cli("broker", "--config", str(config))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("ottla broker: ")
    assert serving.problems() == {}, "the broker that serves is none the worse for it"
    return last


@pytest.mark.thorough
def test_a_broker_beside_the_one_that_serves(serving: LocalCluster, tmp_path: Path) -> None:
    """A second broker is refused if it uses the first one's id, directory, port or configuration, or another cluster's directory."""
    reason = refused_broker(serving, tmp_path, {"broker.id": "1"})
    assert f"broker id 1 is registered by a live broker at {serving.address(1)}" in reason
    assert "choose another broker.id" in reason
    meta = tmp_path / "data" / "meta.properties"
    assert not meta.exists(), "the directory is still anybody's: the advice can be taken"
    data = serving.broker_directory(1) / "data"
    in_use = f"log directory {data} is in use by a running broker"
    assert in_use in refused_broker(serving, tmp_path, {"log.dirs": str(data)})
    listeners = f"PLAINTEXT://127.0.0.1:{serving.port(1)},CONTROLLER://127.0.0.1:0"
    assert f"port {serving.port(1)} is in use" in refused_broker(serving, tmp_path, {"listeners": listeners})
    same = run_cli("broker", "--config", str(serving.broker_directory(1) / "server.properties"))
    assert same.returncode == 1
    assert in_use in same.stderr.splitlines()[-1]
    meta.write_text("version=0\nbroker.id=9\ncluster.id=other\n")
    assert "cluster.id" in refused_broker(serving, tmp_path, {})
    assert serving.problems() == {}


def test_a_broker_without_a_zookeeper(serving: LocalCluster, tmp_path: Path) -> None:
    """The bad values of settings: tests/unit/broker/settings."""
    nobody = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "300"}
    assert "no ZooKeeper answered at 127.0.0.1:1" in refused_broker(serving, tmp_path, nobody)


def test_no_configuration_file(tmp_path: Path) -> None:
    done = run_cli("broker", "--config", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr) == (1, f"ottla broker: {tmp_path}/nowhere: No such file or directory\n")
    latin = tmp_path / "latin"
    latin.write_bytes(b"# \xe9")
    done = run_cli("broker", "--config", str(latin))
    assert (done.returncode, done.stderr) == (1, f"ottla broker: {latin} is not UTF-8 (byte 2): save it as UTF-8\n")
