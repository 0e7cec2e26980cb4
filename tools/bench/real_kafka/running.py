"""Clusters of a real Kafka on this machine: a ZooKeeper and brokers with the ids from 0. Nobody looks at their files afterwards."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
SMALL = ("-Xms256m", "-Xmx400m", QUICK_START)
"""Options of JVMs that start quickly and share a machine with tests."""
AS_SHIPPED = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
"""The options of Kafka's own start script, kafka-server-start.sh."""
ZOOKEEPER_AS_SHIPPED = ("-Xms512m", "-Xmx512m", *AS_SHIPPED[2:])
"""The options of zookeeper-server-start.sh."""


@dataclass(frozen=True, slots=True)
class RealKafka:
    """A running one. `addresses`: broker id -> `host:port`; `pids`: broker id -> its process."""

    addresses: Mapping[int, str]
    pids: Mapping[int, int]
    zookeeper: str


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
    zookeeper_port, *broker_ports = free_ports(1 + brokers)
    addresses = {broker: f"{LOCAL_HOST}:{port}" for broker, port in enumerate(broker_ports)}
    pids: dict[int, int] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str, jvm: Sequence[str], main_class: str, file: str, settings: Mapping[str, object]) -> int:
            home = directory / name
            home.mkdir(parents=True)
            (home / file).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log = stack.enter_context((home / "server.log").open("wb"))
            command = jars.command(main_class, str(home / file), options=jvm, logs="server")
            process = ownership.start(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            running[name] = process
            return process.pid

        def check(name: str, deadline: float) -> None:
            """Raises ClusterError if the process has ended, or is late."""
            ended = running[name].poll() is not None
            if ended or time.monotonic() > deadline:
                lines = (directory / name / "server.log").read_text(errors="replace").splitlines()
                reason = next((line for line in lines if "ERROR" in line or "FATAL" in line), (lines or [""])[-1])
                state = "has ended" if ended else f"is not ready after {START_TIMEOUT_S:g} s"
                raise ClusterError(f"{name} of the real Kafka {state}: {reason}")

        running: dict[str, subprocess.Popen[bytes]] = {}
        start("zookeeper", zookeeper_options, "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg", {
            "tickTime": 500,
            "minSessionTimeout": 500,
            "dataDir": directory / "zookeeper" / "data",
            "clientPort": zookeeper_port,
            "clientPortAddress": LOCAL_HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        })  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts_connections(LOCAL_HOST, zookeeper_port, 1.0):
            check("zookeeper", deadline)
            time.sleep(POLL_S)
        for broker in range(brokers):
            pids[broker] = start(f"broker-{broker}", options, "kafka.Kafka", "server.properties", {
                "broker.id": broker,
                "listeners": ",".join([
                    f"PLAINTEXT://{addresses[broker]}",
                    *(f"{name}://{LOCAL_HOST}:{ports[broker]}" for name, ports in listeners.items()),
                ]),
                "log.dirs": directory / f"broker-{broker}" / "data",
                "zookeeper.connect": f"{LOCAL_HOST}:{zookeeper_port}",
                "offsets.topic.replication.factor": min(brokers, 3),
                "transaction.state.log.replication.factor": min(brokers, 3),
                "transaction.state.log.min.isr": 1,
                "zookeeper.session.timeout.ms": 6000,
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
                **(overrides or {}),
            })  # fmt: skip
        # A broker that listens answers Metadata without any broker until the controller has told it who is there. An admin client
        # of librdkafka that gets such an answer does not ask again before its call times out.
        waiting = {broker: (LOCAL_HOST, port) for broker, port in enumerate(broker_ports)}
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting := {broker: waiting[broker] for broker in not_ready(waiting, addresses, ANSWER_TIMEOUT_S)}:
            for broker in waiting:
                check(f"broker-{broker}", deadline)
            time.sleep(POLL_S)
        yield RealKafka(addresses, pids, f"{LOCAL_HOST}:{zookeeper_port}")
