"""Output of a watched reassignment: a bar on a terminal, lines in a pipe or file, a JSON object per change with `--format json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from protocol.types import TopicPartition
from tools.admin.reassign_plan import partitions_text
from tools.admin.reassign_progress import Overall
from tools.admin.reassign_run import Report, progress_json
from tools.admin.topic_views import ids_text
from tools.terminal import echo

BAR_FORMAT = "|{bar:24}| {desc}"


@contextmanager
def watching(output: str) -> Iterator[Report]:
    """The report for `--format` and the kind of output."""
    if output == "json":
        yield JsonReport()
    elif sys.stdout.isatty():
        report = BarReport()
        try:
            yield report
        finally:
            report.close()
    else:
        yield LineReport()


def batch_line(number: int, count: int, partitions: Sequence[TopicPartition]) -> str:
    batch = f"Batch {number} of {count}: " if count > 1 else ""
    if not partitions:
        return f"{batch}no partition was started."
    return f"{batch}Successfully started partition reassignments for {partitions_text(partitions)}"


def progress_line(overall: Overall, dead_brokers: Sequence[int]) -> str:
    waits = f"; waiting for broker {ids_text(dead_brokers)}, which is down" if dead_brokers else ""
    return f"{overall}{waits}"


class LineReport:
    """Prints a line when the whole percent, the finished partitions or the dead brokers change."""

    def __init__(self) -> None:
        self._reported: object = None

    def batch_started(self, number: int, count: int, partitions: Sequence[TopicPartition]) -> None:
        echo(batch_line(number, count, partitions))

    def progressed(self, overall: Overall, dead_brokers: Sequence[int]) -> None:
        state = (overall.partitions_done, int(overall.percent), tuple(dead_brokers))
        if state != self._reported:
            self._reported = state
            echo(progress_line(overall, dead_brokers))


class BarReport:
    """A bar that is redrawn in place."""

    def __init__(self) -> None:
        self._bar: Any = None

    def batch_started(self, number: int, count: int, partitions: Sequence[TopicPartition]) -> None:
        line = batch_line(number, count, partitions)
        if self._bar is None:
            echo(line)
        else:
            self._bar.write(line)

    def progressed(self, overall: Overall, dead_brokers: Sequence[int]) -> None:
        if self._bar is None:
            self._bar = tqdm(total=100.0, bar_format=BAR_FORMAT, file=sys.stdout, dynamic_ncols=True)
        self._bar.n = overall.percent
        self._bar.set_description_str(progress_line(overall, dead_brokers), refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class JsonReport:
    """One JSON object per line: `{"event": "started"|"progress", ...}`."""

    def __init__(self) -> None:
        self._reported: object = None

    def batch_started(self, number: int, count: int, partitions: Sequence[TopicPartition]) -> None:
        print_event("started", batch=number, batches=count, partitions=[str(partition) for partition in partitions])

    def progressed(self, overall: Overall, dead_brokers: Sequence[int]) -> None:
        state = (overall.partitions_done, overall.bytes, tuple(dead_brokers))
        if state == self._reported:
            return
        self._reported = state
        print_event(
            "progress",
            partitions_done=overall.partitions_done,
            partitions=overall.partitions,
            **progress_json(overall.bytes),
            bytes_per_second=None if overall.rate is None else round(overall.rate),
            eta_s=None if overall.eta_s is None else round(overall.eta_s, 1),
            dead_brokers=list(dead_brokers),
        )


def print_event(event: str, **facts: Any) -> None:
    echo(json.dumps({"event": event, **facts}))
