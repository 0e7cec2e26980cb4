"""The files that the pages are made from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.replay.traces.schema import TraceError

OF_ANALYSIS = (
    "began_ns", "seconds", "interval_s", "totals", "latency_ms", "lateness_ms", "loop", "generator", "end_to_end", "distribution",
    "over_time", "by_topic",
    "by_broker", "by_client", "by_partition", "series", "errors", "outages", "faults", "lag", "groups", "skew", "ramp", "knee", "tasks",
)  # fmt: skip
OF_VERDICT = (
    "acknowledged",
    "found",
    "lost",
    "duplicated",
    "reordered",
    "corrupted",
    "unseen",
    "elsewhere",
    "evidence",
)
OF_COMPARISON = ("runs", "rows", "unlike", "over_time", "distribution", "faults", "checks")


def read(path: Path, keys: Iterable[str], advice: str) -> dict[str, Any]:
    """The JSON object of a file. Raises TraceError if the file or one of its keys is missing; `advice` says what to do."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; {advice}") from None
    except OSError as problem:
        raise TraceError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise TraceError(f"{path} is not JSON: {problem}; {advice}") from None
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise TraceError(f"{path} has no {', '.join(missing)}; {advice}")
    return dict(value)


def read_analysis(directory: Path) -> dict[str, Any]:
    return read(directory / "analysis.json", OF_ANALYSIS, "analyse the run again")


def read_verdict(directory: Path) -> dict[str, Any] | None:
    """None if the run ended before its records were read back."""
    path = directory / "verdict.json"
    return read(path, OF_VERDICT, "read the records back again") if path.exists() else None


def read_plan(directory: Path) -> dict[str, Any]:
    return read(directory / "plan.json", ("trace", "bootstrap_servers", "speeds"), "choose the directory of a replay")


def read_comparison(directory: Path) -> dict[str, Any]:
    return read(directory / "comparison.json", OF_COMPARISON, "compare the runs again")
