"""The consumer groups of a replay: the figures that its tasks wrote (`tools.replay.load.membership`), put together."""

from __future__ import annotations

import json
from typing import Any

from tools.replay.run.plan import OutputDirectory

ADDED = ("members", "joins", "commits", "failed_commits", "read")
RANGES = "ranges"


def groups_of(output: OutputDirectory) -> list[dict[str, Any]]:
    """A row for each group, by name: `group`, the fields of `GroupFigures`, and in the place of its ranges what `offsets_read` counts. The
    figures of a task that was lost are missing."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(output.groups.glob("task-*.json")):
        for name, figures in json.loads(path.read_text()).items():
            known = found.get(name)
            found[name] = figures if known is None else together(known, figures)
    return [{"group": name, **offsets_read(found[name].pop(RANGES)), **found[name]} for name in sorted(found)]


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The figures of two tasks as those of one: counts are added, ranges joined, of the rest the larger one is taken."""
    rest = one.keys() - {RANGES}
    figures = {name: one[name] + other[name] if name in ADDED else max(one[name], other[name]) for name in rest}
    ranges = dict(one[RANGES])
    for partition, of_partition in other[RANGES].items():
        ranges[partition] = [*ranges.get(partition, ()), *of_partition]
    return {**figures, RANGES: ranges}


def offsets_read(ranges: dict[str, list[list[int]]]) -> dict[str, int]:
    """How many offsets were read again, and how many were skipped between the first and the last of a partition."""
    counts = {"read_again": 0, "skipped": 0}
    for of_partition in ranges.values():
        in_order = sorted(of_partition)
        reached = in_order[0][0]
        for begin, end in in_order:
            counts["read_again"] += max(min(reached, end) - begin, 0)
            counts["skipped"] += max(begin - reached, 0)
            reached = max(reached, end)
    return counts
