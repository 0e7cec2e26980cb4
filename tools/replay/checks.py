"""What must hold of a replay: one list of checks. Exit code, last lines, report and the files for CI are made from it (RPL-3).

A check has passed, has failed, or could not be verified. The exit code of the replay is 1 if one has failed, else 2 if one could not be
verified, else 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tools.pages.checks import FAILED, NOT_VERIFIED, PASSED, Check
from tools.pages.units import count, milliseconds

DELIVERY = {
    "lost": "acknowledged records are not in the log",
    "duplicated": "records are in the log more than once",
    "reordered": "records are behind a later record of their producer",
    "corrupted": "records have another content than was sent",
    "elsewhere": "batches have another offset than was acknowledged",
    "unseen": "acknowledged records could not be read back",
    "deleted": "acknowledged records were deleted since, by retention or a DeleteRecords",
    "read_aborted": "records of aborted transactions reached readers of committed records",
}
"""Count in the verdict -> what it counts, in words."""
FORBIDDEN = ("lost", "duplicated", "reordered")
"""What --forbid makes a failure also for batches without acks=all."""
UNKNOWN = ("unseen", "deleted")
"""Counts of records that can no longer be looked up, so nobody knows whether they had been lost."""
EVIDENCE = {"unseen": "unread"}
"""Count in the verdict -> key of its evidence, where it has another name."""
NOT_READ = "the records were not read back"

EXIT_CODES = {FAILED: 1, NOT_VERIFIED: 2}


def run_checks(analysis: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> list[Check]:
    """Delivery, then errors, then operations that were not done, then what --assert asks for."""
    totals = analysis["totals"]
    produce, not_done = totals["produce"], totals["not_done"]
    forbidden = _asked(analysis).get("forbid", ())
    checks = [_delivered(name, verdict, name in forbidden) for name in DELIVERY]
    if verdict is not None:
        # With acks=0 nothing is acknowledged, and nothing is owed.
        is_nothing = produce["operations"] > 0 and not verdict["acknowledged"] and not produce["acknowledged"]
        is_open = bool(verdict.get("left_open"))  # an older ottla did not count it
        checks.append(
            Check(
                "acknowledged",
                "nothing was acknowledged" if is_nothing else None,
                unverified=f"no record was acknowledged: {count(verdict['left_open'])} are in transactions without an end"
                if is_open
                else None,
            )
        )
    checks.append(_errors(analysis))
    if analysis["groups"]:
        checks.append(_read_by_groups(analysis))
    undone = [task for task in analysis["tasks"] if is_incomplete(task)] if not_done else ()
    words = f"{count(not_done)} operations were not done" if not_done else None
    checks.append(Check("not done", evidence=undone, unverified=words))
    checks.append(Check("whole", analysis.get("problem") or None))
    return checks + [parse_gate(text).check(analysis) for text in _asked(analysis)["assert"]]


def generator_limit(analysis: Mapping[str, Any]) -> str | None:
    """Why the run says little about the cluster; None if the generator kept up. An analysis that an older ottla made does not know."""
    generator = analysis.get("generator")
    if generator is None or not generator["is_limited"]:
        return None
    words = f"the generator was the limit in {count(generator['limited'])} of {count(generator['intervals'])} intervals"
    if late := generator["late_ms"]["p99"]:  # none in a closed loop
        words += f", and made 1 % of the operations {milliseconds(late)} late or more"
    return f"generator limited: {words}"


def exit_code(checks: Sequence[Check]) -> int:
    """0: all that was asked for holds, and was verified."""
    results = {check.result for check in checks}
    return next((code for result, code in EXIT_CODES.items() if result in results), 0)


def outcome_lines(checks: Sequence[Check], limit: str | None = None) -> list[str]:
    """The last lines of a replay: what has failed and what could not be verified, or that all checks passed.

    `limit`: from `generator_limit`.
    """
    lines = [
        f"  {result.upper():<12}  {check.name}: {check.reason}"
        for result in EXIT_CODES
        for check in checks
        if check.result == result
    ]
    passed = f"  {PASSED.upper():<12}  all {len(checks)} checks" if limit is None else f"  LIMITED       {limit}"
    return lines or [passed]


def undelivered(verdict: Mapping[str, Any] | None) -> list[str]:
    """The counts of a verdict that are not zero, in words."""
    return [f"{count(verdict[name])} {name}" for name in DELIVERY if verdict.get(name)] if verdict else []


def is_incomplete(task: Mapping[str, Any]) -> bool:
    """Whether operations of a task were not done; a task that was lost does not say how many it had."""
    return task["expected"] is None or bool(task["done"] < task["expected"])


def accepted(verdict: Mapping[str, Any] | None) -> Mapping[str, int]:
    """What happened to batches without acks=all: name -> count, if it is not 0. Such a client accepts it; `--forbid` does not.

    A verdict of an older ottla counts them with the others.
    """
    counts: Mapping[str, int] = (verdict or {}).get("without_acks_all") or {}
    return {name: number for name, number in counts.items() if number}


def _delivered(name: str, verdict: Mapping[str, Any] | None, is_forbidden: bool) -> Check:
    if verdict is None:
        return Check(name, unverified=NOT_READ)
    also = accepted(verdict).get(name, 0) if is_forbidden else 0
    wrong = verdict.get(name, 0) + also  # a verdict of an older ottla has no `deleted`
    if not wrong:
        return Check(name)
    words, evidence = f"{count(wrong)} {DELIVERY[name]}", verdict["evidence"].get(EVIDENCE.get(name, name), ())
    if also:
        words += f", {count(also)} of them without acks=all"
    if name in UNKNOWN:
        return Check(name, evidence=evidence, unverified=words)
    return Check(name, words, evidence)


def _errors(analysis: Mapping[str, Any]) -> Check:
    failed = _failed(analysis)
    asked = _asked(analysis)
    if asked["max_failed"] == NO_FAILURES and any(parse_gate(text).metric == "errors" for text in asked["assert"]):
        return Check("errors")  # --assert says how many
    allowed = parse_limit(asked["max_failed"])
    if not allowed.is_exceeded(failed, analysis["totals"]["operations"]):
        return Check("errors")
    most = f", most of them with: {analysis['errors'][0]['error']}" if analysis["errors"] else ""
    limit = "" if allowed.text == NO_FAILURES else f", more than --max-failed {allowed.text}"
    return Check("errors", f"{count(failed)} operations failed{limit}{most}", analysis["errors"])


def _read_by_groups(analysis: Mapping[str, Any]) -> Check:
    """No group has skipped a record between the first and the last that it read."""
    skipping = [group for group in analysis["groups"] if group.get("skipped")]  # an older ottla did not count it
    if not skipping:
        return Check("groups")
    words = f"{count(sum(group['skipped'] for group in skipping))} records were skipped by consumer groups"
    if analysis.get("problem"):  # what a lost task has read is not known
        return Check("groups", unverified=words, evidence=skipping)
    return Check("groups", words, skipping)


def _failed(analysis: Mapping[str, Any]) -> int:
    ends = (analysis.get("transactions") or {}).values()  # an older ottla had none
    of_ends = sum(found["failed"] for found in ends)
    return int(analysis["totals"]["produce"]["failed"] + analysis["totals"]["fetch"]["failed"] + of_ends)


def _asked(analysis: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the replay's own options ask for. An analysis that an older ottla made has none."""
    found: Mapping[str, Any] = analysis.get("asked") or {"max_failed": NO_FAILURES, "assert": []}
    return found


NO_FAILURES = "0"


@dataclass(frozen=True, slots=True)
class Limit:
    """Of operations that may fail: a number, or a share of all."""

    text: str
    number: float
    is_share: bool

    def is_exceeded(self, failed: int, operations: int) -> bool:
        return failed > (self.number * operations if self.is_share else self.number)


def parse_limit(text: str) -> Limit:
    """`10`, or `0.1%` of the operations. Raises ValueError."""
    found = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither a number of operations, such as 10, nor a share of them, such as 0.1%")
    limit = Limit(text.strip(), float(found[1] or float(found[2]) / 100), found[1] is None)
    if limit.is_share and limit.number > 1:
        raise ValueError(f"{text!r} is more than all operations")
    return limit


COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
)
TIMES = MappingProxyType({"us": 0.001, "ms": 1.0, "s": 1000.0})
"""Unit -> ms."""
UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {"time": TIMES, "share": MappingProxyType({"%": 0.01}), "rate": MappingProxyType({"/s": 1.0})}
)
OUTAGE_MS_MIN = 100
"""A partition without an answer for a shorter time is not out."""
POINTS = ("p50", "p90", "p95", "p99", "p999", "p9999", "max")


def _at(*path: str) -> Callable[[Mapping[str, Any]], float | None]:
    """What is there in an analysis; None if a part of it is missing or None."""

    def value(found: Any) -> float | None:
        for name in path:
            found = (found or {}).get(name)
        return None if found is None else float(found)

    return value


def _rate(op: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda analysis: (
        analysis["totals"][op]["records_per_second"] if analysis["totals"][op]["operations"] else None
    )


def _share_of_errors(analysis: Mapping[str, Any]) -> float | None:
    operations = analysis["totals"]["operations"]
    return _failed(analysis) / operations if operations else None


def _longest_outage_ms(analysis: Mapping[str, Any]) -> float | None:
    if not analysis["totals"]["produce"]["operations"]:
        return None
    return max((outage["seconds"] * 1000 for outage in analysis["outages"]), default=0.0)


METRICS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = MappingProxyType(
    {
        **{
            f"{op}.{point}": ("time", _at("latency_ms", op, "scheduled", point))
            for op in ("produce", "fetch")
            for point in POINTS
        },
        **{f"{op}.rate": ("rate", _rate(op)) for op in ("produce", "fetch")},
        **{f"end_to_end.{point}": ("time", _at("end_to_end", "ms", point)) for point in POINTS},
        **{f"lateness.{point}": ("time", _at("lateness_ms", point)) for point in POINTS},
        "errors": ("share", _share_of_errors),
        "outage.longest": ("time", _longest_outage_ms),
    }
)
"""Name -> its kind of unit, and its value in an analysis, in ms, as a share or per second; None if it was not measured."""
GATE = re.compile(r"\s*([a-z_.0-9]+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*(\S*)\s*")


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition of --assert, such as `produce.p99 < 50ms`."""

    text: str
    metric: str
    comparison: str
    limit: float

    def check(self, analysis: Mapping[str, Any]) -> Check:
        kind, value_of = METRICS[self.metric]
        value = value_of(analysis)
        if value is None:
            return Check(self.text, unverified=f"{self.metric} was not measured")
        limit = generator_limit(analysis)
        if limit is not None and kind == "time" and not self.metric.startswith("lateness."):
            return Check(self.text, unverified=f"{self.metric} is {shown(kind, value)}, {limit}")
        if COMPARISONS[self.comparison](value, self.limit):
            return Check(self.text)
        return Check(self.text, f"{self.metric} is {shown(kind, value)}")


def parse_gate(text: str) -> Gate:
    """METRIC, one of < <= > >=, a number and its unit. Raises ValueError."""
    found = GATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not METRIC < VALUE, such as produce.p99 < 50ms")
    metric, comparison, number, unit = found.groups()
    if metric not in METRICS:
        raise ValueError(f"{text!r}: there is no {metric!r}; there are {', '.join(METRICS)}")
    units = UNITS[METRICS[metric][0]]
    if unit not in units:
        raise ValueError(f"{text!r}: the unit of {metric} is {' or '.join(units)}")
    if metric == "outage.longest" and float(number) * units[unit] < OUTAGE_MS_MIN:
        raise ValueError(f"{text!r}: outages shorter than {OUTAGE_MS_MIN:g} ms are not measured")
    return Gate(" ".join(text.split()), metric, comparison, float(number) * units[unit])


def shown(kind: str, value: float) -> str:
    if kind == "share":
        return f"{value:.3%}"
    if kind == "rate":
        return f"{value:,.1f}/s"
    return milliseconds(value)
