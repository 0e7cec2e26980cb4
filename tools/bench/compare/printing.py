"""A comparison as text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.bench.compare.results import COMPILED, GOALS_OF_RESOURCES, OURS, Comparison, Spread
from tools.bench.compare.rows import Row, Unit
from tools.cluster.tables import aligned

NONE = "-"
RESOURCES = {
    "memory_bytes": "memory of the largest broker (PSS)",
    "start_s": "start of three brokers and ZooKeeper",
    "open_files": "open files of the largest broker",
}
PAGE_BEGIN, PAGE_END = "<!-- compare: written by ottla bench compare -->\n", "<!-- compare: end -->\n"


def amount(value: float, unit: Unit) -> str:
    """For example `36.1 k/s`, `267 MB/s`, `2.4 GB/s`."""
    if unit == "MB/s":
        return (
            f"{value / 1000:.2f} GB/s" if value >= 1000 else f"{value:.3g} MB/s" if value < 100 else f"{value:.0f} MB/s"
        )
    return f"{value / 1000:.3g} k/s" if value >= 1000 else f"{value:.0f} /s"


def cells(comparison: Comparison) -> list[list[str]]:
    """The table, its head first. The ratio of the compiled form has no spread."""
    return [
        ["load", comparison.peer, OURS, "ratio", "compiled", "p99 ratio", "CPU per MB ratio", "goal"],
        *(_cells_of_row(comparison, row) for row in comparison.rows),
        *(_cells_of_resource(comparison, name) for name in RESOURCES),
    ]


def text(comparison: Comparison) -> str:
    head, *rows = cells(comparison)
    return "\n".join([*aligned([[name.upper() for name in head], *rows]), "", *_conditions(comparison)])


def markdown(comparison: Comparison) -> str:
    """The table, and the conditions below it."""
    head, *rows = (f"| {' | '.join(row)} |" for row in cells(comparison))
    lines = [head, "|---" * (head.count("|") - 1) + "|", *rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in _conditions(comparison)), ""])


def write_into(page: Path, table: str) -> None:
    """Puts the table between the marks of a page; a page without them becomes the table."""
    before, begin, rest = (page.read_text(encoding="utf-8") if page.exists() else "").partition(PAGE_BEGIN)
    end, after = rest.partition(PAGE_END)[1:]
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}" if end else table, encoding="utf-8")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All figures of all rounds, and what is computed from them."""
    return {
        "machine": dict(comparison.machine),
        "clusters": {"peer": comparison.peer, "ours": [name for name in comparison.figures if name != comparison.peer]},
        "rows": [
            {
                **{name: getattr(row, name) for name in ("key", "title", "unit", "goal", "goal_p99")},
                "is_met": comparison.is_met(row),
                "figures": {name: [asdict(one) for one in rows[row.key]] for name, rows in comparison.figures.items()},
                "ratio": _fields(comparison.ratio(row)),
                "p99_ratio": _fields(comparison.ratio(row, "p99_ms")),
                "cpu_ratio": _fields(comparison.ratio(row, "cpu_s_per_mb")),
                "compiled_ratio": _fields(comparison.ratio(row, cluster=COMPILED)),
            }
            for row in comparison.rows
        ],
        "resources": {name: [asdict(one) for one in rounds] for name, rounds in comparison.resources.items()},
    }


def _cells_of_row(comparison: Comparison, row: Row) -> list[str]:
    return [
        row.title,
        *(amount(comparison.rate(cluster, row), row.unit) for cluster in (comparison.peer, OURS)),
        _ratio(comparison.ratio(row)),
        _median(comparison.ratio(row, cluster=COMPILED)),
        *(_ratio(comparison.ratio(row, name)) for name in ("p99_ms", "cpu_s_per_mb")),
        _goal(comparison, row),
    ]


def _cells_of_resource(comparison: Comparison, name: str) -> list[str]:
    ratio, limit = comparison.resource_ratio(name), GOALS_OF_RESOURCES.get(name)
    missed = limit is not None and ratio is not None and ratio.median > limit
    return [
        RESOURCES[name],
        *(_resource(name, comparison.resource(cluster, name)) for cluster in (comparison.peer, OURS)),
        _ratio(ratio),
        _median(comparison.resource_ratio(name, COMPILED)),
        NONE,
        NONE,
        NONE if limit is None else f"{limit:g}x" + (", missed" if missed else ""),
    ]


def _resource(name: str, value: float) -> str:
    return (
        f"{value / 1e6:.0f} MB" if name == "memory_bytes" else f"{value:.1f} s" if name == "start_s" else f"{value:.0f}"
    )


def _ratio(spread: Spread | None) -> str:
    """The median, and the spread behind it."""
    return NONE if spread is None else f"{_number(spread.median)} ({_number(spread.lowest)}..{_number(spread.highest)})"


def _median(spread: Spread | None) -> str:
    return NONE if spread is None else _number(spread.median)


def _number(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _goal(comparison: Comparison, row: Row) -> str:
    wanted = f"{row.goal:g}x" + (f", {row.goal_p99:g}x" if row.goal_p99 is not None else "")
    return wanted if comparison.is_met(row) else f"{wanted}, missed"


def _fields(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _conditions(comparison: Comparison) -> Sequence[str]:
    return [f"{name}: {value}" for name, value in comparison.machine.items()]
