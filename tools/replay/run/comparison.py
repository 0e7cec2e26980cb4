"""Compares two sides, A and B, each of one or more runs of the same load (RPL-3).

A figure is one that `--assert` knows; each run has its own, and a side has the mean of its runs'. A figure *differs* if a permutation
test of the runs says so, corrected for all figures that are looked at (`permutations`), and if the change is above the threshold and the
figure's floor. Runs that are too few for that say nothing: neither better nor worse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from tools.pages.checks import FAILED, NOT_VERIFIED, Check
from tools.pages.units import percent, quantity
from tools.replay.checks import METRICS, generator_limit, run_checks
from tools.replay.places import Place, whole
from tools.replay.run.permutations import LEVEL, adjusted, can_tell, deals, interval
from tools.replay.run.plan import OutputDirectory, Plan, ReplayError

UNITS = {"time": "ms", "share": "%", "rate": "records/s"}
"""Kind of a metric -> the unit of its figures here."""
LATENCY_FLOOR_MS = 0.1
COMPARED = re.compile(r"(produce|fetch|end_to_end)\.(p50|p99|p999|rate)|errors|outage\.longest")
"""What is compared if --fail-if-worse names nothing. Fewer figures leave more for each to show."""


@dataclass(frozen=True, slots=True)
class Run:
    """An analysed run."""

    place: Place
    plan: Plan
    analysis: dict[str, Any]
    verdict: dict[str, Any] | None

    @property
    def name(self) -> str:
        return whole(self.place).name


@dataclass(frozen=True, slots=True)
class WorseLimit:
    """A condition of --fail-if-worse: this metric may be worse by this share."""

    text: str
    metric: str
    share: float


def parse_worse_limit(text: str) -> WorseLimit:
    """`produce.p99:10%`. Raises ValueError."""
    found = re.fullmatch(r"\s*([a-z_.0-9]+)\s*:\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if found is None:
        raise ValueError(f"{text!r} is not METRIC:PERCENT, such as produce.p99:10%")
    if found[1] not in METRICS:
        raise ValueError(f"{text!r}: there is no {found[1]!r}; there are {', '.join(METRICS)}")
    return WorseLimit(text.strip(), found[1], float(found[2]) / 100)


def read_run(output: OutputDirectory) -> Run:
    """An analysed run. Raises ReplayError if a file is missing or damaged."""
    try:
        plan, analysis = output.read_plan(), json.loads(output.analysis.read_text())
        verdict = json.loads(output.verdict.read_text()) if output.verdict.exists() else None
    except (OSError, ValueError, TypeError) as problem:
        raise ReplayError(f"{output.place} has no analysis that can be read: {problem}") from None
    return Run(output.place, plan, analysis, verdict)


def unlike(runs: Sequence[Run]) -> list[str]:
    """How the loads of the runs differ, in words."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for name, value in run.plan.load.items():
            found.setdefault(name, {}).setdefault(str(value), []).append(str(run.place))
    return [
        f"{name}: " + "; ".join(f"{value} in {', '.join(directories)}" for value, directories in values.items())
        for name, values in found.items()
        if len(values) > 1
    ]


def compare(a: Sequence[Run], b: Sequence[Run], threshold: float, limits: Sequence[WorseLimit] = ()) -> dict[str, Any]:
    """The content of `comparison.json`. `threshold`: a smaller relative change, such as 0.05, is none. `limits`: what --fail-if-worse
    asks for; nothing else is tested then."""
    runs = [*a, *b]
    names = {limit.metric for limit in limits} or {name for name in METRICS if COMPARED.fullmatch(name)}
    values = {name: [METRICS[name][1](run.analysis) for run in runs] for name in METRICS if name in names}
    rows = [row_of(name, of, len(a)) for name, of in values.items() if any(value is not None for value in of)]
    judge(rows, len(a), len(b), 0.0 if limits else threshold)
    compared = {
        "runs": [run_facts(side, run) for side, of in (("A", a), ("B", b)) for run in of],
        "rows": rows,
        "unlike": unlike(runs),
        "over_time": [run.analysis["over_time"] for run in runs],
        "distribution": [run.analysis["distribution"] for run in runs],
        "faults": [run.analysis["faults"] for run in runs],
    }
    checks = [side_check("A", a), side_check("B", b), enough_runs(len(a), len(b)), *worse_checks(rows, limits)]
    return compared | {"checks": [asdict(check) for check in checks]}


def run_facts(side: str, run: Run) -> dict[str, Any]:
    return {
        "side": side,
        "name": run.name,
        "directory": str(run.place),
        "bootstrap_servers": run.plan.bootstrap_servers,
        "speeds": run.plan.speeds,
        "operations": run.analysis["totals"]["operations"],
        "seconds": run.analysis["seconds"],
    }


def row_of(name: str, values: Sequence[float | None], of_a: int) -> dict[str, Any]:
    """The row of a figure, not judged yet. `a`, `b`: means; None if the figure of a run is unknown. `interval` of the relative change."""
    kind = METRICS[name][0]
    shown = [None if value is None else value * (100 if kind == "share" else 1) for value in values]
    a, b = mean(shown[:of_a]), mean(shown[of_a:])
    return {
        "metric": name,
        "unit": UNITS[kind],
        "better": "higher" if kind == "rate" else "lower",
        **{"a": a, "b": b, "a_runs": shown[:of_a], "b_runs": shown[of_a:]},
        "change": b / a - 1 if a and b is not None else None,
        **{"interval": None, "p": None, "differs": False, "worse": False},
    }


def mean(values: Sequence[float | None]) -> float | None:
    """None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def judge(rows: Sequence[dict[str, Any]], of_a: int, of_b: int, threshold: float) -> None:
    """Fills in what the runs tell of each row, if they are enough."""
    known = [row for row in rows if row["a"] is not None and row["b"] is not None]
    if not known or not can_tell(of_a, of_b):
        return
    values = numpy.array([[*row["a_runs"], *row["b_runs"]] for row in known], dtype=numpy.float64)
    dealt = deals(of_a, of_b)
    for row, p, own in zip(known, adjusted(values, dealt), values, strict=True):
        bounds = interval(own, dealt)
        if bounds is not None and row["a"]:
            row["interval"] = [bound / row["a"] for bound in bounds]
        change, floor = row["change"], LATENCY_FLOOR_MS if row["unit"] == "ms" else 0.0
        is_large = abs(row["b"] - row["a"]) > floor and (change is None or abs(change) > threshold)
        row["p"] = float(p)
        row["differs"] = bool(p <= LEVEL and is_large)
        row["worse"] = row["differs"] and (row["b"] > row["a"]) == (row["better"] == "lower")


def side_check(side: str, runs: Sequence[Run]) -> Check:
    """Whether each run of a side was a replay that delivered, was verified, and was not limited by its generator."""
    found: dict[str, list[str]] = {FAILED: [], NOT_VERIFIED: []}
    for run in runs:
        gates = (run.analysis.get("asked") or {}).get("assert", ())
        for check in run_checks(run.analysis, run.verdict):
            if check.name not in gates and check.result in found:
                found[check.result].append(f"{run.name}: {check.reason}")
        if limit := generator_limit(run.analysis):
            found[NOT_VERIFIED].append(f"{run.name}: {limit}")
    problem, unverified = ("; ".join(found[result]) or None for result in (FAILED, NOT_VERIFIED))
    return Check(f"{side} delivered", problem, unverified=unverified)


def enough_runs(a: int, b: int) -> Check:
    if can_tell(a, b):
        return Check("enough runs")
    words = "one run each" if a == b == 1 else f"{a} and {b} runs"
    return Check("enough runs", unverified=f"{words}: no statement; replay both sides with --repeat 5")


def worse_checks(rows: Sequence[Mapping[str, Any]], limits: Sequence[WorseLimit]) -> list[Check]:
    """A check for each row, or for each limit."""
    limits = limits or [WorseLimit(row["metric"], row["metric"], 0.0) for row in rows]
    found, checks = {row["metric"]: row for row in rows}, []
    for limit in limits:
        row = found.get(limit.metric)
        if row is None or row["a"] is None or row["b"] is None:
            checks.append(Check(limit.text, unverified=f"{limit.metric} was not measured in every run"))
            continue
        is_above = row["change"] is None or abs(row["change"]) > limit.share
        checks.append(Check(limit.text, became(row) if row["worse"] and is_above else None))
    return checks


def became(row: Mapping[str, Any]) -> str:
    a, b = (quantity(row[side], row["unit"]) for side in ("a", "b"))
    return f"{a} became {b} ({percent(row['change'])})"
