"""A real Kafka to compare with: the jars that `make kafka` fetches, a JVM with them, and clusters of its brokers."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.cli import Cli
from tools.cluster import ownership
from tools.cluster.java import find_java
from tools.cluster.ports import accepts_connections, free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
FETCHED = REPOSITORY / ".kafka" / "fetched"
CLASS_PATH = f"{REPOSITORY}/.kafka/libs/*"
SETTINGS = REPOSITORY / "tests" / "kafka"
HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
QUICK_START = "-XX:TieredStopAtLevel=1"
"""A JVM that lives for a test saves a third of its CPU time without the optimizing compiler."""


def skip_without_kafka() -> None:
    """Skips the test that runs, or all tests of a fixture."""
    if not FETCHED.exists():
        pytest.skip("no real Kafka to compare with: run `make kafka`, which needs Maven and a JDK")


def java_command(*arguments: str, heap: str = "-Xmx512m", log_settings: str = "tool") -> list[str]:
    """A JVM that runs a class of Kafka's, or a source file that uses them."""
    log4j = f"-Dlog4j.configuration=file:{SETTINGS}/{log_settings}.log4j.properties"
    return [find_java(), *heap.split(), QUICK_START, log4j, "-cp", CLASS_PATH, *arguments]


@contextlib.contextmanager
def running_kafka(
    directory: Path,
    brokers: int = 3,
    overrides: Mapping[str, str] | None = None,
    listeners: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Iterator[Cli]:
    """A Kafka whose brokers have the ids from 0, and its ZooKeeper; `overrides` are settings of all brokers.

    `listeners`: names of more listeners -> the port of each broker. The first one, for the brokers, is PLAINTEXT.

    It is killed at the end: nobody looks at its files afterwards.
    """
    zookeeper_port, *broker_ports = free_ports(1 + brokers)
    addresses = [f"{HOST}:{port}" for port in broker_ports]
    with contextlib.ExitStack() as stack:

        def start(name: str, main_class: str, file: str, settings: Mapping[str, object]) -> None:
            home = directory / name
            home.mkdir()
            (home / file).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            log = stack.enter_context((home / "server.log").open("wb"))
            command = java_command(main_class, str(home / file), heap="-Xms256m -Xmx400m", log_settings="server")
            process = ownership.start(
                lambda preexec: subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=preexec)
            )
            stack.callback(process.wait)
            stack.callback(process.kill)

        def wait(name: str, port: int) -> None:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not accepts_connections(HOST, port, 1.0):
                said = (directory / name / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline, f"{name} of the real Kafka does not listen:\n{said}"
                time.sleep(0.1)

        data = directory / "zookeeper" / "data"
        start("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg", {
            "tickTime": 500,
            "minSessionTimeout": 500,
            "dataDir": data,
            "clientPort": zookeeper_port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        })  # fmt: skip
        wait("zookeeper", zookeeper_port)
        for broker in range(brokers):
            start(f"broker-{broker}", "kafka.Kafka", "server.properties", {
                "broker.id": broker,
                "listeners": ",".join([
                    f"PLAINTEXT://{addresses[broker]}",
                    *(f"{name}://{HOST}:{ports[broker]}" for name, ports in listeners.items()),
                ]),
                "log.dirs": directory / f"broker-{broker}" / "data",
                "zookeeper.connect": f"{HOST}:{zookeeper_port}",
                "offsets.topic.replication.factor": min(brokers, 3),
                "transaction.state.log.replication.factor": min(brokers, 3),
                "transaction.state.log.min.isr": 1,
                "zookeeper.session.timeout.ms": 6000,
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
                **(overrides or {}),
            })  # fmt: skip
        for broker in range(brokers):
            wait(f"broker-{broker}", broker_ports[broker])
            wait_until_it_knows_the_brokers(addresses[broker], brokers)
        yield Cli(addresses[0], list(range(brokers)), f"{HOST}:{zookeeper_port}")


def wait_until_it_knows_the_brokers(address: str, brokers: int) -> None:
    """Waits until the controller has told the broker at `address` who is there.

    A broker that listens answers Metadata without any broker until then. An admin client of librdkafka that gets such
    an answer does not ask again before its call times out.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    admin = AdminClient({"bootstrap.servers": address})
    while True:
        known = admin.list_topics(timeout=START_TIMEOUT_S)
        if len(known.brokers) == brokers and known.controller_id in known.brokers:
            return
        assert time.monotonic() < deadline, f"{address} knows the brokers {list(known.brokers)} only"
        time.sleep(0.1)
