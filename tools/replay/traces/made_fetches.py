"""What the consumers of a workload fetch, simulated: a broker that answers at once, and no network.

A consumer has one fetch at a time. The fetch returns what is there, up to `max_bytes`, if it is `min_bytes`; else it waits for that, or for
`max_wait`. The next fetch is sent `TURNAROUND_NS` after the answer.
A reader that catches up first reads its backlog, `max_bytes` at a time at its rate, partition after partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from tools.replay.traces.made_batches import Numbers, Rows, unknown_rows
from tools.replay.traces.schema import TraceError
from tools.replay.traces.workload import NS_PER_S, ConsumerSpec

TURNAROUND_NS = 1_000_000
STEPS_MAX = 64 * 1024
"""Fetches that one `advance` makes at most."""
BEHIND_MAX = 4 * 1024 * 1024
"""Batches that a reader may be behind."""
RECORD_BYTES = 100
"""Size of a record of a backlog if nothing was produced before."""


class Reader:
    """One consumer. `feed` tells it what was produced; then `advance` gives its fetches."""

    def __init__(self, spec: ConsumerSpec, client: int, topic: int, partitions: Sequence[int], phase: float) -> None:
        """`phase`, from 0 to 1, spreads the first fetches of the consumers."""
        self.topic = topic
        self.sends_at = round(phase * spec.max_wait_ns)
        """When it sends its next fetch, or sent the one that waits for its answer."""
        self._client = client
        self._spec = spec
        self._partitions = numpy.array(partitions, numpy.int64)
        self._waits_for = self._spec.catch_up
        self._backlog: _Backlog | None = None
        self._pace_ns = TURNAROUND_NS
        if spec.catch_up is not None:
            self.sends_at = spec.catch_up.from_ns
            self._pace_ns = max(TURNAROUND_NS, round(spec.max_bytes / spec.catch_up.rate * NS_PER_S))
        self._there = unknown_rows(0)
        """Batches that it has not read."""

    def feed(self, batches: Rows, ends: Numbers, mean_size: float) -> None:
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
        self._there = numpy.concatenate((self._there, batches[mine]))
        if len(self._there) > BEHIND_MAX:
            raise TraceError(
                f"consumer {self._spec.name} is {len(self._there):,} batches behind and does not catch up: raise its max_bytes or rate"
            )

    def start_if_due(self, until: int, ends: Numbers, mean_size: float) -> None:
        """Starts the reading of the backlog, if nothing was produced after its time."""
        if self._waits_for is not None and self._waits_for.from_ns <= until:
            self._start_to_catch_up(ends, mean_size)

    def advance(self, until: int) -> tuple[Rows, bool]:
        """Its next fetches, of those that are answered up to `until`, and whether there are more."""
        if self._waits_for is not None:
            return unknown_rows(0), False
        if self._backlog is None:
            rows, has_more = self._read_on(until)
        else:
            rows, self.sends_at, is_over = self._backlog.advance(until)
            has_more = is_over or len(rows) >= STEPS_MAX
            if is_over:
                self._backlog = None
        rows["client"], rows["topic"] = self._client, self.topic
        return rows, has_more

    def _start_to_catch_up(self, ends: Numbers, mean_size: float) -> None:
        assert self._waits_for is not None
        records, count = self._waits_for.behind, len(self._partitions)
        self._backlog = _Backlog(
            self._partitions,
            shares=records // count + (numpy.arange(count) < records % count),
            ends=ends[self._partitions],
            per_fetch=max(1, int(self._spec.max_bytes / mean_size)),
            mean_size=mean_size,
            start=self.sends_at,
            pace_ns=self._pace_ns,
        )
        self._waits_for = None

    def _read_on(self, until: int) -> tuple[Rows, bool]:
        spec = self._spec
        times = self._there["time_ns"].tolist()
        sums = [0, *numpy.cumsum(self._there["bytes"]).tolist()]
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
        self._there = self._there[cursor:]
        return rows, len(sent) >= STEPS_MAX

    def _rows(self, sent: Numbers, bounds: Numbers) -> Rows:
        """A row for each partition of each answer. `bounds`: the batches of fetch n are those from `bounds[n]` to `bounds[n + 1]`."""
        counts = numpy.diff(bounds)
        fetch = numpy.repeat(numpy.arange(len(sent)), counts)
        read = self._there[: len(fetch)]
        width = int(self._partitions.max()) + 1
        groups, firsts, member = numpy.unique(fetch * width + read["partition"], return_index=True, return_inverse=True)
        found = unknown_rows(len(groups))
        of, found["partition"] = groups // width, groups % width
        for name in ("records", "bytes"):
            found[name] = numpy.bincount(member, read[name], len(groups))
        found["offset"] = read["offset"][firsts]
        found["behind"] = self._ends_at(sent[of], found["partition"], found["offset"]) - found["offset"]
        empty = numpy.flatnonzero(counts == 0)
        nothing = unknown_rows(len(empty))
        nothing["partition"] = self._partitions[0]
        for name in ("records", "bytes", "behind"):
            nothing[name] = 0
        of = numpy.concatenate((of, empty))
        order = numpy.argsort(of, kind="stable")
        rows, of = numpy.concatenate((found, nothing))[order], of[order]
        rows["time_ns"], rows["first"] = sent[of], numpy.diff(of, prepend=-1).clip(0, 1)
        return rows

    def _ends_at(self, times: Numbers, partitions: Numbers, least: Numbers) -> Numbers:
        """The end offset of each partition at each time, at least `least`."""
        there = self._there
        count = len(there) + 1
        order = numpy.argsort(there["partition"], kind="stable")
        keys = there["partition"][order] * count + order
        ends = (there["offset"] + there["records"])[order]
        wanted = partitions * count + numpy.searchsorted(there["time_ns"], times, side="right") - 1
        at = numpy.searchsorted(keys, wanted, side="right") - 1
        same = (at >= 0) & (there["partition"][order][at] == partitions)
        return numpy.where(same, numpy.maximum(ends[at], least), least)


@dataclass(slots=True)
class _Backlog:
    """The records that a reader has to catch up with. They are shared equally among its partitions."""

    partitions: Numbers
    shares: Numbers
    ends: Numbers
    per_fetch: int
    mean_size: float
    start: int
    pace_ns: int
    next: int = 0
    """The number of the next fetch."""

    def advance(self, until: int) -> tuple[Rows, int, bool]:
        """The next fetches, the time of the one after them, and whether the backlog is read."""
        count = len(self.partitions)
        fetches = count * -(-int(self.shares.max()) // self.per_fetch)
        due = max(0, (until - self.start) // self.pace_ns + 1)
        turns = numpy.arange(self.next, max(min(fetches, due, self.next + STEPS_MAX), self.next), dtype=numpy.int64)
        self.next += len(turns)
        place = turns % count
        behind = self.shares[place] - turns // count * self.per_fetch
        rows = unknown_rows(len(turns))
        rows["time_ns"], rows["first"] = self.start + turns * self.pace_ns, 1
        rows["partition"], rows["behind"] = self.partitions[place], behind
        rows["offset"] = numpy.maximum(self.ends[place] - behind, -1)
        rows["records"] = numpy.minimum(self.per_fetch, behind)
        rows["bytes"] = numpy.rint(rows["records"] * self.mean_size)
        return rows[behind > 0], self.start + self.next * self.pace_ns, self.next >= fetches
