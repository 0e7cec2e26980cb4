"""Clusters of a real Kafka on this machine: brokers with the ids from 0, and a ZooKeeper if this version needs one.

In KRaft mode, the first three brokers are the controllers, too. Nobody looks at the files afterwards.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tools.bench.real_kafka.jars import QUICK_START, KafkaJars
from tools.cluster import ownership
from tools.cluster.ports import LOCAL_HOST, accepts_connections, free_ports
from tools.cluster.processes import ClusterError
from tools.cluster.readiness import not_ready

START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.05
CONTROLLERS = 3
"""So many that any one of them may be down. With fewer brokers, the first one is the only controller."""
CONTROLLER = "CONTROLLER"
"""The listener of the controllers. Kafka takes it for a plain one."""
SMALL = ("-Xms256m", "-Xmx400m", QUICK_START)
"""Options of JVMs that start quickly and share a machine with tests."""
AS_SHIPPED = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
"""The options of Kafka's own start script, kafka-server-start.sh."""
ZOOKEEPER_AS_SHIPPED = ("-Xms512m", "-Xmx512m", *AS_SHIPPED[2:])
"""The options of zookeeper-server-start.sh."""


@dataclass
class Server:
    """A JVM with a directory of its own, which can be killed and started again. `end` it, whatever happened."""

    name: str
    home: Path
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Does nothing while it runs."""
        if self.process is None or self.process.poll() is not None:
            with self._log.open("ab") as log:
                self.process = ownership.start(self.command, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        """Returns at once."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self) -> None:
        """By SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def check(self, deadline: float) -> None:
        """Raises ClusterError if the process has ended, or is late."""
        assert self.process is not None
        has_ended = self.process.poll() is not None
        if has_ended or time.monotonic() > deadline:
            lines = self._log.read_text(errors="replace").splitlines()
            reason = next((line for line in lines if "ERROR" in line or "FATAL" in line), (lines or [""])[-1])
            state = "has ended" if has_ended else f"is not ready after {START_TIMEOUT_S:g} s"
            raise ClusterError(f"{self.name} of the real Kafka {state}: {reason}")

    @property
    def _log(self) -> Path:
        return self.home / "server.log"


@dataclass(frozen=True, slots=True)
class RealKafka:
    """A running one. `addresses`: broker id -> `host:port`; `zookeeper`: empty in KRaft mode."""

    addresses: Mapping[int, str]
    brokers: Mapping[int, Server]
    zookeeper: str

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.addresses.values())

    @property
    def pids(self) -> dict[int, int]:
        """Broker id -> its process."""
        return {broker: server.process.pid for broker, server in self.brokers.items() if server.process is not None}


@contextlib.contextmanager
def running_kafka(
    directory: Path,
    jars: KafkaJars,
    brokers: int = 3,
    overrides: Mapping[str, str] | None = None,
    listeners: Mapping[str, Sequence[int]] = MappingProxyType({}),
    options: Sequence[str] = SMALL,
    zookeeper_options: Sequence[str] = SMALL,
) -> Iterator[RealKafka]:
    """A ready Kafka: each broker lists all others and knows the controller. It is killed at the end.

    `overrides` are settings of all brokers. `listeners`: names of more listeners -> the port of each broker; the first listener,
    for the brokers, is PLAINTEXT. `options` are those of the brokers' JVMs.

    Raises ClusterError if it does not start.
    """
    ports = free_ports(brokers)
    addresses = {broker: f"{LOCAL_HOST}:{port}" for broker, port in enumerate(ports)}
    with contextlib.ExitStack() as stack:
        zookeeper, of_controllers = "", dict[int, list[str]]()
        if jars.needs_zookeeper:
            zookeeper = _start_zookeeper(directory, jars, zookeeper_options, stack)
            of_mode = {
                broker: {"broker.id": broker, "zookeeper.connect": zookeeper, "zookeeper.session.timeout.ms": 6000}
                for broker in addresses
            }
        else:
            controllers = dict(enumerate(free_ports(CONTROLLERS if brokers >= CONTROLLERS else 1)))
            of_controllers = {broker: [f"{CONTROLLER}://{LOCAL_HOST}:{port}"] for broker, port in controllers.items()}
            of_mode = _kraft_settings(brokers, controllers)
        files = {}
        for broker, address in addresses.items():
            at = [f"PLAINTEXT://{address}", *(f"{name}://{LOCAL_HOST}:{of[broker]}" for name, of in listeners.items())]
            home = directory / f"broker-{broker}"
            files[broker] = _write(home / "server.properties", {
                **of_mode[broker],
                "listeners": ",".join(at + of_controllers.get(broker, [])),
                "log.dirs": home / "data",
                "offsets.topic.replication.factor": min(brokers, 3),
                "transaction.state.log.replication.factor": min(brokers, 3),
                "transaction.state.log.min.isr": 1,
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
                **(overrides or {}),
            })  # fmt: skip
        if not jars.needs_zookeeper:
            _format(jars, list(files.values()))
        servers = {}
        for broker, file in files.items():
            command = jars.command("kafka.Kafka", str(file), options=options, logs="server")
            servers[broker] = _started(Server(f"broker-{broker}", file.parent, command), stack)
        # A broker that listens answers Metadata without any broker until the controller has told it who is there. An admin client
        # of librdkafka that gets such an answer does not ask again before its call times out.
        waiting = {broker: (LOCAL_HOST, port) for broker, port in enumerate(ports)}
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting := {broker: waiting[broker] for broker in not_ready(waiting, addresses, ANSWER_TIMEOUT_S)}:
            for broker in waiting:
                servers[broker].check(deadline)
            time.sleep(POLL_S)
        yield RealKafka(addresses, servers, zookeeper)


def _start_zookeeper(directory: Path, jars: KafkaJars, options: Sequence[str], stack: contextlib.ExitStack) -> str:
    """Returns its address when it listens. Raises ClusterError."""
    (port,) = free_ports(1)
    home = directory / "zookeeper"
    file = _write(home / "zoo.cfg", {
        "tickTime": 500,
        "minSessionTimeout": 500,
        "dataDir": home / "data",
        "clientPort": port,
        "clientPortAddress": LOCAL_HOST,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
    })  # fmt: skip
    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    server = _started(
        Server("zookeeper", home, jars.command(main_class, str(file), options=options, logs="server")), stack
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not accepts_connections(LOCAL_HOST, port, 1.0):
        server.check(deadline)
        time.sleep(POLL_S)
    return f"{LOCAL_HOST}:{port}"


def _kraft_settings(brokers: int, controllers: Mapping[int, int]) -> dict[int, dict[str, object]]:
    """Of each broker. `controllers`: broker -> the port of its controller."""
    voters = ",".join(f"{broker}@{LOCAL_HOST}:{port}" for broker, port in controllers.items())
    return {
        broker: {
            "node.id": broker,
            "process.roles": "broker,controller" if broker in controllers else "broker",
            "controller.listener.names": CONTROLLER,
            "controller.quorum.voters": voters,
        }
        for broker in range(brokers)
    }


def _format(jars: KafkaJars, files: Sequence[Path]) -> None:
    """Gives all data directories the id of a new cluster: KRaft does not start without. Raises ClusterError."""
    cluster_id = secrets.token_hex(11)  # 22 characters of base64 url, as Kafka wants them
    words = ("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config")
    with contextlib.ExitStack() as stack:
        tools = [
            _started(Server("the storage tool", file.parent, jars.command(*words, str(file))), stack) for file in files
        ]
        for tool in tools:
            assert tool.process is not None
            try:
                if tool.process.wait(START_TIMEOUT_S) == 0:
                    continue
            except subprocess.TimeoutExpired:
                pass
            tool.check(0)


def _write(file: Path, settings: Mapping[str, object]) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def _started(server: Server, stack: contextlib.ExitStack) -> Server:
    """It is ended with the stack."""
    stack.callback(server.end)
    server.start()
    return server
