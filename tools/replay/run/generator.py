"""When the generator, and not the cluster, was the limit of a run (RPL-3).

An interval is **limited** if an operation in a hundred that was due in it was ready more than LATE_MS late, or if the loop of a task stood
still for STILL_SHARE of it. A run is limited if more than LIMITED_SHARE of its intervals are, or if an operation in a hundred of the whole
run was ready more than RUN_LATE_MS late: then its latencies are the generator's, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tools.replay.run.plan import OutputDirectory

LATE_MS = 20.0
STILL_SHARE = 0.1
LIMITED_SHARE = 0.05
RUN_LATE_MS = 100.0

Measured = Mapping[int, Mapping[str, Any]]
"""Task -> what its loop measured (`tools.replay.load.loop_meter`)."""


def read_meters(output: OutputDirectory) -> dict[int, dict[str, Any]]:
    """A task that was lost has none."""
    return {
        int(path.stem.removeprefix("task-")): json.loads(path.read_text())
        for path in output.generator.glob("task-*.json")
    }


def still_shares(meters: Measured, began: int, interval: int, count: int) -> list[float]:
    """For each interval the share of it in which a task's loop stood still, of the task with the largest. Times in ns."""
    largest = [0.0] * count
    for meter in meters.values():
        shares = [0.0] * count
        for begin, end in meter["still"]:
            for at in range(max((begin - began) // interval, 0), min((end - began) // interval + 1, count)):
                from_ns = began + at * interval
                shares[at] += max(min(end, from_ns + interval) - max(begin, from_ns), 0) / interval
        largest = [max(pair) for pair in zip(largest, shares, strict=True)]
    return largest


def longest_still_ms(meter: Mapping[str, Any]) -> float:
    return max((end - begin for begin, end in meter["still"]), default=0) / 1e6


def is_limited(late_p99_ms: float | None, still_share: float) -> bool:
    """Whether the generator was the limit in an interval."""
    return (late_p99_ms or 0.0) > LATE_MS or still_share >= STILL_SHARE


def generator_of(over: Sequence[Mapping[str, Any]], due: int, late_ms: Mapping[str, Any], cpu: Any) -> dict[str, Any]:
    """Whether the run is limited. `over`: the intervals; `due`: the number of those in which operations were due; `cpu`: of `cpu_of`."""
    limited = min(sum(row["limited"] for row in over), due)  # a loop can also stand still when nothing is due
    is_late = (late_ms["p99"] or 0.0) > RUN_LATE_MS
    return {
        "is_limited": is_late or limited > LIMITED_SHARE * due,
        "limited": limited,
        "intervals": due,
        "late_ms": late_ms,
        "cpu": cpu,
    }


def cpu_of(output: OutputDirectory, meters: Measured) -> dict[str, float | None]:
    """Cores that brokers, generator and Spark used on average while operations were sent; None: not known, such as for other machines."""
    generator = sum(meter["cores"] for meter in meters.values()) if meters else None
    local = json.loads(output.cpu.read_text()) if output.cpu.exists() else {}
    job = local.get("job")
    return {
        "brokers": local.get("brokers"),
        "generator": generator,
        "spark": None if job is None or generator is None else max(job - generator, 0.0),
    }
