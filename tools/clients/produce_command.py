"""`ottla produce`: each line of standard input or a file becomes a record; lines without an acknowledgement are reported."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tools.admin.connection import connection_options, print_json
from tools.admin.input_files import STDIN, source_name
from tools.admin.naming import Where
from tools.admin.topic_names import one_topic, topic_argument
from tools.clients.deliveries import Deliveries, Delivery
from tools.clients.line_source import LineTooLong, lines_of
from tools.clients.record_format import BadFormat, unescape
from tools.clients.record_lines import BadLine, LineRules, json_parser, line_parser
from tools.clients.records import Header, Record
from tools.clients.stop_signals import StopSignals
from tools.failures import AdminError, errors_in_one_line
from tools.numbers import IntRange
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.clients.kafka_producer import KafkaProducer

WAIT_S = 0.1
GRACE_S = 5.0
"""Added to --timeout-ms: by then the client has given up every record."""


@click.command()
@topic_argument
@click.option("--file", "file", default=STDIN, metavar="FILE", help="read this file; - is standard input")
@click.option("--key-separator", metavar="TEXT", help="text between key and value in each line; \\t is a tab")
@click.option("--key", metavar="TEXT", help="the key of all records")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="a header of all records; may be repeated"
)
@click.option("--parse-headers", is_flag=True, help="each line starts with NAME:VALUE,NAME:VALUE and a tab")
@click.option("--null-value", metavar="TEXT", help="text that stands for a null value (a tombstone) or key")
@click.option("--json-lines", is_flag=True, help="lines are JSON, as `ottla consume --format json` prints them")
@click.option("--partition", type=IntRange(min=0), help="the partition; default: chosen by key, as Java's producers do")
@click.option(
    "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True, help="required acknowledgements"
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="compression of the batches",
)
@click.option(
    "--timeout-ms",
    type=IntRange(min=1, max=2**31 - 1),
    default=30_000,
    show_default=True,
    help="time limit for a record's acknowledgement",
)
@click.option("--verbose", is_flag=True, help="print each record's partition and offset")
@connection_options
def produce(
    topic_name: str | None,
    topic_option: str | None,
    file: str,
    partition: int | None,
    acks: str,
    compression: str,
    timeout_ms: int,
    verbose: bool,
    where: Where,
    output: str,
    **form: Any,
) -> None:
    """Write lines to a topic, one record per line. A line that fails is reported on stderr; the others are written.

    Ctrl-C ends the input and waits for acknowledgements; a second Ctrl-C stops waiting and prints how many are unknown.
    """
    topic = one_topic(topic_name, topic_option)
    parse = _parser(partition, **form)
    with errors_in_one_line(), _opened(file) as stream, StopSignals() as signals:
        deliveries = Deliveries(topic, lambda text: echo(text, err=True))
        producer = _producer(where.servers(), where.command_config, acks, compression, timeout_ms, deliveries, verbose)
        _check_partition(topic, partition, producer.partition_count(topic))
        if stream.isatty():
            echo("One record per line; Ctrl-D ends.", err=True)
        problem = _send_lines(producer, topic, stream, file, parse, deliveries, signals)
        _await_deliveries(producer, timeout_ms / 1000, signals)
    _report(deliveries, output, signals, problem)


def _parser(
    partition: int | None,
    key_separator: str | None,
    key: str | None,
    headers: Sequence[str],
    parse_headers: bool,
    null_value: str | None,
    json_lines: bool,
) -> Callable[[bytes], Record]:
    """Makes a record of a line, as the options of these names say. Raises UsageError."""
    rules = LineRules(
        key_separator=_separator(key_separator),
        fixed_key=None if key is None else key.encode(),
        fixed_headers=tuple(_header(text) for text in headers),
        with_headers=parse_headers,
        null_text=None if null_value is None else null_value.encode(),
        partition=partition,
    )
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator cannot be used together.")
    if json_lines and (key_separator is not None or parse_headers or null_value is not None):
        raise click.UsageError("--json-lines has its own keys, headers and nulls: leave out the other options.")
    return json_parser(rules) if json_lines else line_parser(rules)


def _producer(
    bootstrap_servers: str,
    command_config: Path | None,
    acks: str,
    compression: str,
    timeout_ms: int,
    deliveries: Deliveries,
    verbose: bool,
) -> KafkaProducer:
    from tools.clients.kafka_producer import KafkaProducer  # imported when needed, so that `--help` is fast

    def delivered(outcome: Delivery, line: int, what: str) -> None:
        deliveries.add(outcome, line, what)
        if verbose and outcome in (Delivery.ACKNOWLEDGED, Delivery.SENT):
            echo(f"line {line}: {what}", err=True)

    return KafkaProducer(
        bootstrap_servers,
        command_config,
        acks=acks,
        compression=compression,
        timeout_s=timeout_ms / 1000,
        delivered=delivered,
    )


def _send_lines(
    producer: KafkaProducer,
    topic: str,
    stream: BinaryIO,
    file: str,
    parse: Callable[[bytes], Record],
    deliveries: Deliveries,
    signals: StopSignals,
) -> str | None:
    """Sends until the input ends; returns the error that ended it early, if any."""
    number = 0

    def stopping() -> bool:
        return signals.count > 0

    try:
        for line in lines_of(stream, WAIT_S):
            if stopping():
                return None
            if line is None:
                producer.serve(0)
                continue
            number += 1
            try:
                record = parse(line)
            except BadLine as problem:
                deliveries.add(Delivery.BAD, number, str(problem))
                continue
            if not producer.send(topic, record, number, stopping):
                deliveries.add(Delivery.NOT_SENT, number, "interrupted before it was sent")
                return None
    except LineTooLong as problem:
        return f"line {number + 1}: {problem}"
    except OSError as problem:
        return f"{source_name(file)}, after line {number}: {problem.strerror}"
    except AdminError as problem:
        return str(problem)
    return None


def _await_deliveries(producer: KafkaProducer, timeout_s: float, signals: StopSignals) -> None:
    """Waits until each line has an outcome. The first Ctrl-C of the run is only reported; the next gives up the remaining lines."""
    is_reported = False
    tolerated = max(signals.count, 1)
    deadline = time.monotonic() + timeout_s + GRACE_S
    while left := producer.serve(WAIT_S):
        if signals.count and not is_reported:
            echo(f"Waiting for {left} acknowledgements; Ctrl-C stops waiting.", err=True)
            is_reported = True
        if signals.count > tolerated or time.monotonic() > deadline:
            producer.give_up()
            return


def _report(deliveries: Deliveries, output: str, signals: StopSignals, problem: str | None) -> None:
    """Prints the result. Exits with 1 after a failure, with the shell's code after a signal."""
    if output == "json":
        print_json(deliveries.as_json())
    else:
        echo(deliveries.summary())
    failures = [text for text in (problem, deliveries.failures() if deliveries.failed else None) if text]
    if failures:
        echo(f"Error: {'; '.join(failures)}", err=True)
    if signals.count:
        echo("Interrupted.", err=True)
        sys.exit(signals.exit_code)
    if failures:
        sys.exit(1)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Raises AdminError."""
    if file == STDIN:
        if sys.stdin is None:
            raise AdminError("standard input is closed: pipe lines into it, or use --file")
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115  later errors are not errors of `open`
    except OSError as problem:
        raise AdminError(f"{file}: {problem.strerror}") from None
    with stream:
        yield stream


def _check_partition(topic: str, partition: int | None, count: int) -> None:
    if partition is not None and partition >= count:
        raise AdminError(f"topic {topic!r} has no partition {partition}, only 0 to {count - 1}")


def _separator(text: str | None) -> bytes | None:
    """Parses escapes such as \\t. Raises UsageError."""
    if text is None:
        return None
    try:
        separator = unescape(text)
    except BadFormat as problem:
        raise click.UsageError(f"--key-separator {text!r}: {problem}.") from None
    if not separator:
        raise click.UsageError("--key-separator must not be empty.")
    return separator


def _header(text: str) -> Header:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--header {text!r}: expected NAME=VALUE.")
    return name, value.encode()
