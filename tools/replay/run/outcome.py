"""What came of a replay, from its files: verdict, analysis, what a lost task did not do, the report, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from tools.private_files import write_anew
from tools.replay.checks import exit_code, generator_limit, outcome_lines, run_checks
from tools.replay.pages.checks import write_run_checks
from tools.replay.pages.run_page import run_page
from tools.replay.run.exports import write_exports
from tools.replay.run.plan import OutputDirectory, ReplayError, write_json
from tools.replay.run.summary import first_line, summary_lines, summary_of


def conclude(output: OutputDirectory, analysis: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Writes `summary.json`, `report.html`, `junit.xml`, `summary.md`, and the figures for other programs."""
    write_json(output.summary, summary_of(analysis, verdict))
    write_exports(output, analysis)
    write_anew(output.report, run_page(asdict(output.read_plan()), analysis, verdict))
    write_run_checks(output.path, analysis, verdict)


def say_outcome(output: OutputDirectory, verdict: dict[str, Any]) -> int:
    """Prints what was measured, which checks failed, and where the report is. Returns the exit code of the replay."""
    analysis = json.loads(output.analysis.read_text())
    checks = run_checks(analysis, verdict)
    failed = outcome_lines(checks, generator_limit(analysis))
    for line in (*summary_lines(analysis, verdict), *undone_lines(output), *failed):
        click.echo(line)
    click.echo(f"\nReport   {output.place_of(output.report)}\nSummary  {output.place_of(output.summary)}")
    return exit_code(checks)


def read_verdict(output: OutputDirectory) -> dict[str, Any]:
    """The verdict, with `problem`: why a task was lost, or an empty string. Raises ReplayError if the replay has none."""
    tasks: dict[str, Any] = {"problem": "it did not start"}
    if output.tasks.exists():
        tasks = json.loads(output.tasks.read_text())
    if not output.verdict.exists():
        raise ReplayError(f"nothing was measured: {first_line(tasks['problem'])}; see {output.spark_log}")
    return {**json.loads(output.verdict.read_text()), "problem": tasks["problem"]}


def undone_lines(output: OutputDirectory) -> Iterator[str]:
    """A line for each task with operations that have no result; none if no task was lost."""
    for task in json.loads(output.tasks.read_text()).get("undone", []):
        if task["undone"]:
            yield (
                f"  task {task['task']}: {task['undone']:,} of {task['expected']:,} operations have no result, "
                f"the first {task['first_ns'] / 1e9:,.3f} s after the trace's start; they are in {output.place_of(output.undone)}"
            )
