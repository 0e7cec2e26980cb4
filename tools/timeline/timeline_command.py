"""`ottla timeline`: the event logs of all brokers, merged and told as a story."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import click

from tools.admin.connection import format_option
from tools.admin.naming import compose_option, directory_option
from tools.cluster.local_cluster import DEFAULT_DIRECTORY
from tools.cluster.processes import ClusterError
from tools.failures import errors_in_one_line
from tools.numbers import FILE, OUTPUT, PATH, IntRange
from tools.points_in_time import NoTime, parse_duration_ms
from tools.private_files import write_output
from tools.terminal import echo, echo_lines
from tools.timeline import sources
from tools.timeline.following import Following
from tools.timeline.history import clocks_of, history_of
from tools.timeline.merging import ClockOffset, Event
from tools.timeline.page import Drawn, page_of
from tools.timeline.story import Filter, Line, Story, last_incident, told

FOLLOW_S = 0.5
AROUND_MS = 2000.0
"""How much the page shows before and after the story."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that say what is printed, and in which form."""

    since_ms: int | None
    is_all: bool
    raw: bool
    output: str
    follow: bool
    page: Path | None
    errors_file: Path | None


def milliseconds(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration_ms(text)
    except NoTime as problem:
        raise click.BadParameter(str(problem), param_hint=option.opts[0]) from None


@click.command()
@click.argument("files", nargs=-1, type=PATH, metavar="[FILES]...")
@directory_option()
@compose_option()
@click.option("--follow", is_flag=True, help="print recent events, then new ones until Ctrl-C")
@click.option("--topic", metavar="TOPIC", help="leave out events of other topics")
@click.option(
    "--broker",
    "broker_id",
    type=IntRange(),
    metavar="ID",
    help="show only what this broker wrote, and faults that hit it",
)
@click.option(
    "--since", "since_ms", metavar="DURATION", callback=milliseconds, help="show only the last part, such as 30s or 5m"
)
@click.option("--all", "is_all", is_flag=True, help="show everything, also what was before the last failure")
@click.option("--raw", is_flag=True, help="print the events as JSON lines, in one order and on one clock")
@format_option
@click.option("--html", "page", type=OUTPUT, metavar="OUT", help="write a page that draws the story")
@click.option(
    "--errors",
    "errors_file",
    type=FILE,
    metavar="FILE",
    help="show these client errors on the page: JSON lines with time_ms, client, error",
)
def timeline(
    files: Sequence[Path],
    directory: Path | None,
    project: str | None,
    topic: str | None,
    broker_id: int | None,
    **form: Any,
) -> None:
    """Tell what happened in a cluster, from the event logs of its brokers.

    Without --since and --all, the story starts with the last failure: a killed, stopped or paused broker, or a lost session.
    FILES are event logs (broker-1/events.jsonl, ...), for example copied from several machines.
    """
    if sum((bool(files), directory is not None, project is not None)) > 1:
        raise click.UsageError("FILES, --dir and --compose cannot be used together")
    asked = Asked(**form)
    if asked.is_all and asked.since_ms is not None:
        raise click.UsageError("--all and --since cannot be used together")
    if asked.raw and asked.output == "json":
        raise click.UsageError("--raw prints JSON already: leave out --format json")
    if asked.follow and asked.page is not None:
        raise click.UsageError("--follow and --html cannot be used together")
    if asked.errors_file is not None and asked.page is None:
        raise click.UsageError("--errors is for --html")
    with errors_in_one_line():
        if files:
            found = sources.of_files(files)
        elif project is not None:
            found = sources.of_compose(project)
        else:
            found = sources.of_directory(directory or DEFAULT_DIRECTORY)
        # Ctrl-C is the end that --follow has, also while it still reads what was before.
        with contextlib.suppress(*([KeyboardInterrupt] if asked.follow else [])), contextlib.closing(found):
            _tell(found, Filter(topic, broker_id), asked)


def _tell(found: sources.Sources, wanted: Filter, asked: Asked) -> None:
    """Reads the logs once to find where the story starts, and once to tell it: they may be larger than the memory."""
    offsets = clocks_of(found)
    start, span = _where(found, offsets, asked)
    if asked.follow:
        span = replace(span, end_ms=inf)
    if span.last_ms is None and not asked.follow:
        raise ClusterError("the event logs are empty")
    if asked.page is not None:
        errors = sources.read_errors(asked.errors_file) if asked.errors_file is not None else []
        _write_page(asked.page, found, offsets, span, start, errors, wanted)
        echo(f"Wrote {asked.page}.")
        return
    story = Story(wanted)
    events = history_of(found, offsets)
    if asked.raw:
        start_ms = _print_raw((event for event in events if event.at_ms >= span.begin_ms), start, wanted)
    else:
        lines = span.of(story.lines(events))
        first = next(lines, None)
        start_ms = start.at_ms if start is not None else first.at_ms if first is not None else span.last_ms or 0.0
        shown = itertools.chain([first] if first is not None else [], lines)
        if asked.output == "json":
            echo_lines(json.dumps(line.to_json(start_ms)) for line in shown)
        else:
            echo_lines(head(start, start_ms, clock_words(found, offsets), asked.is_all))
            echo_lines(text for line in shown for text in told([line], start_ms, terminal_width()))
    sys.stdout.flush()
    if asked.follow:
        _follow(found, story, offsets, start_ms, wanted, asked)


@dataclass(frozen=True, slots=True)
class Span:
    """Which part is told: from `begin_ms` to before `end_ms`. `last_ms`: when the last event was; None: there is none."""

    begin_ms: float
    end_ms: float
    last_ms: float | None

    def of(self, lines: Iterable[Line]) -> Iterator[Line]:
        return (line for line in lines if self.begin_ms <= line.at_ms < self.end_ms)


def _where(found: sources.Sources, offsets: Sequence[ClockOffset], asked: Asked) -> tuple[Line | None, Span]:
    """The line with which the last failure began (None: no failure, or it was not asked for), and what is told."""
    last_ms: float | None = None

    def noting_the_last(events: Iterable[Event]) -> Iterator[Event]:
        nonlocal last_ms
        for event in events:
            last_ms = event.at_ms
            yield event

    events = noting_the_last(history_of(found, offsets))
    if asked.is_all or asked.since_ms is not None:
        deque(events, maxlen=0)
        begin_ms = last_ms - asked.since_ms if last_ms is not None and asked.since_ms is not None else -inf
        return None, Span(begin_ms, inf, last_ms)
    start, stopped_ms = last_incident(Story().lines(events))
    end_ms = stopped_ms if stopped_ms is not None else inf
    return start, Span(start.at_ms if start is not None else -inf, end_ms, last_ms)


def _write_page(
    page: Path,
    found: sources.Sources,
    offsets: Sequence[ClockOffset],
    span: Span,
    start: Line | None,
    errors: Sequence[Mapping[str, Any]],
    wanted: Filter,
) -> None:
    """Raises ClusterError."""
    shown = list(span.of(Story(wanted).lines(history_of(found, offsets))))
    start_ms = start.at_ms if start is not None else shown[0].at_ms if shown else span.last_ms or 0.0
    last_ms = shown[-1].at_ms if shown else start_ms
    drawn = Drawn(start_ms, start_ms - AROUND_MS, min(span.end_ms, last_ms + AROUND_MS))
    text = page_of(history_of(found, offsets), drawn, shown, clock_words(found, offsets), errors, wanted)
    try:
        write_output(page, text)
    except OSError as problem:
        raise ClusterError(f"{page} cannot be written: {problem.strerror}") from None


def head(start: Line | None, start_ms: float, clocks: str, is_all: bool) -> Iterator[str]:
    """The lines above the story."""
    moment = datetime.fromtimestamp(start_ms / 1000, UTC)
    text = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"
    if start is not None:
        yield f"The last failure began at {text}, which is +0.000 s. `ottla timeline --all` tells what was before."
    else:
        yield f"+0.000 s is {text}." + ("" if is_all else " No failure was found.")
    yield clocks
    yield ""


def clock_words(found: sources.Sources, offsets: Sequence[ClockOffset]) -> str:
    """How the clocks of the brokers were compared."""
    if found.have_one_clock:
        return "Clocks: all brokers run on this machine, so their times are of one clock."
    parts = []
    for offset in offsets:
        if offset.is_reference:
            parts.append(f"broker {offset.broker} is the reference")
        elif offset.low_ms is None or offset.high_ms is None:
            parts.append(f"broker {offset.broker} not measured")
        else:
            width = (offset.high_ms - offset.low_ms) / 2
            parts.append(f"broker {offset.broker} {offset.offset_ms:+.1f} ms (±{width:.1f})")
    return "Clocks, by the control requests between them: " + (", ".join(parts) or "no broker") + "."


def _print_raw(events: Iterable[Event], start: Line | None, wanted: Filter, start_ms: float | None = None) -> float:
    """Returns the time of second 0: `start_ms`, or that of `start`, or that of the first event that is printed."""
    if start_ms is None and start is not None:
        start_ms = start.at_ms
    for event in events:
        if wanted.broker is not None and event.broker not in (None, wanted.broker):
            continue
        if wanted.topic is not None and wanted.topic not in json.dumps(event.row):
            continue
        start_ms = event.at_ms if start_ms is None else start_ms
        about = {
            "seconds": round((event.at_ms - start_ms) / 1000, 4),
            "source": event.broker if event.broker is not None else "faults",
        }
        echo(json.dumps({**about, **event.row}))
    return start_ms or 0.0


def _follow(
    found: sources.Sources,
    story: Story,
    offsets: Sequence[ClockOffset],
    start_ms: float,
    wanted: Filter,
    asked: Asked,
) -> None:
    following = Following(offsets)
    while True:
        time.sleep(FOLLOW_S)
        events = following.ready({source.broker: source.read() for source in found.logs})
        if asked.raw:
            _print_raw(events, None, wanted, start_ms)
        elif asked.output == "json":
            echo_lines(json.dumps(line.to_json(start_ms)) for line in story.lines(events))
        else:
            echo_lines(told(story.lines(events), start_ms, terminal_width()))
        sys.stdout.flush()


def terminal_width() -> int | None:
    """None: the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
