"""What a replay leaves: its verdict, its analysis, what a lost task did not do, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.replay.run.plan import OutputDirectory, ReplayError

FAULTY = ("lost", "duplicated", "reordered", "corrupted")


def read_verdict(output: OutputDirectory) -> dict[str, Any]:
    """The verdict, with `problem`: why a task was lost, or an empty string. Raises ReplayError if the replay has none."""
    tasks: dict[str, Any] = {"problem": "it did not start"}
    if output.tasks.exists():
        tasks = json.loads(output.tasks.read_text())
    if not output.verdict.exists():
        raise ReplayError(f"nothing was measured: {first_line(tasks['problem'])}; see {output.spark_log}")
    return {**json.loads(output.verdict.read_text()), "problem": tasks["problem"]}


def read_analysis(output: OutputDirectory) -> dict[str, Any]:
    """Of a replay that has a verdict."""
    analysis: dict[str, Any] = json.loads(output.analysis.read_text())
    return analysis


def undone_lines(output: OutputDirectory) -> Iterator[str]:
    """A line for each task with operations that have no result; none if no task was lost."""
    for task in json.loads(output.tasks.read_text()).get("undone", []):
        if task["undone"]:
            yield (
                f"  task {task['task']}: {task['undone']:,} of {task['expected']:,} operations have no result, "
                f"the first {task['first_ns'] / 1e9:,.3f} s after the trace's start; they are in {output.undone}"
            )


def exit_code(verdict: dict[str, Any]) -> int:
    """1 if something is wrong, if a task was lost, or if nothing was acknowledged."""
    is_faulty = any(verdict[name] for name in FAULTY) or verdict["problem"] or not verdict["acknowledged"]
    return 1 if is_faulty else 0


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason"])[0]
