"""What the consumers of a workload fetch, simulated: a broker that answers at once, and no network.

A consumer has one fetch at a time. The fetch returns what is there, up to `max_bytes`, if it is `min_bytes`; else it waits for that, or for
`max_wait`. The next fetch is sent `TURNAROUND_NS` after the answer.
A reader that catches up first reads its backlog, `max_bytes` at a time at its rate, partition after partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from tools.replay.traces.schema import TraceError
from tools.replay.traces.workload import NS_PER_S, ConsumerSpec

TURNAROUND_NS = 1_000_000
STEPS_MAX = 64 * 1024
"""Fetches that one `advance` makes at most."""
BEHIND_MAX = 4 * 1024 * 1024
"""Batches that a reader may be behind."""
RECORD_BYTES = 100
"""Size of a record of a backlog if nothing was produced before."""

Numbers = NDArray[numpy.int64]
Rows = dict[str, Numbers]
"""Columns time_ns, partition, records, bytes, offset (-1: unknown), behind, first (1 for a fetch's first row)."""
COLUMNS = ("time_ns", "partition", "records", "bytes", "offset", "behind", "first")


class Reader:
    """One consumer. `feed` tells it what was produced; then `advance` gives its fetches."""

    def __init__(self, spec: ConsumerSpec, client: int, partitions: Sequence[int], phase: float) -> None:
        """`phase`, from 0 to 1, spreads the first fetches of the consumers."""
        self.client = client
        self.sends_at = round(phase * spec.max_wait_ns)
        """When it sends its next fetch, or sent the one that waits for its answer."""
        self._spec = spec
        self._partitions = numpy.array(partitions, numpy.int64)
        self._waits_for = self._spec.catch_up
        self._backlog: _Backlog | None = None
        self._pace_ns = TURNAROUND_NS
        if spec.catch_up is not None:
            self.sends_at = spec.catch_up.from_ns
            self._pace_ns = max(TURNAROUND_NS, round(spec.max_bytes / spec.catch_up.rate * NS_PER_S))
        empty = numpy.empty(0, numpy.int64)
        self._times, self._places, self._records, self._bytes, self._offsets = empty, empty, empty, empty, empty

    def feed(self, batches: dict[str, Numbers], ends: Numbers, mean_size: float) -> None:
        """The batches of its topic, with the offset of each; the end offsets before them; the mean size of a record.

        Raises TraceError if it falls behind for ever.
        """
        mine = numpy.isin(batches["partition"], self._partitions)
        if self._waits_for is not None:
            early = batches["time_ns"] < self._waits_for.from_ns
            ends = ends.copy()
            numpy.add.at(ends, batches["partition"][early], batches["records"][early])
            mine &= ~early
            if not early.all():
                self._start_to_catch_up(ends, mean_size)
        news = (batches[name][mine] for name in ("time_ns", "partition", "records", "bytes", "offset"))
        olds = (self._times, self._places, self._records, self._bytes, self._offsets)
        joined = [numpy.concatenate(pair) for pair in zip(olds, news, strict=True)]
        self._times, self._places, self._records, self._bytes, self._offsets = joined
        if len(self._times) > BEHIND_MAX:
            raise TraceError(
                f"consumer {self._spec.name} is {len(self._times):,} batches behind and does not catch up: raise its max_bytes or rate"
            )

    def start_if_due(self, until: int, ends: Numbers, mean_size: float) -> None:
        """Starts the reading of the backlog, if nothing was produced after its time."""
        if self._waits_for is not None and self._waits_for.from_ns <= until:
            self._start_to_catch_up(ends, mean_size)

    def advance(self, until: int) -> tuple[Rows, bool]:
        """Its next fetches, of those that are answered up to `until`, and whether there are more."""
        if self._waits_for is not None:
            return _no_rows(), False
        if self._backlog is not None:
            rows, self.sends_at, is_over = self._backlog.advance(until)
            if is_over:
                self._backlog = None
            return rows, is_over or len(rows["time_ns"]) >= STEPS_MAX
        return self._read_on(until)

    def _start_to_catch_up(self, ends: Numbers, mean_size: float) -> None:
        assert self._waits_for is not None
        per_fetch = max(1, int(self._spec.max_bytes / mean_size))
        self._backlog = _Backlog(
            self._waits_for.behind, self._partitions, ends, per_fetch, mean_size, self.sends_at, self._pace_ns
        )
        self._waits_for = None

    def _read_on(self, until: int) -> tuple[Rows, bool]:
        spec = self._spec
        times = self._times.tolist()
        sums = [0, *numpy.cumsum(self._bytes).tolist()]
        count, cursor, send = len(times), 0, self.sends_at
        sent: list[int] = []
        bounds = [0]
        while len(sent) < STEPS_MAX:
            enough = bisect_left(sums, sums[cursor] + spec.min_bytes, cursor)
            ready = times[enough - 1] if enough <= count else None
            answer = send + spec.max_wait_ns if ready is None else min(max(ready, send), send + spec.max_wait_ns)
            if answer > until:
                break
            there = bisect_right(times, answer, cursor)
            end = min(there, max(cursor + 1, bisect_right(sums, sums[cursor] + spec.max_bytes, cursor) - 1))
            sent.append(send)
            bounds.append(end)
            send = answer + (self._pace_ns if end < there else TURNAROUND_NS)
            cursor = end
        rows = self._rows(numpy.array(sent, numpy.int64), numpy.array(bounds, numpy.int64))
        self.sends_at = send
        self._times, self._places, self._records, self._bytes, self._offsets = (
            column[cursor:] for column in (self._times, self._places, self._records, self._bytes, self._offsets)
        )
        return rows, len(sent) >= STEPS_MAX

    def _rows(self, sent: Numbers, bounds: Numbers) -> Rows:
        """A row for each partition of each answer. `bounds`: the batches of fetch n are those from `bounds[n]` to `bounds[n + 1]`."""
        if not len(sent):
            return _no_rows()
        counts = numpy.diff(bounds)
        fetch = numpy.repeat(numpy.arange(len(sent)), counts)
        total = len(fetch)
        width = int(self._partitions.max()) + 1
        groups, firsts, member = numpy.unique(
            fetch * width + self._places[:total], return_index=True, return_inverse=True
        )
        records, size = (
            numpy.bincount(member, column[:total], len(groups)).astype(numpy.int64)
            for column in (self._records, self._bytes)
        )
        of, partition = groups // width, groups % width
        offset = self._offsets[firsts]
        empty = numpy.flatnonzero(counts == 0)
        zeros = numpy.zeros(len(empty), numpy.int64)
        columns = {
            "fetch": (of, empty),
            "partition": (partition, zeros + self._partitions[0]),
            "records": (records, zeros),
            "bytes": (size, zeros),
            "offset": (offset, zeros - 1),
            "behind": (self._ends_at(sent[of], partition, offset) - offset, zeros),
        }
        joined = {name: numpy.concatenate(pair) for name, pair in columns.items()}
        order = numpy.argsort(joined["fetch"], kind="stable")
        rows = {name: column[order] for name, column in joined.items()}
        fetches = rows.pop("fetch")
        return {"time_ns": sent[fetches], **rows, "first": numpy.diff(fetches, prepend=-1).clip(0, 1)}

    def _ends_at(self, times: Numbers, partitions: Numbers, least: Numbers) -> Numbers:
        """The end offset of each partition at each time, at least `least`."""
        count = len(self._times) + 1
        order = numpy.argsort(self._places, kind="stable")
        keys = self._places[order] * count + order
        ends = (self._offsets + self._records)[order]
        wanted = partitions * count + numpy.searchsorted(self._times, times, side="right") - 1
        at = numpy.searchsorted(keys, wanted, side="right") - 1
        same = (at >= 0) & (self._places[order][at] == partitions)
        return numpy.where(same, numpy.maximum(ends[at], least), least)


class _Backlog:
    """The records that a reader has to catch up with. They are shared equally among its partitions."""

    def __init__(
        self,
        records: int,
        partitions: Numbers,
        ends: Numbers,
        per_fetch: int,
        mean_size: float,
        start: int,
        pace_ns: int,
    ) -> None:
        count = len(partitions)
        self._shares = records // count + (numpy.arange(count) < records % count)
        self._partitions = partitions
        self._ends = ends[partitions]
        self._per_fetch = per_fetch
        self._mean_size = mean_size
        self._start, self._pace_ns = start, pace_ns
        self._turns = count * -(-int(self._shares.max()) // per_fetch)
        self._next = 0

    def advance(self, until: int) -> tuple[Rows, int, bool]:
        """The next fetches, the time of the one after them, and whether the backlog is read."""
        due = max(0, (until - self._start) // self._pace_ns + 1)
        stop = min(self._turns, due, self._next + STEPS_MAX)
        turns = numpy.arange(self._next, max(stop, self._next), dtype=numpy.int64)
        self._next += len(turns)
        place = turns % len(self._partitions)
        done = turns // len(self._partitions) * self._per_fetch
        behind = self._shares[place] - done
        offset = self._ends[place] - behind
        rows: dict[str, Any] = {
            "time_ns": self._start + turns * self._pace_ns,
            "partition": self._partitions[place],
            "records": numpy.minimum(self._per_fetch, behind),
            "offset": numpy.maximum(offset, -1),
            "behind": behind,
            "first": numpy.ones(len(turns), numpy.int64),
        }
        rows["bytes"] = numpy.rint(rows["records"] * self._mean_size).astype(numpy.int64)
        is_left = behind > 0
        return (
            {name: rows[name][is_left] for name in COLUMNS},
            self._start + self._next * self._pace_ns,
            self._next >= self._turns,
        )


def _no_rows() -> Rows:
    return {name: numpy.empty(0, numpy.int64) for name in COLUMNS}


def as_numbers(table: pyarrow.Table) -> dict[str, Numbers]:
    """The columns of a table of int64."""
    return {name: table[name].to_numpy() for name in table.column_names}
