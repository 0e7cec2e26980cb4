"""A comparison as text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tools.bench.compare.results import (
    GOALS_OF_RESOURCES,
    OURS,
    Compared,
    Comparison,
    Spread,
    resource_ratios,
)
from tools.bench.compare.rows import Unit
from tools.cluster.tables import aligned

NONE = "-"
RESOURCE_TITLES = {
    "memory": "memory of the largest broker (PSS)",
    "start": "start of three brokers and ZooKeeper",
    "files": "open files of the largest broker",
}


def resource(name: str, value: float) -> str:
    """A value of RESOURCE_TITLES with its unit."""
    if name == "memory":
        return f"{value / 1e6:.0f} MB"
    return f"{value:.1f} s" if name == "start" else f"{value:.0f}"


def amount(value: float, unit: Unit) -> str:
    """For example `36.1 k/s`, `267 MB/s`, `2.4 GB/s`."""
    if unit == "MB/s":
        return (
            f"{value / 1000:.2f} GB/s" if value >= 1000 else f"{value:.3g} MB/s" if value < 100 else f"{value:.0f} MB/s"
        )
    return f"{value / 1000:.3g} k/s" if value >= 1000 else f"{value:.0f} /s"


def ratio(spread: Spread | None) -> str:
    """The median, and the spread behind it."""
    if spread is None:
        return NONE
    digits = 1 if spread.median >= 10 else 2
    return f"{spread.median:.{digits}f} ({spread.lowest:.{digits}f}..{spread.highest:.{digits}f})"


def goal(compared: Compared) -> str:
    row = compared.row
    text = f"{row.goal:g}x" + (f", {row.goal_p99:g}x" if row.goal_p99 is not None else "")
    return text if compared.is_met else f"{text}, missed"


def cells(comparison: Comparison) -> list[list[str]]:
    """The table, its head first: the load, both rates, ratios of throughput, p99 and CPU per megabyte, goal, floor."""
    head = ["LOAD", comparison.peer.upper(), OURS.upper(), "RATIO", "P99 RATIO", "CPU/MB RATIO", "GOAL", "FLOOR"]
    table = [head]
    for one in comparison.compared():
        theirs, ours = one.rate
        unit = one.row.unit
        floor = NONE if one.floor is None else amount(one.floor.rate, unit)
        table.append([
            one.row.title, amount(theirs, unit), amount(ours, unit), ratio(one.ratio), ratio(one.p99_ratio),
            ratio(one.cpu_ratio), goal(one), floor,
        ])  # fmt: skip
    for name, (theirs, ours, found) in resource_ratios(comparison).items():
        limit = GOALS_OF_RESOURCES.get(name)
        wanted = NONE if limit is None else f"{limit:g}x" + ("" if found.median <= limit else ", missed")
        table.append(
            [
                RESOURCE_TITLES[name],
                resource(name, theirs),
                resource(name, ours),
                ratio(found),
                NONE,
                NONE,
                wanted,
                NONE,
            ]
        )
    return table


def text(comparison: Comparison) -> str:
    return "\n".join([*aligned(cells(comparison)), "", *_conditions(comparison)])


def markdown(comparison: Comparison) -> str:
    """A table for docs/PERFORMANCE.md; the conditions stand below."""
    head, *rows = cells(comparison)
    words = {comparison.peer.upper(): comparison.peer, OURS.upper(): OURS, "P99 RATIO": "p99 ratio"}
    names = [
        words.get(name, name.replace("CPU/MB", "CPU per MB").lower().replace("cpu per mb", "CPU per MB"))
        for name in head
    ]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, "", "; ".join(_conditions(comparison)) + ".", ""])


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All figures of all rounds, and what is computed from them."""
    return {
        "machine": dict(comparison.machine),
        "clusters": {"peer": comparison.peer, "ours": OURS},
        "rows": [
            {
                "key": one.row.key,
                "title": one.row.title,
                "unit": one.row.unit,
                "goal": one.row.goal,
                "goal_p99": one.row.goal_p99,
                "is_met": one.is_met,
                "peer": [asdict(figure) for figure in one.theirs],
                "ours": [asdict(figure) for figure in one.ours],
                "ratio": asdict(one.ratio),
                "p99_ratio": _optional(one.p99_ratio),
                "cpu_ratio": _optional(one.cpu_ratio),
                "floor": None if one.floor is None else asdict(one.floor),
            }
            for one in comparison.compared()
        ],
        "resources": {name: [asdict(one) for one in rounds] for name, rounds in comparison.resources.items()},
    }


def _optional(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _conditions(comparison: Comparison) -> Sequence[str]:
    return [f"{name}: {value}" for name, value in comparison.machine.items()]
