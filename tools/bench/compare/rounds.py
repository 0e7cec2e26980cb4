"""The rounds of a comparison. The clusters run one after the other, never at once; each round has the other order than the one before.

A cluster is started anew in each round. It gets the same load before each row, not counted, so that caches are warm and a JVM has
compiled what the row needs; and once, after its start, a longer one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tools.bench.closed_loop.load import Load
from tools.bench.closed_loop.measurement import BenchError
from tools.bench.closed_loop.topic_load import measure
from tools.bench.compare import perf_tools
from tools.bench.compare.clusters import KAFKA, PLAIN, RunningCluster, chosen_form, running_ottla, running_peer
from tools.bench.compare.results import Comparison, Figure
from tools.bench.compare.rows import MIB, PerfTool, Row, chosen
from tools.bench.real_kafka.jars import KafkaJars
from tools.failures import AdminError

FIRST_WARM_UP, FIRST_WARM_UP_MIN_S = 4, 4.0
"""The warm-up after a start: so many times that of a row, and at least so many seconds."""
FIRST_ROWS = chosen(["produce-20x1-100b", "all-20x1-100b"])
FILL_BYTES = {"raw": 256 * MIB, "librdkafka": 512 * MIB}
"""Bytes in a topic that is read. librdkafka gets more, because it takes longer to start again at the beginning."""
PERF_WARM_UP_RECORDS_PER_S = 80_000
PERF_LONGER = 1.2
"""A run of ProducerPerformance is planned with the rate of its warm-up, which is lower than its own."""
PERF_CONSUMED_BYTES_PER_S = 60_000_000

Say = Callable[[str], None]
"""Takes what is measured next; each call is a step of the progress."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """`count` rounds of all `rows`. In each, a row counts for `seconds` after its warm-up.

    `forms`: our clusters, each with what `running_ottla` takes as `is_compiled`.
    """

    rows: Sequence[Row]
    count: int
    seconds: float
    warm_up_s: float
    forms: Mapping[str, bool | None]

    @property
    def steps(self) -> int:
        """How many times `run` calls `say`."""
        return self.count * (1 + len(self.forms)) * (len(self.rows) + 1)


def run(directory: Path, jars: KafkaJars, rounds: Rounds, say: Say) -> Comparison:
    """All figures. Raises ClusterError and BenchError."""
    comparison = Comparison(rounds.rows, KAFKA, _machine(jars, rounds))
    starts: list[Callable[[Path], AbstractContextManager[RunningCluster]]] = [
        partial(running_peer, jars=jars),
        *(partial(running_ottla, name=name, is_compiled=form) for name, form in rounds.forms.items()),
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
                measure(row.load, self._cluster.target, [topic], seconds)

    def figure(self, row: Row) -> Figure:
        """Measures the row once."""
        if isinstance(row.load, PerfTool):
            return self._perf_produce(row.load) if row.load.kind == "produce" else self._perf_consume(row.load)
        with self._cluster.topic(row.load, FILL_BYTES[row.load.client]) as topic:
            os.sync()  # what was written before does not disturb this row
            measure(row.load, self._cluster.target, [topic], self._warm_up_s)
            before = self._cluster.cpu_s()
            found = measure(row.load, self._cluster.target, [topic], self._seconds)
            cpu_s = self._cluster.cpu_s() - before
        # The client of librdkafka measures its own calls when it consumes, which says nothing of the brokers.
        p99_ms = None if row.load.client == "librdkafka" and row.load.kind == "consume" else found.p99_ms
        rate = {"requests/s": found.requests, "records/s": found.records, "MB/s": found.bytes / 1e6}[row.unit]
        return Figure(rate / found.seconds, p99_ms, cpu_s / found.bytes * 1e6 if found.bytes else None)

    def _perf_produce(self, tool: PerfTool) -> Figure:
        servers = self._cluster.target.bootstrap_server
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
        servers = self._cluster.target.bootstrap_server
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


def _machine(jars: KafkaJars, rounds: Rounds) -> dict[str, str]:
    """What a reader must know. Raises ClusterError if a form is not there."""
    load_1_min = os.getloadavg()[0]
    forms = {}
    for name, is_compiled in rounds.forms.items():
        with chosen_form(is_compiled) as form:
            forms[name] = PLAIN if is_compiled is False else form
    return {
        **forms,
        KAFKA: f"{jars.version}, JVM options of its start scripts",
        "machine": f"{os.cpu_count()} processors, {psutil.virtual_memory().total / MIB / 1024:.0f} GiB, Linux {platform.release()}",
        "python": platform.python_version(),
        "rounds": f"{rounds.count} of {rounds.seconds:g} s for each row",
        "load average before": f"{load_1_min:.2f}",
    }
