"""`ottla replay trace`: looks into traces, changes them and makes them from tables (RPL-1, RPL-5)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click

from protocol.topic_names import is_valid_topic_name
from tools.failures import explained
from tools.numbers import FloatRange, IntRange
from tools.replay.parameters import (
    COMPRESSIONS,
    DURATION,
    TIME_ZONE,
    TRACE,
    WHOLE_YEAR_DAYS,
    flight_options,
    out_option,
    spark_options,
)
from tools.replay.places import PLACE, Place
from tools.terminal import echo, echo_data, echo_lines

ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}


@click.group()
def trace() -> None:
    """Look into traces, change them, and make them: Parquet tables of requests without keys and values."""


@trace.command()
@click.argument("source", type=PLACE, metavar="TRACE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@explained()
def show(source: Place, as_json: bool) -> None:
    """Show what is in a trace: its load by topic, its busiest second, its rate over time."""

    from tools.replay.run.open_places import Places
    from tools.replay.traces.show import lines, overview

    with Places() as places:
        seen = overview(places.local_copy(source)) | {"path": str(source)}
    if as_json:
        echo_data(json.dumps(seen, indent=2) + "\n")
    else:
        echo_lines(lines(seen))


@trace.command()
@click.argument("source", type=PLACE, metavar="TRACE")
@explained()
def check(source: Place) -> None:
    """Check every row of a trace. The exit code is 1 if a row is wrong."""

    from tools.replay.run.open_places import Places
    from tools.replay.traces.check import check as checked

    with Places() as places:
        found = checked(places.local_copy(source))
    echo_lines(str(finding) for finding in found.first)
    if found.count > len(found.first):
        echo(f"and {found.count - len(found.first):,} more")
    echo_lines(f"note: {note}" for note in found.notes)
    echo(f"{source}: {found.rows:,} rows, {found.count:,} findings")
    if found.count:
        sys.exit(1)


@trace.command()
@click.argument("source", type=TRACE, metavar="TRACE")
@out_option
@click.option("--from", "from_ns", type=DURATION, default="0s", help="Keep rows from this time after the start.")
@click.option("--to", "to_ns", type=DURATION, help="Keep rows before this time after the start.")
@click.option("--topic", "topics", multiple=True, help="Keep this topic. Repeatable.")
@click.option("--client", "clients", multiple=True, help="Keep this client id. Repeatable.")
@click.option("--op", "ops", type=click.Choice(["produce", "fetch"]), multiple=True, help="Keep this operation.")
@explained()
def cut(source: Path, out: Path, from_ns: int, to_ns: int | None, **named: Sequence[str]) -> None:
    """Write a part of a trace, by time, topic, client or operation."""
    if to_ns is not None and to_ns <= from_ns:
        raise click.UsageError("--to must be after --from.")

    from tools.replay.traces.cut import Part
    from tools.replay.traces.cut import cut as write_part

    rows = write_part(source, out, Part(from_ns, to_ns, **named))
    echo(f"{out}: {rows:,} rows")


@trace.command()
@click.argument("sources", type=TRACE, metavar="TRACE...", nargs=-1, required=True)
@out_option
@click.option("--align", is_flag=True, help="Let all traces start at the same time, instead of when they did.")
@click.option("--prefix-clients", is_flag=True, help="Put the trace's number before its client ids: 1-app, 2-app.")
@explained()
def merge(sources: Sequence[Path], out: Path, align: bool, prefix_clients: bool) -> None:
    """Write several traces as one, in the order of time. Equal client ids are one client, unless they get prefixes."""
    if len(sources) < 2:
        raise click.UsageError("give at least two traces.")

    from tools.replay.traces.merge import merge as write_merged

    rows = write_merged(sources, out, align=align, prefix_clients=prefix_clients)
    echo(f"{out}: {rows:,} rows")


@trace.command()
@flight_options
@click.option(
    "--fetch-gap",
    type=DURATION,
    default=0,
    help="Each reader fetches once in this time of the trace. [default: at each event]",
)
@out_option
@explained()
def flights(year: bool, days: int, start_day: datetime, fetch_gap: int, out: Path) -> None:
    """Make a trace of the flights that left New York in 2013, with departures and arrivals at their times."""

    from tools.replay.traces.flights import FIRST_DAY, write_flights_trace

    first_day, count = (FIRST_DAY, WHOLE_YEAR_DAYS) if year else (start_day.date(), days)
    events = write_flights_trace(out, first_day, count, fetch_gap)
    echo(f"{out}: {events:,} events, each produced and fetched")


@trace.group("import")
def import_() -> None:
    """Make a trace from other records of a load."""


@import_.command()
@click.argument("files", type=TRACE, metavar="FILE...", nargs=-1, required=True)
@out_option
@click.option("--time-column", required=True, metavar="COLUMN", help="When an event happened.")
@click.option("--time-unit", type=click.Choice(["s", "ms", "us", "ns"]), help="What numbers count since 1970.")
@click.option(
    "--time-zone", type=TIME_ZONE, default="UTC", show_default=True, help="The time zone of times that name none."
)
@click.option("--key-column", metavar="COLUMN", help="The key of the record. [default: no key]")
@click.option("--value-columns", metavar="A,B,C", help="The columns of the value, a JSON object. [default: all]")
@click.option("--raw-value-column", metavar="COLUMN", help="The column that is the value, as it is.")
@click.option("--bytes-column", metavar="COLUMN", help="The size of the value, in the place of a value.")
@click.option(
    "--records-column", metavar="COLUMN", help="How many records a row is: a batch, whose size is --bytes-column."
)
@click.option("--partition-column", metavar="COLUMN", help="The partition of each event. [default: the key decides]")
@click.option("--topic", help="The topic of all events.")
@click.option("--topic-column", metavar="COLUMN", help="The topic of each event.")
@click.option("--client-column", metavar="COLUMN", help="The producer of each event. [default: one producer]")
@click.option("--partitions", type=IntRange(1, 100_000), help="Partitions of each topic.")
@click.option(
    "--partitioner",
    type=click.Choice(["murmur2", "crc32"]),
    default="murmur2",
    show_default=True,
    help="How keys choose partitions: murmur2 as in Java, crc32 as in librdkafka.",
)
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="As of the producers.")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="none",
    show_default=True,
    help="As of the producers.",
)
@click.option(
    "--compression-ratio",
    type=FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="How many times smaller it makes the records.",
)
@click.option(
    "--batch-ms",
    type=IntRange(0, 3_600_000),
    default=0,
    show_default=True,
    help="Gather events into batches for so long, as linger.ms does.",
)
@click.option("--batch-bytes", type=IntRange(min=1), default=16384, show_default=True, help="As batch.size.")
@click.option(
    "--consumers", type=IntRange(0, 100_000), help="Add consumers that fetch every batch. [default: 0; 1 with --group]"
)
@click.option("--group", help="The consumer group of the consumers. [default: none]")
@spark_options
@explained()
def table(
    files: Sequence[Path],
    out: Path,
    time_zone: ZoneInfo,
    value_columns: str | None,
    acks: str,
    consumers: int | None,
    master: str | None,
    spark_settings: Sequence[str],
    **options: Any,
) -> None:
    """Make a trace from tables of events: CSV (also .gz), Parquet, or JSON with an object on each line.

    Each row is a record that is produced at its time. Rows need not be sorted. The trace has sizes and hashes, no keys and no values.
    """
    if (options["topic"] is None) == (options["topic_column"] is None):
        raise click.UsageError("use either --topic or --topic-column.")
    if options["compression_ratio"] != 1 and options["compression"] == "none":
        raise click.UsageError("--compression-ratio needs --compression.")
    if options["topic"] is not None and not is_valid_topic_name(options["topic"]):
        raise click.BadParameter(
            f"{options['topic']!r} is not a topic name: use a-z A-Z 0-9 . _ -", param_hint="--topic"
        )
    if consumers is None:
        consumers = 1 if options["group"] else 0
    if options["partitions"] is None and (consumers or options["batch_ms"]):
        raise click.UsageError("--consumers, --group and --batch-ms need --partitions.")
    if options["group"] and not consumers:
        raise click.UsageError("--group needs --consumers of at least 1.")
    given = [value_columns, options["raw_value_column"], options["bytes_column"]]
    if sum(each is not None for each in given) > 1:
        raise click.UsageError("use one of --value-columns, --raw-value-column and --bytes-column.")
    if options["records_column"] is not None and (options["bytes_column"] is None or options["batch_ms"]):
        raise click.UsageError("--records-column needs --bytes-column, and has no --batch-ms: a row is a batch.")
    values = [] if value_columns is None else value_columns.split(",")
    if not all(values):
        raise click.BadParameter(
            f"{value_columns!r}: expected names with commas between them", param_hint="--value-columns"
        )

    from tools.replay.run.spark_process import spark_settings_of
    from tools.replay.traces.import_table import TableImport, import_table

    events, requests, unused = import_table(
        files,
        out,
        TableImport(time_zone=time_zone.key, value_columns=values, acks=ACKS[acks], consumers=consumers, **options),
        spark_settings_of(master, spark_settings),
    )
    echo(f"{out}: {events:,} events in {requests:,} produce requests")
    if unused:
        echo(f"columns that were not used: {', '.join(unused)}")
