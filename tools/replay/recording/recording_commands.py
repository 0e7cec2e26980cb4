"""`ottla replay record start|status|stop`: the options, and what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from protocol.plain_text import escaped
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.naming import Where, server_options
from tools.failures import errors_in_one_line, explained
from tools.numbers import PATH, IntRange
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.replay.recording.broker_pages import RecordingStatus
    from tools.replay.recording.control import RecordedCluster, Result

MAX_BYTES_MIN = 1024 * 1024

Command = TypeVar("Command", bound=Callable[..., None])


def page_option(command: Command) -> Command:
    return click.option(
        "--page",
        "pages",
        multiple=True,
        metavar="ID=HOST:PORT",
        help="a broker's metrics page, if it cannot be reached at its metrics.listener; may be repeated",
    )(command)


@click.group()
def record() -> None:
    """Record the load of a running cluster: sizes and times, no keys and no values."""


@record.command()
@click.option("--topic", "topics", multiple=True, help="record only this topic; may be repeated")
@click.option("--hash-clients", is_flag=True, help="record client ids as hashes, with a salt that is thrown away")
@click.option(
    "--max-bytes",
    type=IntRange(min=MAX_BYTES_MIN),
    default=1024**3,
    show_default=True,
    help="limit of each broker's file; what does not fit is dropped and counted",
)
@page_option
@server_options
def start(
    topics: tuple[str, ...],
    hash_clients: bool,
    max_bytes: int,
    pages: tuple[str, ...],
    where: Where,
) -> None:
    """Start a recording on all brokers. It runs until `stop`."""
    with recorded_cluster(pages, where) as cluster:
        recording = cluster.start(max_bytes, topics, hashes_clients=hash_clients)
        echo(f"Brokers {', '.join(map(str, cluster.brokers))} record the load of their clients ({recording}).")
        echo("End it with: ottla replay record stop --out TRACE")


@record.command()
@page_option
@connection_options
def status(pages: tuple[str, ...], where: Where, output: str) -> None:
    """Show what each broker has recorded."""
    from tools.replay.recording.broker_pages import RecordingStatus

    with recorded_cluster(pages, where) as cluster:
        recording = cluster.recording()
        found = cluster.statuses()
        if output == "json":
            print_json(
                {
                    "recording": recording or None,
                    "brokers": [_as_json(one) for one in found if isinstance(one, RecordingStatus)],
                    "problems": [str(one) for one in found if not isinstance(one, RecordingStatus)],
                }
            )
            return
        if not recording:
            echo("The brokers record nothing.")
            return
        echo(f"recording {recording}")
        for one in found:
            echo(_line(one, recording) if isinstance(one, RecordingStatus) else str(one))


@record.command()
@click.option("--out", type=PATH, metavar="TRACE", help="where the trace is written")
@click.option("--allow-missing", is_flag=True, help="leave out the rows of brokers that do not answer")
@click.option("--discard", is_flag=True, help="end the recording without a trace")
@page_option
@server_options
def stop(
    out: Path | None,
    allow_missing: bool,
    discard: bool,
    pages: tuple[str, ...],
    where: Where,
) -> None:
    """Stop the recording, and merge what all brokers have recorded into one trace."""
    if (out is None) is not discard:
        raise click.UsageError("use either --out TRACE or --discard.")
    if out is not None and out.exists():
        raise click.ClickException(escaped(f"{out} exists already; remove it, or choose another --out"))
    with recorded_cluster(pages, where) as cluster:
        if out is None:
            echo(f"Recording {cluster.discard()} was discarded.")
            return
        result = cluster.stop(out, allows_missing=allow_missing, tell=lambda line: echo(line, err=True))
        for line in _report(out, result):
            echo(line)


@contextmanager
def recorded_cluster(pages: Sequence[str], where: Where) -> Iterator[RecordedCluster]:
    """The cluster that the options name. Expected errors become one line and exit code 1."""
    with explained(), errors_in_one_line():
        from tools.replay.recording.broker_pages import parse_pages
        from tools.replay.recording.control import RecordedCluster

        given = parse_pages(pages)
        admin = connect(where)
        yield RecordedCluster(admin.cluster(), admin, given)


def _as_json(status: RecordingStatus) -> dict[str, object]:
    from tools.replay.recording.broker_pages import NUMBERS

    return {
        **{name: getattr(status, name) for name in NUMBERS},
        "recording": status.is_recording,
        "id": status.id or None,
        "bytes": status.bytes,
        "files": len(status.files),
        "problem": status.problem or None,
    }


def _line(status: RecordingStatus, recording: str) -> str:
    if status.id != recording:
        return f"broker {status.broker}: off"
    since = datetime.fromtimestamp(status.since_ns / 1e9, UTC)
    line = (
        f"broker {status.broker}: {'on' if status.is_recording else 'off'}, since {since:%Y-%m-%d %H:%M:%S} UTC, "
        f"{status.requests:,} requests, {status.rows:,} rows, {status.bytes:,} bytes, {status.dropped:,} dropped"
    )
    if len(status.files) > 1:
        line += f"; it has restarted, the bytes are of {len(status.files)} files, all other numbers of the last"
    return line + (f"; {status.problem}" if status.problem else "")


def _report(out: Path, result: Result) -> Iterator[str]:
    from tools.replay.recording.control import CLOCKS_S

    summary, counts = result.summary, result.summary.counts
    yield f"{out}: {summary.rows:,} rows of {summary.seconds:,.1f} s"
    for op in ("produce", "fetch"):
        yield (
            f"  {op:<8} {summary.requests[op]:,} requests, {summary.records[op]:,} records, {summary.bytes[op]:,} bytes"
        )
    if ends := [f"{summary.requests[op]:,} {op}s" for op in ("commit", "abort") if summary.requests[op]]:
        yield f"  transactions: {', '.join(ends)}"
    if summary.keys:
        yield f"  keys of {sum(summary.keys.values()):,} records, in the compacted topics {', '.join(sorted(summary.keys))}"
    yield (
        f"  {len(summary.clients):,} client ids, {len(summary.topics):,} topics, "
        f"groups: {', '.join(sorted(summary.groups)) or 'none'}"
    )
    if counts.dropped:
        yield f"  {counts.dropped:,} requests are missing: the brokers had no room for them (--max-bytes)"
    if counts.refused:
        yield f"  {counts.refused:,} produce requests were refused by a broker, and are not in the trace"
    if counts.estimated:
        yield f"  {counts.estimated:,} fetches returned so many batches that their records are estimated"
    for file in summary.files:
        if file.is_cut:
            yield f"  a file of broker {file.broker} ends early, because the broker ended without a stop"
    for status in result.statuses:
        if status.problem:
            yield f"  broker {status.broker}: {status.problem}"
        if abs(status.clock_ahead_s) > CLOCKS_S + status.round_trip_s:
            yield f"  the clock of broker {status.broker} is {status.clock_ahead_s * 1000:+,.0f} ms off this machine's"
    for line in result.missing:
        yield f"  {line}: its rows are missing"
