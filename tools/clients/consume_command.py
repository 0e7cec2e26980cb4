"""`ottla consume`: prints the records of a topic from a chosen offset, alone or as a member of a group."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tools.admin.naming import Where, server_options
from tools.admin.topic_names import one_topic, topic_argument
from tools.clients.record_format import DEFAULT, TOKENS, BadFormat, record_formatter
from tools.clients.records import ReadRecord
from tools.clients.starts import EARLIEST, LATEST, NoStart, Start, parse_start
from tools.clients.stop_signals import StopSignals
from tools.failures import AdminError, errors_in_one_line
from tools.groups.completion import complete_groups
from tools.numbers import IntRange
from tools.terminal import echo, for_terminal

if TYPE_CHECKING:
    from tools.clients.kafka_consumer import KafkaConsumer

READ_AT_ONCE = 500
WAIT_S = 0.1
JOIN_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When reading ends by itself, by the options of these names; None and False mean never."""

    max_messages: int | None
    timeout_ms: int | None
    exit_at_end: bool


@click.command(
    epilog="\b\nTokens of --format:\n"
    + "\n".join(f"  %{token}  {meaning}" for token, (meaning, _) in TOKENS.items())
    + "\nEscapes: \\n \\r \\t \\0 \\xNN \\\\. `json` prints a line of JSON for each record.\n"
    + "\nStarts of --offset: 17, -5 (the last five), earliest, latest, @1763719200000, @2026-11-21T10:00"
)
@topic_argument
@click.option(
    "--from-beginning",
    is_flag=True,
    help="start at the first record; for a group, only in partitions without a committed offset",
)
@click.option("--offset", metavar="START", help="start here; default: the end, so only new records")
@click.option(
    "--partition", "partitions", type=IntRange(min=0), multiple=True, help="read only this partition; may be repeated"
)
@click.option(
    "--group",
    metavar="GROUP",
    help="read as a member of the group, and commit the printed records",
    shell_complete=complete_groups,
)
@click.option("--max-messages", type=IntRange(min=1), metavar="NUMBER", help="end after this many records")
@click.option("--timeout-ms", type=IntRange(min=1), metavar="MS", help="end after this time without a record")
@click.option("--exit-at-end", is_flag=True, help="end when all existing records have been read")
@click.option(
    "--format", "template", default=DEFAULT, show_default=True, metavar="TOKENS|json", help="how to print a record"
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="whether to show records of open and aborted transactions",
)
@server_options
def consume(
    topic_name: str | None,
    topic_option: str | None,
    from_beginning: bool,
    offset: str | None,
    partitions: Sequence[int],
    group: str | None,
    template: str,
    isolation_level: str,
    where: Where,
    **ends: Any,
) -> None:
    """Print the records of a topic: new ones, or from --from-beginning or --offset on. Ctrl-C ends."""
    topic = one_topic(topic_name, topic_option)
    start = _start(from_beginning, offset)
    if group is not None and (offset is not None or partitions):
        raise click.UsageError(
            "--group starts at the group's committed offsets, in the partitions assigned to it: leave out --offset and "
            "--partition, or set its offsets with `ottla group reset-offsets`."
        )
    if group == "":
        raise click.UsageError("--group must not be empty.")
    try:
        render = record_formatter(template)
    except BadFormat as problem:
        raise click.UsageError(f"--format: {problem}.") from None
    limits = Limits(**ends)
    with errors_in_one_line(), StopSignals() as signals:
        from tools.clients.kafka_consumer import KafkaConsumer  # imported when needed, so that `--help` is fast

        consumer = KafkaConsumer(
            where.servers(),
            where.command_config,
            topic,
            group=group,
            from_beginning=from_beginning,
            isolation_level=isolation_level,
            warn=lambda text: echo(f"Warning: {text}", err=True),
        )
        with contextlib.closing(consumer):
            known = consumer.partitions()
            if group is not None:
                consumer.subscribe()
            else:
                consumer.assign(_chosen(topic, partitions, known), start)
            reading = _Reading(consumer, limits, render, signals, commits=group is not None)
            count = reading.run()
        echo(f"Processed a total of {count} messages", err=True)
        wanted = limits.max_messages
        if wanted is not None and count < wanted and reading.has_timed_out and not limits.exit_at_end:
            raise AdminError(f"received only {count} of {wanted} messages, then none for {limits.timeout_ms} ms")
    if signals.count:
        sys.exit(signals.exit_code)


@dataclass(slots=True)
class _Reading:
    """Prints records until a limit is reached, a signal arrives, or the program that reads the output has ended."""

    consumer: KafkaConsumer
    limits: Limits
    render: Callable[[ReadRecord], bytes]
    signals: StopSignals
    commits: bool
    count: int = 0
    has_timed_out: bool = False

    def run(self) -> int:
        """Returns the number of printed records. Raises AdminError."""
        try:
            self._read()
        except BrokenPipeError:
            # The reader has seen enough, like `head`. Without this, Python would complain in its final flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if self.commits:
            self.consumer.commit()
        return self.count

    def _read(self) -> None:
        limit = self.limits.max_messages
        last = time.monotonic()
        while not self.signals.count and (limit is None or self.count < limit):
            wanted = READ_AT_ONCE if limit is None else min(READ_AT_ONCE, limit - self.count)
            was_assigned = self.consumer.is_assigned
            records = self.consumer.read(wanted, WAIT_S)
            if records:
                self._print(records)
            if records or self.consumer.is_assigned != was_assigned:
                last = time.monotonic()
            if self.limits.exit_at_end and not records and self.consumer.is_at_end:
                return
            if self._is_over(time.monotonic() - last):
                self.has_timed_out = True
                return

    def _print(self, records: Sequence[tuple[ReadRecord, Any]]) -> None:
        """Prints the records, and then allows the commit of their offsets."""
        output = sys.stdout.buffer
        is_terminal = sys.stdout.isatty()
        for record, _ in records:
            data = self.render(record)
            output.write(for_terminal(data.decode(errors="backslashreplace")).encode() if is_terminal else data)
        output.flush()
        self.count += len(records)
        if self.commits:
            for _, message in records:
                self.consumer.mark_printed(message)

    def _is_over(self, idle_s: float) -> bool:
        """The time to join a group does not count for --timeout-ms. Raises AdminError if joining takes too long."""
        if self.limits.timeout_ms is None:
            return False
        timeout_s = self.limits.timeout_ms / 1000
        if self.consumer.is_assigned:
            return idle_s >= timeout_s
        if idle_s >= max(JOIN_PATIENCE_S, timeout_s):
            raise AdminError(
                f"the group assigned no partitions within {idle_s:.0f} s; see `ottla group describe --members`"
            )
        return False


def _start(from_beginning: bool, offset: str | None) -> Start:
    if from_beginning and offset is not None:
        raise click.UsageError("--from-beginning and --offset cannot be used together.")
    if offset is None:
        return EARLIEST if from_beginning else LATEST
    try:
        return parse_start(offset)
    except NoStart as problem:
        raise click.UsageError(f"--offset {problem}.") from None


def _chosen(topic: str, wanted: Sequence[int], known: Sequence[int]) -> Sequence[int]:
    """Raises AdminError for a partition that does not exist."""
    for partition in wanted:
        if partition not in known:
            raise AdminError(f"topic {topic!r} has no partition {partition}, only 0 to {len(known) - 1}")
    return sorted(set(wanted)) or known
