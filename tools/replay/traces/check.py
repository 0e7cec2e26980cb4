"""`ottla replay trace check`: every row of a trace against the rules of `schema`."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute as compute
from numpy.typing import NDArray

from protocol.plain_text import shortened
from tools.replay.traces.merge import request_range
from tools.replay.traces.ordering import in_whole_times
from tools.replay.traces.schema import (
    ABORT,
    COMMIT,
    COMPRESSIONS,
    ENDS,
    FETCH,
    OF_FETCH,
    OF_PRODUCE,
    OFFSETS,
    PRODUCE,
    SCHEMA,
    Trace,
)

SHOWN = 20
ACKS = (-1, 0, 1)
NOT_NEGATIVE = ("time_ns", "request", "key_hash", "records", "bytes", "min_bytes", "max_wait_ms", "max_bytes", "behind")
NOWHERE = numpy.empty(0, numpy.int64)
SPAN_MAX = 2**32
"""Request numbers are compared over the whole trace with a bit for each number between the lowest and the highest."""

YEAR_2000_NS = 946_684_800 * 10**9
SINCE_1970 = "counts since 1970: subtract it from every row, as the times of a trace count from its start"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """`row` counts from 1, over all files of the trace."""

    row: int
    column: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.column}: {self.reason}"


@dataclass(slots=True)
class Findings:
    """The first findings, and the number of all."""

    rows: int = 0
    count: int = 0
    first: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not checked."""

    def add(self, found: Iterator[tuple[NDArray[numpy.int64], str, str]], table: pyarrow.Table) -> None:
        """Adds findings in a table whose first row is row `self.rows` + 1: (rows from 0, column, reason with `{}` for the value)."""
        for places, column, reason in found:
            self.count += len(places)
            shown = [
                Finding(self.rows + int(at) + 1, column, _filled(reason, table[column], int(at)))
                for at in places[:SHOWN]
            ]
            self.first = heapq.nsmallest(SHOWN, [*self.first, *shown])


def _filled(reason: str, column: pyarrow.ChunkedArray, at: int) -> str:
    return reason.format(shortened(str(column[at].as_py()), 60)) if "{}" in reason else reason


def check(path: Path) -> Findings:
    """Reads the whole trace. Raises TraceError if it cannot be read."""
    trace = Trace(path)
    findings = Findings()
    requests = _Requests.of(trace)
    if requests is None:
        findings.notes.append("request numbers are too far apart to see whether one occurs at two times")
    last_ns: int | None = None
    for table in in_whole_times(trace.batches(nulls=True)):
        rows = table.combine_chunks()
        if not findings.rows and is_since_1970(rows["time_ns"][0].as_py()):
            findings.add(iter([(numpy.zeros(1, numpy.int64), "time_ns", f"{{}} {SINCE_1970}")]), rows)
        findings.add(_row_findings(rows, trace.info.topics), rows)
        findings.add(_steps_back(rows, last_ns), rows)
        findings.add(_request_findings(rows, requests), rows)
        findings.rows += rows.num_rows
        times = rows["time_ns"].drop_null()
        last_ns = times[-1].as_py() if len(times) else last_ns
    return findings


def is_since_1970(first_ns: int | None) -> bool:
    """Whether the first time of a trace is a date: a replay would wait for decades."""
    return first_ns is not None and first_ns >= YEAR_2000_NS


def _where(condition: Any) -> NDArray[numpy.int64]:
    """The rows, from 0, in which the condition is true. Null is not."""
    if not compute.any(condition).as_py():
        return NOWHERE
    if isinstance(condition, pyarrow.ChunkedArray):
        condition = condition.combine_chunks()
    return numpy.flatnonzero(compute.fill_null(condition, False).to_numpy(zero_copy_only=False))


def _row_findings(rows: pyarrow.Table, topics: Mapping[str, int]) -> Iterator[tuple[NDArray[numpy.int64], str, str]]:
    """Findings that need no other row."""
    is_produce, is_fetch = compute.equal(rows["op"], PRODUCE), compute.equal(rows["op"], FETCH)
    for name in SCHEMA.names:
        if rows[name].null_count and not SCHEMA.field(name).nullable:
            yield _where(rows[name].is_null()), name, "is null"
    is_end = compute.is_in(rows["op"], pyarrow.array(ENDS, rows["op"].type))
    is_offsets = compute.equal(rows["op"], OFFSETS)
    is_known = compute.or_(compute.or_(is_produce, is_fetch), compute.or_(is_end, is_offsets))
    yield _where(compute.invert(is_known)), "op", f"{{}} is none of {', '.join((PRODUCE, FETCH, *ENDS, OFFSETS))}"
    of_produce, of_fetch = (*OF_PRODUCE, "key_hash"), (*OF_FETCH, "offset", "behind", "read_committed")
    for own, others, is_op, what in (
        (OF_PRODUCE, of_fetch, is_produce, PRODUCE),
        (OF_FETCH, (*of_produce, "transactional_id"), is_fetch, FETCH),
        (("transactional_id",), (*of_produce, *of_fetch), is_end, f"{COMMIT} or {ABORT}"),
        (("transactional_id", "group"), (*of_produce, *of_fetch), is_offsets, f"row of {OFFSETS}"),
    ):
        for name in own:
            if name not in rows.schema.names:
                yield _where(is_op), "op", f"{{}} in a trace without {name}"
            elif rows[name].null_count:
                yield _where(compute.and_(is_op, rows[name].is_null())), name, f"is null in a {what}"
        for name in others:
            if name in rows.schema.names and rows[name].null_count < rows.num_rows:
                yield _where(compute.and_(is_op, rows[name].is_valid())), name, f"is {{}} in a {what}, which has none"
    for name in ("topic", "partition", "records", "bytes"):
        is_something = compute.not_equal(rows[name], pyarrow.scalar("" if name == "topic" else 0, rows[name].type))
        yield _where(compute.and_(is_end, is_something)), name, f"{{}} in a {COMMIT} or {ABORT}"
        if name in ("records", "bytes"):
            yield _where(compute.and_(is_offsets, is_something)), name, f"{{}} in {OFFSETS}"
    yield (
        _where(_not_in(rows["compression"], COMPRESSIONS)),
        "compression",
        f"{{}} is none of {', '.join(COMPRESSIONS)}",
    )
    yield _where(_not_in(rows["acks"], ACKS)), "acks", "{} is none of -1, 0, 1"
    for name in NOT_NEGATIVE:
        yield _where(compute.less(rows[name], 0)), name, "{} is negative"
    yield _where(compute.less(rows["partition"], -1)), "partition", "{} is below -1"
    for name in compute.unique(rows["topic"]).to_pylist() if topics else ():
        if name in topics:
            beyond = compute.greater_equal(rows["partition"], topics[name])
            is_topic = compute.equal(rows["topic"], name)
            yield (
                _where(compute.and_(beyond, is_topic)),
                "partition",
                f"{{}} is not a partition of topic {shortened(name, 60).replace('{', '{{').replace('}', '}}')}, which has {topics[name]}",
            )
    if "keys" in rows.schema.names:
        yield _where(have_other_keys(rows)), "keys", "has neither one hash nor one for each record"
        is_unknown = compute.and_(rows["keys"].is_valid(), rows["key_bytes"].is_null())
        yield _where(is_unknown), "key_bytes", "is null beside keys"
        yield _where(compute.less(rows["key_bytes"], 0)), "key_bytes", "{} is negative"
    no_records = compute.equal(rows["records"], 0)
    yield _where(compute.and_(no_records, compute.greater(rows["bytes"], 0))), "bytes", "{} for 0 records"
    yield _where(compute.and_(no_records, is_produce)), "records", "0 in a produce"


def have_other_keys(rows: pyarrow.Table) -> pyarrow.ChunkedArray:
    """Whether the `keys` of each row are neither one hash nor one for each record; null without keys."""
    counts = compute.list_value_length(rows["keys"])
    return compute.and_(compute.not_equal(counts, 1), compute.not_equal(counts, rows["records"]))


def _not_in(column: pyarrow.ChunkedArray, values: tuple[Any, ...]) -> pyarrow.ChunkedArray:
    is_known = compute.is_in(column, pyarrow.array(values, column.type))
    return compute.and_(column.is_valid(), compute.invert(is_known))


def _steps_back(rows: pyarrow.Table, last_ns: int | None) -> Iterator[tuple[NDArray[numpy.int64], str, str]]:
    """Times before that of the row before. Null times are left out."""
    places = _where(rows["time_ns"].is_valid())
    times = rows["time_ns"].drop_null().to_numpy()
    if not len(times):
        return
    before = numpy.concatenate(([times[0] if last_ns is None else last_ns], times[:-1]))
    yield places[times < before], "time_ns", "{} is before the time of the row before"


class _Requests:
    """The request numbers of a trace that were seen, a bit for each number."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._seen = numpy.zeros((last - first) // 8 + 1, numpy.uint8)

    @staticmethod
    def of(trace: Trace) -> _Requests | None:
        """None if the numbers are too far apart."""
        first, last = request_range(trace)
        return _Requests(first, last) if last - first < SPAN_MAX else None

    def seen(self, numbers: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        """Whether each of these sorted, different numbers was seen before. They are seen from now on."""
        places = numbers - self._first
        bits = (1 << (places & 7)).astype(numpy.uint8)
        were_seen: NDArray[numpy.bool_] = (self._seen[places >> 3] & bits) != 0
        starts = numpy.flatnonzero(numpy.diff(places >> 3, prepend=-1))
        self._seen[(places >> 3)[starts]] |= numpy.bitwise_or.reduceat(bits, starts) if len(bits) else bits
        return were_seen


def _request_findings(
    rows: pyarrow.Table, requests: _Requests | None
) -> Iterator[tuple[NDArray[numpy.int64], str, str]]:
    """Rows of one request that differ in client, operation or time. `rows` has all rows of its times."""
    columns = ("request", "time_ns", "client", "op")
    places = numpy.arange(rows.num_rows)
    for name in columns:
        if rows[name].null_count:
            places = numpy.intersect1d(places, _where(rows[name].is_valid()))
    whole = rows.select(columns)
    if len(places) < rows.num_rows:
        whole = whole.take(places).combine_chunks()
    numbers = whole["request"].to_numpy()
    if (numbers[1:] < numbers[:-1]).any():
        order = numpy.argsort(numbers, kind="stable")
        whole, places, numbers = whole.take(order).combine_chunks(), places[order], numbers[order]
    is_same = numbers[1:] == numbers[:-1]
    if is_same.any():
        for name in columns[1:]:
            differs = compute.fill_null(
                compute.not_equal(whole[name].slice(1), whole[name].slice(0, len(is_same))), True
            )
            differing = is_same & differs.combine_chunks().to_numpy(zero_copy_only=False)
            yield numpy.sort(places[1:][differing]), name, "{} is not that of the other rows of its request"
    if requests is not None and len(numbers):
        firsts = numpy.flatnonzero(numpy.concatenate(([True], ~is_same)))
        again = requests.seen(numbers[firsts])
        yield numpy.sort(places[firsts[again]]), "request", "{} was that of a request at another time"
