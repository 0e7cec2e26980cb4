"""Compares two runs: which differences are more than noise.

Intervals are 95 % bootstrap confidence intervals. Neighbouring intervals of a run are alike, so blocks of them are drawn, around the end
(circular block bootstrap), with as many intervals as the run has; the histograms of the latencies are drawn with them. If both runs
replay the same load, they use the same draws, so that what the trace itself varies is no noise. A metric *differs* if the interval of the
relative difference excludes 0, and the change is above the threshold and above the metric's floor.

Counts of wrong records (lost, duplicated ...) are no samples: any difference differs. An outage is one event without an interval: it
differs above the threshold and its floor, because the moment of a fault between two heartbeats decides so much.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pyarrow.parquet

from tools.replay.run.histograms import milliseconds, quantiles
from tools.replay.run.plan import OutputDirectory, Plan, ReplayError

RESAMPLES = 1000
CONFIDENCE = (0.025, 0.975)
INTERVALS_MIN = 5
"""A run with fewer intervals has no confidence intervals."""
SEED = 14
LATENCIES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
LATENCY_FLOOR_MS = 0.1
OUTAGE_FLOOR_S = 0.5
RECORD_FAULTS = ("lost", "duplicated", "reordered", "corrupted", "unseen", "deleted")
LOWER, HIGHER = "lower", "higher"


@dataclass(frozen=True, slots=True)
class Run:
    """An analysed run."""

    directory: Path
    plan: Plan
    analysis: dict[str, Any]
    verdict: dict[str, Any]
    latencies: dict[str, Any]
    """Operation -> histograms, as an array (intervals x buckets)."""
    values_ms: Any
    """The latency of each bucket."""

    @property
    def load(self) -> tuple[Any, ...]:
        """Runs with the same load replay the same operations at the same times."""
        plan = self.plan
        size = (plan.trace_rows, plan.trace_seconds, plan.clients, plan.bytes)
        return (*size, tuple(plan.speeds), plan.step_s, self.analysis["interval_s"])


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of both runs. `draws`: its values in the resamples, for each run, or None."""

    name: str
    unit: str
    better: str
    values: tuple[float | None, float | None]
    draws: tuple[Any, Any] | None = None
    floor: float = 0.0
    """A smaller difference is none."""
    is_exact: bool = False
    """Any difference differs."""
    is_event: bool = False
    """There are no intervals; a difference above the threshold and the floor differs."""


def read_run(directory: Path) -> Run:
    """An analysed run. Raises ReplayError if a file is missing or damaged."""
    output = OutputDirectory(directory)
    try:
        plan, analysis = output.read_plan(), json.loads(output.analysis.read_text())
        verdict = json.loads(output.verdict.read_text()) if output.verdict.exists() else {}
        table = pyarrow.parquet.read_table(output.latencies)
    except (OSError, ValueError, TypeError, pyarrow.ArrowException) as problem:
        raise ReplayError(f"{directory} has no analysis that can be read: {problem}") from None
    buckets = table["bucket"].to_numpy()
    lowest, highest = (int(buckets.min()), int(buckets.max())) if len(buckets) else (0, 0)
    ops = numpy.array(table["op"].to_pylist(), dtype=object)
    latencies = {}
    for op in ("produce", "fetch"):
        counts = numpy.zeros((len(analysis["over_time"]), highest - lowest + 1))
        mine = ops == op
        numpy.add.at(
            counts,
            (table["interval"].to_numpy()[mine], buckets[mine] - lowest),
            table["operations"].to_numpy()[mine],
        )
        latencies[op] = counts
    return Run(directory, plan, analysis, verdict, latencies, milliseconds(numpy.arange(lowest, highest + 1.0)))


def compare(first: Run, second: Run, threshold: float) -> dict[str, Any]:
    """The content of `comparison.json`. `threshold`: a relative change, such as 0.05."""
    runs = (first, second)
    return {
        "runs": [run_facts(run) for run in runs],
        "rows": [row_of(metric, threshold) for metric in metrics(runs)],
        "over_time": [run.analysis["over_time"] for run in runs],
        "distribution": [run.analysis["distribution"] for run in runs],
        "faults": [run.analysis["faults"] for run in runs],
        "verdicts": [run.verdict for run in runs],
    }


def run_facts(run: Run) -> dict[str, Any]:
    return {
        "name": run.directory.resolve().name,
        "directory": str(run.directory),
        "bootstrap_servers": run.plan.bootstrap_servers,
        "speeds": run.plan.speeds,
        "operations": run.analysis["totals"]["operations"],
        "seconds": run.analysis["seconds"],
    }


def metrics(runs: tuple[Run, Run]) -> list[Metric]:
    """All that is compared."""
    weights = draws_of(runs)
    found = []
    for name, unit, column, op in (
        ("produced", "records/s", "records", "produce"),
        ("produced", "bytes/s", "bytes", "produce"),
        ("fetched", "records/s", "fetched_records", "fetch"),
        ("fetched", "bytes/s", "fetched_bytes", "fetch"),
    ):
        if any(run.analysis["totals"][op]["operations"] for run in runs):
            found.append(Metric(name, unit, HIGHER, *per_second(runs, weights, column)))
    for op in ("produce", "fetch"):
        for name, point in LATENCIES.items():
            values = tuple(percentile(run, op, point) for run in runs)
            if any(value is not None for value in values):
                drawn = drawn_percentiles(runs, weights, op, point)
                found.append(
                    Metric(f"{op} latency {name}", "ms", LOWER, (values[0], values[1]), drawn, LATENCY_FLOOR_MS)
                )
    longest = [max((row["seconds"] for row in run.analysis["outages"]), default=0.0) for run in runs]
    found.append(Metric("longest outage", "s", LOWER, (longest[0], longest[1]), floor=OUTAGE_FLOOR_S, is_event=True))
    found.append(Metric("failed produces", "operations/s", LOWER, *per_second(runs, weights, "failed")))
    left_out = [float(run.analysis["totals"]["not_done"]) for run in runs]
    found.append(Metric("not done", "operations", LOWER, (left_out[0], left_out[1]), is_exact=True))
    for name in RECORD_FAULTS:
        wrong = [run.verdict.get(name, 0) for run in runs]
        unit = "batches" if name == "reordered" else "records"
        found.append(Metric(name, unit, LOWER, (wrong[0], wrong[1]), is_exact=True))
    return found


def row_of(metric: Metric, threshold: float) -> dict[str, Any]:
    """The row of a metric, judged."""
    a, b = metric.values
    row: dict[str, Any] = {"metric": metric.name, "unit": metric.unit, "better": metric.better, "a": a, "b": b}
    change = None if a is None or b is None or not a else b / a - 1
    intervals = [None, None] if metric.draws is None else [interval(draws) for draws in metric.draws]
    differs = False
    if a is not None and b is not None and a != b:
        is_above = abs(b - a) > metric.floor and (change is None or abs(change) > threshold)
        if metric.is_exact:
            differs = True
        elif metric.draws is not None:
            bounds = interval(metric.draws[1] - metric.draws[0])
            differs = is_above and bounds is not None and (bounds[0] > 0 or bounds[1] < 0)
        else:
            differs = is_above and metric.is_event
    is_better = b is not None and a is not None and ((b < a) if metric.better == LOWER else (b > a))
    return row | {
        "change": change,
        "a_interval": intervals[0],
        "b_interval": intervals[1],
        "differs": differs,
        "worse": differs and not is_better,
    }


def interval(draws: Any) -> list[float] | None:
    """The confidence interval; None if the metric is unknown in a resample."""
    if not len(draws) or numpy.isnan(draws).any():
        return None
    return [float(bound) for bound in numpy.quantile(draws, CONFIDENCE)]


def draws_of(runs: tuple[Run, Run]) -> tuple[Any, Any] | None:
    """For each run, how often each interval is in each resample: RESAMPLES x intervals. None if a run is too short."""
    counts = [len(run.analysis["over_time"]) for run in runs]
    if min(counts) < INTERVALS_MIN:
        return None
    if runs[0].load == runs[1].load:
        # What one run has beyond the other's end is drawn as often as the interval at that place.
        weights = block_weights(max(counts), numpy.random.default_rng(SEED))
        return weights[:, : counts[0]], weights[:, : counts[1]]
    random = numpy.random.default_rng(SEED)
    return block_weights(counts[0], random), block_weights(counts[1], random)


def block_weights(count: int, random: numpy.random.Generator) -> Any:
    """Resamples of `count` intervals in circular blocks: how often each is drawn, RESAMPLES x count."""
    length = max(round(count ** (1 / 3)), 1)
    starts = random.integers(0, count, (RESAMPLES, -(-count // length)))
    drawn = ((starts[:, :, None] + numpy.arange(length)) % count).reshape(RESAMPLES, -1)[:, :count]
    weights = numpy.zeros((RESAMPLES, count))
    numpy.add.at(weights, (numpy.arange(RESAMPLES)[:, None], drawn), 1)
    return weights


def per_second(
    runs: Sequence[Run], weights: tuple[Any, Any] | None, column: str
) -> tuple[tuple[float, float], tuple[Any, Any] | None]:
    """A column of `over_time` as a rate: its value for both runs, and its draws."""
    values, drawn = [], []
    for number, run in enumerate(runs):
        over, length = run.analysis["over_time"], run.analysis["interval_s"]
        counts = numpy.array([row[column] for row in over], dtype=numpy.float64)
        seconds = numpy.minimum(length, run.analysis["seconds"] - numpy.array([row["second"] for row in over]))
        seconds = numpy.maximum(seconds, 1e-9)
        values.append(float(counts.sum() / seconds.sum()))
        if weights is not None:
            drawn.append(weights[number] @ counts / numpy.maximum(weights[number] @ seconds, 1e-9))
    return (values[0], values[1]), None if weights is None else (drawn[0], drawn[1])


def percentile(run: Run, op: str, point: float) -> float | None:
    found = quantiles(run.latencies[op].sum(axis=0, keepdims=True), run.values_ms, [point])[0, 0]
    return None if numpy.isnan(found) else float(found)


def drawn_percentiles(
    runs: Sequence[Run], weights: tuple[Any, Any] | None, op: str, point: float
) -> tuple[Any, Any] | None:
    if weights is None:
        return None
    drawn = [
        quantiles(weights[number] @ run.latencies[op], run.values_ms, [point])[:, 0] for number, run in enumerate(runs)
    ]
    return drawn[0], drawn[1]
