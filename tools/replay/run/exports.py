"""The figures of a replay for other programs: HdrHistogram's text, CSV, and Prometheus' text while the replay runs (RPL-3)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow.compute
import pyarrow.parquet
from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tools.private_files import write_anew
from tools.replay.run.control import ControlServer
from tools.replay.run.histograms import milliseconds
from tools.replay.run.plan import OutputDirectory

HGRM_HEADER = f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}\n\n"
COUNTERS = {
    "sent": "operations sent",
    "acknowledged": "batches acknowledged",
    "received": "records fetched",
    "failed": "operations that failed",
    "bytes": "bytes acknowledged and fetched",
}
"""Field of Progress -> help."""


def write_exports(output: OutputDirectory, analysis: dict[str, Any]) -> None:
    """Writes `over_time.csv`, and for each operation its latencies as HdrHistogram's percentile distribution, in ms."""
    text = io.StringIO()
    rows: list[dict[str, Any]] = analysis["over_time"]
    writer = csv.DictWriter(text, rows[0].keys() if rows else ())
    writer.writeheader()
    writer.writerows(rows)
    write_anew(output.over_time, text.getvalue())
    found = pyarrow.parquet.read_table(output.latencies)
    for op, path in output.distributions.items():
        mine = (
            found.filter(pyarrow.compute.equal(found["op"], op)).group_by("bucket").aggregate([("operations", "sum")])
        )
        mine = mine.sort_by("bucket")
        counts = mine["operations_sum"].to_numpy()
        write_anew(
            path, "".join(hgrm(mine["bucket"].to_numpy(), counts, analysis["latency_ms"][op]["scheduled"]["max"]))
        )


def hgrm(buckets: Any, counts: Any, longest_ms: float | None) -> Iterator[str]:
    """The lines of a percentile distribution, as `HdrHistogram.outputPercentileDistribution` writes it. `buckets`: rising.

    `longest_ms`: the exact maximum, if it is known.
    """
    yield HGRM_HEADER
    if not len(buckets):
        return
    values, sums = milliseconds(buckets.astype(numpy.float64)), numpy.cumsum(counts)
    values[-1] = values[-1] if longest_ms is None else longest_ms
    total = int(sums[-1])
    for value, up_to in zip(values, sums, strict=True):
        left = 1 - up_to / total
        rarity = f"{1 / left:14.2f}" if left > 0 else ""
        yield f"{value:12.3f} {up_to / total:14.12f} {up_to:10} {rarity}".rstrip() + "\n"
    mean = float((values * counts).sum() / total)
    deviation = float(numpy.sqrt((counts * (values - mean) ** 2).sum() / total))
    yield f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]\n"
    yield f"#[Max     = {values[-1]:12.3f}, Total count    = {total:12}]\n"
    yield f"#[Buckets = {len(values):12}, SubBuckets     = {1:12}]\n"


class LiveMetrics(Collector):
    """The progress of a replay in Prometheus' text format, in a file that is replaced whole."""

    def __init__(self, path: Path, control: ControlServer) -> None:
        self._path = path
        self._control = control
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Sequence[Metric]:
        totals = self._control.totals()
        counters = [
            CounterMetricFamily(f"ottla_replay_{name}", f"{words[0].upper()}{words[1:]}.", getattr(totals, name))
            for name, words in COUNTERS.items()
        ]
        unanswered = GaugeMetricFamily("ottla_replay_unanswered", "Operations without an answer.", totals.unanswered)
        late = GaugeMetricFamily("ottla_replay_late_seconds", "How late the last operation left.", totals.late_ns / 1e9)
        return [*counters, unanswered, late]

    def write(self) -> None:
        """Raises OSError."""
        write_to_textfile(str(self._path), self._registry)
