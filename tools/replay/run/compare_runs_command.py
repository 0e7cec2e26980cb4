"""`ottla replay compare`: two sides of runs, with an exit code for CI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.failures import guarded
from tools.numbers import DIRECTORY, FloatRange, Parsed
from tools.replay.parameters import master_option, spark_setting_option
from tools.replay.places import PLACE, Place, inside, named, uri_of, whole

if TYPE_CHECKING:
    from tools.replay.run.open_places import Places
    from tools.replay.run.plan import OutputDirectory

OUT = "compare-out"
SHARE = FloatRange(min=0)
RUN = re.compile(r"run-\d+")
"""What `ottla replay run --repeat` calls the directories of its runs."""


def share(text: str) -> float:
    """0.05 for `5%`. Raises ValueError."""
    if not text.endswith("%"):
        raise ValueError(f"{text!r} is not a percentage, such as 5%")
    return float(SHARE.convert(text.removesuffix("%"), None, None)) / 100


def limit(text: str) -> Any:
    """`produce.p99:10%`. Raises ValueError."""
    from tools.replay.run.comparison import parse_worse_limit

    return parse_worse_limit(text)


class SidesCommand(click.Command):
    """`--a RUN RUN --b RUN RUN`: an option for a side takes all words up to the next option."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        given: list[str] = []
        side = ""
        for word in args:
            if word.startswith(("--a=", "--b=")):
                side, _, run = word.partition("=")
                given += [side, run]
            elif word.startswith("-"):
                side = word if word in ("--a", "--b") else ""
                given += [] if side else [word]
            else:
                given += [side, word] if side else [word]
        return super().parse_args(context, given)


@click.command("compare", cls=SidesCommand)
@click.argument("runs", metavar="[A B]", nargs=-1, type=PLACE)
@click.option("--a", "a", metavar="RUN...", multiple=True, type=PLACE, help="Runs before the change.")
@click.option("--b", "b", metavar="RUN...", multiple=True, type=PLACE, help="Runs after the change.")
@click.option("--out", type=DIRECTORY, default=OUT, show_default=True, help="Results.")
@click.option(
    "--threshold",
    type=Parsed("percent", share),
    default="5%",
    show_default=True,
    help="Smaller changes are no differences.",
)
@click.option(
    "--fail-if-worse",
    "limits",
    type=Parsed("metric:percent", limit),
    multiple=True,
    help="Look at this metric only, and allow it to be so much worse, such as produce.p99:10%. May be given more than once.",
)
@click.option("--allow-different", is_flag=True, help="Compare runs of different loads, too, and say how they differ.")
@master_option("Analyse runs that have no analysis yet on this Spark master: local[N] or spark://HOST:PORT.")
@spark_setting_option
@guarded
def compare(
    runs: Sequence[Place],
    a: Sequence[Place],
    b: Sequence[Place],
    out: Path,
    threshold: float,
    limits: Sequence[Any],
    allow_different: bool,
    master: str | None,
    spark_settings: Sequence[str],
) -> int:
    """Compare replays of the same load by the places of their results: `compare A B`, or `compare --a A1 A2 A3 --b B1 B2 B3`.

    A directory of `ottla replay run --repeat N` stands for its N runs. A difference counts if it is above the threshold and beyond noise:
    a permutation test over the runs, corrected for the number of metrics. That needs four runs a side, three and four, or two and five.

    Exits with 1 if something is worse in B, or if a run did not deliver; with 2 if the runs are too few for a statement, are of different
    loads, or were not verified.
    """
    if (len(runs), bool(a), bool(b)) not in ((2, False, False), (0, True, True)):
        raise click.UsageError("name two directories, A and B, or runs of both sides with --a and --b")

    from tools.cluster.tables import aligned
    from tools.private_files import write_anew
    from tools.replay.checks import exit_code, outcome_lines
    from tools.replay.pages.checks import comparison_checks, write_comparison_checks
    from tools.replay.pages.comparison_page import comparison_page
    from tools.replay.pages.words import difference_table
    from tools.replay.run import comparison
    from tools.replay.run.open_places import Places
    from tools.replay.run.plan import OutputDirectory, write_json

    with Places(spark_settings) as places:
        sides = [
            [run for given in of_side for run in runs_in(places, given)] for of_side in (a or runs[:1], b or runs[1:])
        ]
        every = [whole(run) for side in sides for run in side]
        if twice := [run for run in every if every.count(run) > 1]:
            raise click.UsageError(f"{twice[0]} is named twice: each run says something once")
        outputs = [[places.results(run) for run in side] for side in sides]
        for output in (*outputs[0], *outputs[1]):
            require_replay(output)
            if not output.analysis.exists():
                analyse(places, output, master, spark_settings)
        first, second = ([comparison.read_run(output) for output in side] for side in outputs)
    unlike = comparison.unlike([*first, *second])
    for words in unlike:
        click.echo(f"Different load: {words}", err=True)
    if unlike and not allow_different:
        click.echo("Error: the runs are not comparable; --allow-different compares them all the same", err=True)
        return 2
    compared = comparison.compare(first, second, threshold, limits)
    write_json(OutputDirectory(out).comparison, compared)
    write_anew(OutputDirectory(out).report, comparison_page(compared))
    write_comparison_checks(out, compared)
    checks = comparison_checks(compared)
    header, rows = difference_table(compared)
    for line in [*aligned([header, *rows]), "", *outcome_lines(checks)]:
        click.echo(line)
    click.echo(f"\nReport   {OutputDirectory(out).report}")
    return exit_code(checks)


def runs_in(places: Places, place: Place) -> list[Place]:
    """The runs of --repeat in the directory, or the directory itself."""
    return [place] if places.exists(inside(place, "plan.json")) else repeats_in(places, place) or [place]


def repeats_in(places: Places, place: Place) -> list[Place]:
    names = sorted(filter(RUN.fullmatch, places.names(place)), key=lambda name: int(name.partition("-")[2]))
    return [run for run in (inside(place, name) for name in names) if places.exists(inside(run, "plan.json"))]


def require_replay(output: OutputDirectory) -> None:
    """Raises ReplayError."""
    from tools.replay.run.plan import ReplayError

    if not output.plan.exists():
        raise ReplayError(f"{output.place} is not the directory of a replay: it has no {output.plan.name}")


def analyse(places: Places, output: OutputDirectory, master: str | None, spark_settings: Sequence[str]) -> None:
    """Runs the Spark job's step, on this machine if `master` is None. Raises ReplayError."""
    from tools.replay.run.masters import is_local
    from tools.replay.run.plan import ReplayError
    from tools.replay.run.spark_process import SparkProcess, spark_settings_of

    require_replay(output)
    if not output.tasks.exists() or not places.exists(output.place_of(output.operations)):
        raise ReplayError(f"{output.place} has no operations; the replay did not run to its end, run it again")
    if not output.uri and not is_local(master):
        raise ReplayError(
            f"--master {master}: its executors do not reach {output.path}; name a URI, or if they share this disk, "
            f"{uri_of(output.path.absolute())}"
        )
    # The run may have moved since.
    plan = replace(output.read_plan(), directory=named(output.place))
    output.write_plan(plan)
    click.echo(f"Analysing {output.place} ...", err=True)
    job = SparkProcess(output, ["analysis"], spark_settings_of(master, spark_settings, plan.operations))
    try:
        job.start()
        while job.is_running(0.5):
            pass
        job.check()
    finally:
        job.stop()
