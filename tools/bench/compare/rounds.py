"""The rounds of a comparison. The clusters run one after the other, never at once; each round has the other order than the one before.

A cluster is started anew in each round. It gets the same load before each row, not counted, so that caches are warm and a JVM has
compiled what the row needs; and once, after its start, a longer one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.bench.closed_loop.topic_load import BenchError, Load, Measurement, measure
from tools.bench.compare import perf_tools
from tools.bench.compare.clusters import KAFKA, RunningCluster, chosen_form, running_ottla, running_peer
from tools.bench.compare.floor import measure_floor, rate_of
from tools.bench.compare.results import OURS, Comparison, Figure
from tools.bench.compare.rows import MIB, PerfTool, Row, chosen
from tools.bench.real_kafka.jars import KafkaJars
from tools.failures import AdminError

FIRST_WARM_UP, FIRST_WARM_UP_MIN_S = 4, 4.0
"""The warm-up after a start: so many times that of a row, and at least so many seconds."""
FIRST_ROWS = chosen(["produce-20x1-100b", "all-20x1-100b"])
FILL_BYTES = {"raw": 256 * MIB, "librdkafka": 512 * MIB}
"""Bytes in a topic that is read. librdkafka gets more, because it takes longer to start again at the beginning."""
FLOOR_S = 1.0
FLOOR_WARM_UP_S = 0.3
PERF_WARM_UP_RECORDS_PER_S = 80_000
PERF_LONGER = 1.2
"""A run of ProducerPerformance is planned with the rate of its warm-up, which is lower than its own."""
PERF_CONSUMED_BYTES_PER_S = 60_000_000

Say = Callable[[str], None]
"""Takes what is measured next; each call is a step of the progress."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """`count` rounds of all `rows`. In each, a row counts for `seconds` after its warm-up. `is_compiled`: as for `running_ottla`."""

    rows: Sequence[Row]
    count: int
    seconds: float
    warm_up_s: float
    is_compiled: bool | None
    with_floor: bool

    @property
    def steps(self) -> int:
        """How many times `run` calls `say`."""
        floors = sum(isinstance(row.load, Load) for row in self.rows) if self.with_floor else 0
        return self.count * 2 * (len(self.rows) + 1) + floors


def run(directory: Path, jars: KafkaJars, rounds: Rounds, say: Say) -> Comparison:
    """All figures. Raises ClusterError and BenchError."""
    with chosen_form(rounds.is_compiled) as form:
        comparison = Comparison(rounds.rows, KAFKA, _machine(form, jars, rounds))
    starts: list[Callable[[Path], AbstractContextManager[RunningCluster]]] = [
        lambda home: running_peer(home, jars),
        lambda home: running_ottla(home, rounds.is_compiled),
    ]
    for number in range(rounds.count):
        for start in starts if number % 2 == 0 else starts[::-1]:
            with _emptied(directory / "cluster") as home:
                say(f"round {number + 1} of {rounds.count}: start")
                with start(home) as cluster:
                    one = ClusterRound(cluster, jars, rounds.seconds, rounds.warm_up_s)
                    one.warm_up()
                    for row in rounds.rows:
                        say(f"round {number + 1} of {rounds.count}: {cluster.name}: {row.title}")
                        try:
                            comparison.add(cluster.name, row, one.figure(row))
                        except AdminError as error:
                            raise BenchError(f"{cluster.name}: {row.title}: {error}") from None
                        cluster.look()
                    comparison.resources.setdefault(cluster.name, []).append(cluster.resources())
    if rounds.with_floor:
        for row in rounds.rows:
            if isinstance(row.load, Load):
                say(f"floor: {row.title}")
                floor = measure_floor(directory, row, FLOOR_S, FLOOR_WARM_UP_S)
                if floor is not None:
                    comparison.floors[row.key] = floor
    return comparison


class ClusterRound:
    """One round of one cluster."""

    def __init__(self, cluster: RunningCluster, jars: KafkaJars, seconds: float, warm_up_s: float) -> None:
        self._cluster = cluster
        self._jars = jars
        self._seconds = seconds
        self._warm_up_s = warm_up_s

    def warm_up(self) -> None:
        """Many small requests, with and without followers."""
        seconds = max(FIRST_WARM_UP * self._warm_up_s, FIRST_WARM_UP_MIN_S) / len(FIRST_ROWS)
        for row in FIRST_ROWS:
            assert isinstance(row.load, Load)
            with self._cluster.topic(row.load) as topic:
                self._measure(row.load, topic, seconds)

    def figure(self, row: Row) -> Figure:
        """Measures the row once."""
        if isinstance(row.load, PerfTool):
            return self._perf_produce(row.load) if row.load.kind == "produce" else self._perf_consume(row.load)
        with self._cluster.topic(row.load, FILL_BYTES[row.load.client]) as topic:
            os.sync()  # what was written before does not disturb this row
            self._measure(row.load, topic, self._warm_up_s)
            before = self._cluster.cpu_s()
            found = self._measure(row.load, topic, self._seconds)
            cpu_s = self._cluster.cpu_s() - before
        # The client of librdkafka measures its own calls when it consumes, which says nothing of the brokers.
        p99_ms = None if row.load.client == "librdkafka" and row.load.kind == "consume" else found.p99_ms
        return Figure(rate_of(row, found), p99_ms, cpu_s / found.bytes * 1e6 if found.bytes else None)

    def _measure(self, load: Load, topic: str, seconds: float) -> Measurement:
        return measure(load, self._cluster.bootstrap_servers, topic, seconds, 0.0)

    def _perf_produce(self, tool: PerfTool) -> Figure:
        servers = self._cluster.bootstrap_servers
        with self._cluster.topic(tool.as_load()) as topic:
            os.sync()
            count = max(1000, int(PERF_WARM_UP_RECORDS_PER_S * self._warm_up_s))
            warm = perf_tools.producer_performance(self._jars, servers, topic, count, tool.record_bytes)
            count = max(1000, int(warm.records_per_s * self._seconds * PERF_LONGER))
            before = self._cluster.cpu_s()
            found = perf_tools.producer_performance(self._jars, servers, topic, count, tool.record_bytes)
            cpu_s = self._cluster.cpu_s() - before
        return Figure(found.records_per_s, found.p99_ms, cpu_s / (found.records * tool.record_bytes) * 1e6)

    def _perf_consume(self, tool: PerfTool) -> Figure:
        """Reads the topic twice; the first time is the warm-up."""
        servers = self._cluster.bootstrap_servers
        size = int(PERF_CONSUMED_BYTES_PER_S * self._seconds)
        with self._cluster.topic(tool.as_load(), size) as topic:
            os.sync()
            count = size // tool.record_bytes
            perf_tools.consumer_performance(self._jars, servers, topic, count)
            before = self._cluster.cpu_s()
            found = perf_tools.consumer_performance(self._jars, servers, topic, count)
            cpu_s = self._cluster.cpu_s() - before
        return Figure(found.bytes_per_s / 1e6, None, cpu_s / found.bytes * 1e6)


@contextlib.contextmanager
def _emptied(directory: Path) -> Iterator[Path]:
    """A directory that does not exist before and after."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _machine(form: str, jars: KafkaJars, rounds: Rounds) -> dict[str, str]:
    load_1_min = os.getloadavg()[0]
    return {
        OURS: form,
        KAFKA: f"{jars.version}, JVM options of its start scripts",
        "machine": f"{os.cpu_count()} processors, {psutil.virtual_memory().total / MIB / 1024:.0f} GiB, Linux {platform.release()}",
        "python": platform.python_version(),
        "rounds": f"{rounds.count} of {rounds.seconds:g} s for each row",
        "load average before": f"{load_1_min:.2f}",
    }
