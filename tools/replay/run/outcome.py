"""What came of a replay, from its files: verdict, analysis, what a lost task did not do, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.replay.checks import exit_code, generator_limit, outcome_lines, run_checks
from tools.replay.run.plan import OutputDirectory, ReplayError
from tools.replay.run.summary import summary_lines


class Conclusion(NamedTuple):
    """In words: what was measured, and which checks failed. `exit_code` is that of the replay."""

    measured: list[str]
    outcome: list[str]
    exit_code: int


def conclusion_of(output: OutputDirectory, verdict: dict[str, Any]) -> Conclusion:
    analysis = read_analysis(output)
    checks = run_checks(analysis, verdict)
    measured = [*summary_lines(analysis, verdict), *undone_lines(output)]
    return Conclusion(measured, outcome_lines(checks, generator_limit(analysis)), exit_code(checks))


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


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason"])[0]
