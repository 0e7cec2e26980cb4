"""For how long partitions were away, and what a fault cost (RPL-3).

An **outage** of a partition is a window without an acknowledgement in which at least one produce operation waited for the cluster. It
starts at the previous acknowledgement or, if nothing was waiting then, when the oldest waiting operation was ready: from then on it was
sent, or could not be sent because there was no leader. It ends with the next acknowledgement, or when the last waiting operation fails. A
partition to which nothing is produced has none. A standstill of the generator is no outage: what became due in it was ready after it, and
an answer that was read after it may have come when it began.

Operations of a partition that end within the same BIN_NS count as one, so that the windows are few. A window that is shorter may be
missed; longer ones are exact, unless an operation fails within BIN_NS before an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from statistics import median
from typing import Any

import pyarrow
from pyspark.sql import SparkSession

from tools.replay.checks import OUTAGE_MS_MIN
from tools.replay.run.cube import literal
from tools.replay.run.queries import query
from tools.replay.run.session import spark_schema

BIN_NS = 10_000_000
SHOWN_NS = OUTAGE_MS_MIN * 1_000_000
SHOWN = 100
OTHERS_SHOWN = 200
"""Limit of the outages of one fault that are shown of partitions which its broker did not lead."""
NORMAL_FACTOR = 2.0
"""The p99 of an interval is normal up to this factor of the median before the fault."""

WINDOWS = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("began", pyarrow.int64()),
        ("ended", pyarrow.int64()),
    ]
)
ROWS_AT_ONCE = 8192


def find_windows(session: SparkSession, ended: int) -> None:
    """Makes the view `windows` of the view `operations`: topic, partition, began, ended. `ended` replaces missing answers, in ns."""
    bins = session.sql(query("outage_bins").format(ended=ended, bin=BIN_NS)).repartition("topic", "partition")
    latest_first = bins.sortWithinPartitions("topic", "partition", bins["bin"].desc())
    latest_first.mapInArrow(_in_tasks, spark_schema(WINDOWS)).persist().createOrReplaceTempView("windows")


def _in_tasks(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    bins = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    found = (
        (topic, partition, began, until)
        for (topic, partition), of_partition in groupby(bins, itemgetter(0, 1))
        for began, until in windows_of(bin[3:] for bin in of_partition)
        if until - began >= BIN_NS
    )
    while rows := list(islice(found, ROWS_AT_ONCE)):
        columns = zip(WINDOWS.names, zip(*rows, strict=True), strict=True)
        yield pyarrow.RecordBatch.from_pydict(dict(columns), schema=WINDOWS)


def windows_of(bins: Iterable[tuple[int, int, int | None]]) -> Iterator[tuple[int, int]]:
    """(began, ended) of the windows of a partition, the latest first. `bins`: oldest, ended, acknowledged of each bin, the latest first; at
    least one.

    While one goes back in time, `oldest` is the oldest operation that was not answered yet. A window goes back to the acknowledgement
    before it, or to where nothing was waiting.
    """
    bins = iter(bins)
    oldest, until, _ = next(bins)
    for oldest_of_bin, ended, acknowledged in bins:
        if acknowledged is not None or oldest > ended:
            yield max(oldest, acknowledged or 0), until
            until = ended
        oldest = min(oldest, oldest_of_bin)
    yield oldest, until


def longest(session: SparkSession) -> list[dict[str, Any]]:
    """The longest outages: topic, partition, began, ended; in the order of their length."""
    rows = session.sql(
        f"""
        SELECT * FROM windows WHERE ended - began >= {SHOWN_NS}L
        ORDER BY ended - began DESC, began, topic, partition LIMIT {SHOWN}
        """
    ).collect()
    return [row.asDict() for row in rows]


def longest_of_faults(session: SparkSession, spans: Sequence[tuple[int, int]]) -> list[list[dict[str, Any]]]:
    """For each span (from, to, in ns) the longest window of each partition that overlaps it: topic, partition, began, ended."""
    found: list[list[dict[str, Any]]] = [[] for _ in spans]
    if not spans:
        return found
    table = values([(number, begin, end) for number, (begin, end) in enumerate(spans)], "number, begin, until")
    rows = session.sql(
        f"""
        SELECT number, topic, partition, longest.began, longest.ended FROM (
            SELECT number, topic, partition, max(struct(ended - began AS length, began, ended)) AS longest
            FROM windows JOIN {table} ON windows.ended > spans.begin AND windows.began < spans.until
            GROUP BY number, topic, partition
        )
        """
    ).collect()
    for row in rows:
        found[row["number"]].append(row.asDict())
    for each in found:
        each.sort(key=lambda row: (row["began"] - row["ended"], row["topic"], row["partition"]))
    return found


def add_delayed(session: SparkSession, windows: Sequence[dict[str, Any]]) -> None:
    """Adds to each window the `operations` and `records` that were due in it."""
    if not windows:
        return
    rows = [(number, row["topic"], row["partition"], row["began"], row["ended"]) for number, row in enumerate(windows)]
    table = values(rows, "number, topic, partition, begin, until")
    found = session.sql(
        f"""
        SELECT number, count(*) AS operations, sum(records) AS records FROM operations JOIN {table}
            ON operations.topic = spans.topic AND operations.partition = spans.partition
                AND scheduled >= begin AND scheduled < until
        WHERE op = 'produce' GROUP BY number
        """
    ).collect()
    by_number = {row["number"]: (row["operations"], row["records"]) for row in found}
    for number, row in enumerate(windows):
        row["operations"], row["records"] = by_number.get(number, (0, 0))


def values(rows: Sequence[tuple[Any, ...]], columns: str) -> str:
    """An inline table `spans`; whole numbers are bigint. There is at least one row."""
    text = ", ".join(
        f"({', '.join(literal(value) if isinstance(value, str) else f'{value}L' for value in row)})" for row in rows
    )
    return f"(SELECT * FROM VALUES {text} AS spans({columns})) AS spans"


def fault_spans(faults: Sequence[dict[str, Any]], ended: int) -> list[tuple[int, int]]:
    """For each fault, the time from it to the next one that was carried out, in ns."""
    times = sorted(fault["at_ns"] for fault in faults if not fault["error"])
    return [
        (fault["at_ns"], next((time for time in times if time > fault["at_ns"]), max(ended, fault["at_ns"] + 1)))
        for fault in faults
    ]


def normal_after_s(p99_ms: Sequence[float | None], interval_s: int, second: float, until: float) -> float | None:
    """The seconds from a fault until the p99 of an interval is normal again; 0 if it stayed normal until `until`.

    Normal: at most NORMAL_FACTOR of the median of the intervals before the fault. An interval without an acknowledgement is not
    normal. None if it did not become normal, or if nothing was measured before. Resolution: one interval.
    """
    first, last = int(second // interval_s), min(int(-(-until // interval_s)), len(p99_ms))
    before = [value for value in p99_ms[: max(first, 0)] if value is not None]
    if not before:
        return None
    limit = NORMAL_FACTOR * median(before)
    is_normal = [value is not None and value <= limit for value in p99_ms]
    odd = next((at for at in range(first, last) if not is_normal[at]), None)
    if odd is None:
        return 0.0
    again = next((at for at in range(odd + 1, len(p99_ms)) if is_normal[at]), None)
    return None if again is None else again * interval_s - second
