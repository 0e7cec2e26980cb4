"""`ottla replay compare`: two runs side by side, with an exit code for CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tools.numbers import DIRECTORY, PATH, FloatRange, Parsed

OUT = "compare-out"
SHARE = FloatRange(min=0)


def share(text: str) -> float:
    """0.05 for `5%`. Raises ValueError."""
    if not text.endswith("%"):
        raise ValueError(f"{text!r} is not a percentage, such as 5%")
    return float(SHARE.convert(text.removesuffix("%"), None, None)) / 100


@click.command("compare")
@click.argument("first", metavar="RUN", type=PATH)
@click.argument("second", metavar="RUN", type=PATH)
@click.option("--out", type=DIRECTORY, default=OUT, show_default=True, help="Results.")
@click.option(
    "--threshold",
    type=Parsed("percent", share),
    default="5%",
    show_default=True,
    help="Smaller changes are no differences.",
)
def compare(first: Path, second: Path, out: Path, threshold: float) -> None:
    """Compare two replays by the directories of their results.

    A difference counts if it is above the threshold and beyond noise (95 % bootstrap confidence intervals). Exits with 1 if something
    is worse in the second run.
    """
    from tools.failures import guarded

    def work() -> int:
        from tools.replay.pages.checks import write_comparison_checks
        from tools.replay.pages.comparison_page import write_comparison_page
        from tools.replay.run import comparison
        from tools.replay.run.plan import OutputDirectory, write_json

        for directory in (first, second):
            analyse_if_missing(directory)
        compared = comparison.compare(comparison.read_run(first), comparison.read_run(second), threshold)
        write_json(OutputDirectory(out).comparison, compared)
        write_comparison_page(out)
        write_comparison_checks(out)
        for line in table(compared):
            click.echo(line)
        click.echo(f"\nReport   {OutputDirectory(out).report}")
        return 1 if any(row["worse"] for row in compared["rows"]) else 0

    guarded(work)


def analyse_if_missing(directory: Path) -> None:
    """Raises ReplayError."""
    from tools.replay.run.plan import OutputDirectory, ReplayError

    output = OutputDirectory(directory)
    if not output.plan.exists():
        raise ReplayError(f"{directory} is not the directory of a replay: it has no {output.plan.name}")
    if not (output.analysis.exists() and output.latencies.exists()):
        analyse(directory)


def analyse(directory: Path) -> None:
    """Runs the Spark job's step. Raises ReplayError."""
    from tools.replay.run.plan import OutputDirectory, ReplayError
    from tools.replay.run.spark_process import SparkProcess

    output = OutputDirectory(directory)
    if not any(output.operations.glob("*.parquet")) or not output.tasks.exists():
        raise ReplayError(f"{directory} has no operations; the replay did not run to its end, run it again")
    click.echo(f"Analysing {directory} ...", err=True)
    job = SparkProcess(output, ["analysis"])
    try:
        job.start()
        while job.is_running(0.5):
            pass
        job.check()
    finally:
        job.stop()


def table(compared: dict[str, Any]) -> Iterator[str]:
    """The rows for a terminal."""
    names = [run["name"] for run in compared["runs"]]
    yield f"{'':22} {'':12} {names[0][:24]:>24} {names[1][:24]:>24} {'change':>9}"
    for row in compared["rows"]:
        change = "" if row["change"] is None else f"{100 * row['change']:+.1f} %"
        mark = "worse" if row["worse"] else "better" if row["differs"] else ""
        a, b = (shown(row[side], row[f"{side}_interval"]) for side in ("a", "b"))
        yield f"{row['metric']:22} {row['unit']:12} {a:>24} {b:>24} {change:>9}  {mark}".rstrip()


def shown(value: float | None, interval: list[float] | None) -> str:
    """The value, and how far its confidence interval reaches to each side."""
    if value is None:
        return "unknown"
    text = short(value)
    return text if interval is None else f"{text} [{short(interval[0])}, {short(interval[1])}]"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
