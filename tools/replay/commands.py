"""The commands `ottla demo` and `ottla replay`: options, one-line errors, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tools.numbers import FloatRange, IntRange

WEEK_A_MINUTE = 7.0 * 24 * 60
WHOLE_YEAR_DAYS = 365
POSITIVE = FloatRange(min=0, min_open=True)
DAY = click.DateTime(formats=["%Y-%m-%d"])


def guarded(work: Callable[[], int]) -> None:
    """Runs `work` and exits with its code; an expected error becomes one line and exit code 1."""
    from tools.replay.interrupts import Interrupted, interruptible

    try:
        with interruptible():
            code = explained(work)
    except Interrupted as interrupt:
        click.echo(f"\n{interrupt}: everything that was started has been stopped.", err=True)
        code = interrupt.exit_code
    sys.exit(code)


def explained(work: Callable[[], int]) -> int:
    """Runs `work`. Raises ClickException with one line for an expected error."""
    try:
        from tools.admin.bootstrap import NoBootstrapServer
        from tools.cluster.java import JavaNotFound
        from tools.cluster.local_cluster import ClusterError
        from tools.cluster.zookeeper import ZooKeeperError
        from tools.replay.clients import ReplayError
        from tools.replay.trace import TraceError
    except ModuleNotFoundError as problem:
        raise click.ClickException(
            f"the module {problem.name} is missing; install what a replay needs: pip install 'ottla[replay]'"
        ) from None
    try:
        return work()
    except (ReplayError, TraceError, NoBootstrapServer, JavaNotFound, ClusterError, ZooKeeperError, OSError) as problem:
        raise click.ClickException(str(problem)) from None


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a part of the year."""
    for option in (
        click.option("--year", is_flag=True, help="Use the whole year 2013, 655,867 events."),
        click.option("--days", type=IntRange(1, WHOLE_YEAR_DAYS), default=7, show_default=True, help="Number of days."),
        click.option("--start-day", type=DAY, default="2013-01-01", show_default="2013-01-01", help="The first day."),
    ):
        command = option(command)
    return command


speed_option = click.option(
    "--speed",
    type=POSITIVE,
    default=WEEK_A_MINUTE,
    show_default=True,
    help="Speed-up over real time; 10080 replays a week in a minute.",
)


@click.command()
@trace_options
@speed_option
@click.option("--brokers", type=IntRange(1, 20), default=3, show_default=True, help="Number of brokers to start.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill a leader during the replay.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default="demo-out", show_default=True, help="Results."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The cluster's run directory; an existing cluster is used unchanged. [default: OUT/cluster, created again]",
)
@click.option("--bootstrap-server", help="Use this cluster instead of starting one; no broker is killed.")
@click.option("--zookeeper", help="Use this ZooKeeper (host:port[/chroot]) instead of starting one.")
def demo(
    year: bool,
    days: int,
    start_day: datetime,
    speed: float,
    brokers: int,
    kill: bool,
    out: Path,
    directory: Path | None,
    bootstrap_server: str | None,
    zookeeper: str | None,
) -> None:
    """Start a cluster, replay flights through it, kill a leader, and report what was lost (nothing)."""

    def work() -> int:
        from tools.replay.demo import DemoOptions, run_demo

        return run_demo(
            DemoOptions(
                start_day=start_day.date(),
                days=WHOLE_YEAR_DAYS if year else days,
                speed=speed,
                brokers=brokers,
                kill=kill,
                output=out,
                directory=directory,
                bootstrap_servers=bootstrap_server,
                zookeeper=zookeeper,
            )
        )

    guarded(work)


@click.group()
def replay() -> None:
    """Replay recorded or synthesised event streams with Spark, and report the measurements."""


@replay.group()
def trace() -> None:
    """Create traces: Parquet tables of produce and fetch operations."""


@trace.command("flights")
@trace_options
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
def trace_flights(year: bool, days: int, start_day: datetime, out: Path) -> None:
    """Create a trace of the flights that left New York in 2013, with departures and arrivals at their times."""

    def work() -> int:
        from tools.replay.trace import write_flights_trace

        events = write_flights_trace(out, start_day.date(), WHOLE_YEAR_DAYS if year else days)
        click.echo(f"{out}: {events:,} events, each produced and fetched")
        return 0

    guarded(work)


@replay.command("run")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), required=True, help="The trace to replay.")
@click.option("--bootstrap-server", help="The cluster. [default: $OTTLA_BOOTSTRAP_SERVER, else ./ottla-cluster]")
@click.option("--topic", default="departures", show_default=True, help="An existing topic for the events.")
@speed_option
@click.option("--producers", type=IntRange(1, 1000), default=2, show_default=True, help="Number of producing tasks.")
@click.option("--readers", type=IntRange(1, 1000), default=2, show_default=True, help="Number of reading tasks.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default="replay-out", show_default=True, help="Results."
)
def run(
    trace_file: Path, bootstrap_server: str | None, topic: str, speed: float, producers: int, readers: int, out: Path
) -> None:
    """Replay a trace through a topic of a running cluster."""

    def work() -> int:
        from tools.admin.bootstrap import find_bootstrap_servers
        from tools.replay.interrupts import ignore_from_now
        from tools.replay.plan import OutputDirectory
        from tools.replay.runner import Replay, Target, exit_code, print_summary

        output = OutputDirectory(out)
        target = Target(find_bootstrap_servers(bootstrap_server), topic)
        work_to_do = Replay(target, trace_file, output, speed, producers, readers)
        try:
            analysis = work_to_do.run()
        finally:
            try:
                ignore_from_now()
            finally:  # an interrupt may come first
                work_to_do.job.stop()
        print_summary(analysis, output)
        return exit_code(analysis)

    guarded(work)


@replay.command("report")
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> None:
    """Analyse an earlier replay again, and rewrite its summary and report."""

    def work() -> int:
        from tools.replay.plan import OutputDirectory
        from tools.replay.runner import analyse_again, exit_code, print_summary

        output = OutputDirectory(directory)
        analysis = analyse_again(output)
        print_summary(analysis, output)
        return exit_code(analysis)

    guarded(work)
