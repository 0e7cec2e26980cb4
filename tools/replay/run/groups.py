"""The consumer groups of a replay: the figures that its tasks wrote (`tools.replay.load.membership`), put together."""

from __future__ import annotations

import json
from typing import Any

from tools.replay.run.plan import OutputDirectory

ADDED = ("members", "joins", "commits", "failed_commits")


def groups_of(output: OutputDirectory) -> list[dict[str, Any]]:
    """A row for each group, by name: `group`, and the fields of `GroupFigures`. The figures of a task that was lost are missing."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(output.groups.glob("task-*.json")):
        for name, figures in json.loads(path.read_text()).items():
            known = found.get(name)
            found[name] = figures if known is None else together(known, figures)
    return [{"group": name, **found[name]} for name in sorted(found)]


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The figures of two tasks as those of one: counts are added, of the rest the larger one is taken."""
    return {name: one[name] + other[name] if name in ADDED else max(one[name], other[name]) for name in one}
