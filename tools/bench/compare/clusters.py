"""The clusters of a comparison: three brokers and a ZooKeeper, ours or a real Kafka's, with the same settings."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil
from confluent_kafka.admin import AdminClient

from tools.bench.closed_loop.load import Load
from tools.bench.closed_loop.target import Target, fill
from tools.bench.closed_loop.topic_load import FILL_BYTES, bench_topics
from tools.bench.compare.results import OURS, Resources
from tools.bench.real_kafka import running
from tools.bench.real_kafka.jars import KafkaJars
from tools.cluster import forks
from tools.cluster.local_cluster import SOURCE_ROOT, ClusterError, LocalCluster

BROKERS = 3
FORM_SWITCH = "OTTLA_COMPILED"
"""The environment variable that says whether brokers may run compiled (docs/PERFORMANCE.md)."""
PLAIN = "plain Python"
KAFKA = "Kafka"
WITHOUT_FAULTS = {"broker.fault.injection": "false"}
"""As in a plain `server.properties`; a local cluster has it otherwise."""
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
    "message.max.bytes": "2097152",
    "offsets.topic.replication.factor": "3",
    "replica.fetch.max.bytes": "2097152",
    "replica.lag.time.max.ms": "30000",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
    "zookeeper.session.timeout.ms": "18000",
}
"""Settings of all brokers of both clusters; the rest are Kafka's defaults. Neither flushes: the kernel decides when it writes a log."""
ONLY_KAFKA = {"log.initial.task.delay.ms": "500"}
"""Without this, Kafka deletes nothing in its first 30 s. Ours deletes from the start on."""
REMOVAL_TIMEOUT_S = 30.0
METADATA_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(slots=True)
class RunningCluster:
    """A cluster that serves. `brokers`: broker id -> its process. `start_s`: from its first process until all brokers served."""

    name: str
    target: Target
    brokers: Mapping[int, psutil.Process]
    data: Sequence[Path]
    start_s: float
    memory_bytes: int = 0
    open_files: int = 0

    def cpu_s(self) -> float:
        """User and system time of all brokers until now."""
        times = [process.cpu_times() for process in self.brokers.values()]
        return float(sum(one.user + one.system for one in times))

    def look(self) -> None:
        """Notes how much memory (PSS) and how many files the largest broker has now, if that is more than before."""
        for process in self.brokers.values():
            self.memory_bytes = max(self.memory_bytes, process.memory_full_info().pss)
            self.open_files = max(self.open_files, process.num_fds())

    def resources(self) -> Resources:
        return Resources(self.start_s, self.memory_bytes, self.open_files)

    @contextlib.contextmanager
    def topic(self, load: Load, fill_bytes: int = FILL_BYTES) -> Iterator[str]:
        """A topic for the load, filled if it is to be read. Afterwards it is deleted, and so are its files. Raises BenchError."""
        configs = {"min.insync.replicas": str(min(2, load.replication_factor))}
        with bench_topics(load, self.target, fill_bytes, configs) as (name,):
            if load.kind == "produce":
                # One record for each partition, acknowledged by all: from then on its followers fetch.
                fill(self.target, name, 1, 1, 1)
            yield name
        self._wait_removed(name)

    def _wait_removed(self, topic: str) -> None:
        """Waits until no broker has files of the topic, so that the disk is not busy with them. Gives up after REMOVAL_TIMEOUT_S."""
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        while any(any(data.glob(f"{topic}-*")) for data in self.data) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def leader_of(cluster: RunningCluster, topic: str) -> int:
    """The broker that leads partition 0."""
    admin = AdminClient({"bootstrap.servers": cluster.target.bootstrap_server})
    leader: int = admin.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].partitions[0].leader
    return leader


@contextlib.contextmanager
def running_ottla(
    directory: Path, is_compiled: bool | None = None, name: str = OURS, settings: Mapping[str, str] = NO_SETTINGS
) -> Iterator[RunningCluster]:
    """Ours. `is_compiled`: which form the brokers run; None: the one that is there. `settings`: further ones. Raises ClusterError."""
    cluster = LocalCluster(directory)
    with chosen_form(is_compiled):
        try:
            cluster.create(BROKERS, overrides={**SETTINGS, **WITHOUT_FAULTS, **settings})
            forks.end_owned()  # so that each round has a whole start
            began = time.perf_counter()
            cluster.start()
            start_s = time.perf_counter() - began
            processes = {}
            for broker in cluster.broker_ids:
                pid = cluster.pid(broker)
                assert pid is not None
                processes[broker] = psutil.Process(pid)
            data = [path for broker in cluster.broker_ids for path in cluster.log_directories(broker)]
            yield RunningCluster(name, Target(cluster.bootstrap_servers), processes, data, start_s)
        finally:
            cluster.destroy()


@contextlib.contextmanager
def running_peer(directory: Path, jars: KafkaJars) -> Iterator[RunningCluster]:
    """Kafka, with the JVM options of its own start scripts. Raises ClusterError."""
    began = time.perf_counter()
    with running.running_kafka(
        directory, jars, BROKERS, {**SETTINGS, **ONLY_KAFKA},
        options=running.AS_SHIPPED, zookeeper_options=running.ZOOKEEPER_AS_SHIPPED,
    ) as kafka:  # fmt: skip
        processes = {broker: psutil.Process(pid) for broker, pid in kafka.pids.items()}
        data = [directory / f"broker-{broker}" / "data" for broker in kafka.pids]
        addresses = ",".join(kafka.addresses.values())
        yield RunningCluster(KAFKA, Target(addresses), processes, data, time.perf_counter() - began)


@contextlib.contextmanager
def chosen_form(is_compiled: bool | None) -> Iterator[str]:
    """Brokers that start now run compiled, or as plain Python; None: as they are. Yields the form in words.

    Raises ClusterError if the compiled form is wanted and not there.
    """
    before = os.environ.get(FORM_SWITCH)
    if is_compiled is not None:
        os.environ[FORM_SWITCH] = "1" if is_compiled else "0"
    try:
        command = [sys.executable, "-m", "broker", "--version"]
        form = subprocess.run(command, cwd=SOURCE_ROOT, capture_output=True, text=True, check=False).stdout.strip()
        if is_compiled and form.startswith(PLAIN):
            raise ClusterError(f"there is no compiled form: {form}")
        yield form
    finally:
        if before is None:
            os.environ.pop(FORM_SWITCH, None)
        else:
            os.environ[FORM_SWITCH] = before
