"""The batches that the producers of a workload send: record times, sizes and keys, cut into batches as a Kafka producer does."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping

import numpy
import pyarrow
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.traces.arrivals import arrivals
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.workload import Batching, Keys, ProducerSpec, RecordSize

UNKNOWN = -1
"""In the place of a null: no key, an offset that is not known."""
COLUMNS = ("time_ns", "client", "topic", "partition", "key_hash", "records", "bytes", "offset", "behind", "first")
ROWS = numpy.dtype([(name, numpy.int64) for name in COLUMNS])
"""Rows of a trace. `client` and `topic` are numbers. `partition` is always known here; `key_hash` is that of the first record.
`first`: 1 in the first row of a request, else 0."""
RECORDS = numpy.dtype([(name, numpy.int64) for name in ("time_ns", "topic", "partition", "key_hash", "bytes")])

Numbers = NDArray[numpy.int64]
Rows = NDArray[numpy.void]
"""Of ROWS, or of RECORDS."""


def unknown_rows(count: int) -> Rows:
    return numpy.full(count, UNKNOWN, numpy.int64).astype(ROWS)


def rows_of_table(table: pyarrow.Table) -> Rows:
    """The rows of a table with the columns of ROWS."""
    rows = unknown_rows(table.num_rows)
    for name in COLUMNS:
        rows[name] = table[name]
    return rows


def seed_of(seed: int, name: str, number: int) -> SeedSequence:
    """The seed of one client. It depends on nothing else, so another client changes no other's events."""
    return SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), len(name), number))


def batches_of(
    spec: ProducerSpec, number: int, client: int, topics: Mapping[str, int], duration_ns: int, seed: int
) -> Iterator[pyarrow.Table]:
    """The batches of client `number` of a producer, sorted, in tables with rows of ROWS. `topics`: name -> partitions."""
    of_times, *others = seed_of(seed, f"producer {spec.name}", number).spawn(4)
    of_sizes, of_keys, of_places = (default_rng(other) for other in others)
    names = list(topics)
    chosen = numpy.array([names.index(topic) for topic in spec.topics], numpy.int64)
    counts = numpy.array(list(topics.values()), numpy.int64)
    key_sampler = None if spec.keys is None else _KeySampler(spec.keys)
    waiting = numpy.empty(0, RECORDS)

    def table(records: Rows, ends: list[tuple[int, int, int]]) -> pyarrow.Table:
        first, last, times = (numpy.array(column, numpy.int64) for column in zip(*ends, strict=True))
        sums = numpy.concatenate(([0], numpy.cumsum(records["bytes"])))
        made = unknown_rows(len(first))
        made["client"] = client
        made["time_ns"], made["records"], made["first"] = times, last - first, 1
        for name in ("topic", "partition", "key_hash"):
            made[name] = records[name][first]
        if spec.keys is None:
            made["partition"] = of_places.random(len(first)) * counts[made["topic"]]
        size = (sums[last] - sums[first]) * spec.compression_ratio
        made["bytes"] = HEADER_SIZE + numpy.maximum(1, numpy.rint(size))
        made = made[numpy.argsort(times, kind="stable")]
        return pyarrow.table({name: made[name] for name in COLUMNS})

    for times in arrivals(spec.rate, of_times, duration_ns):
        if not len(times):
            continue
        came = numpy.empty(len(times), RECORDS)
        came["time_ns"] = times
        topic = came["topic"] = chosen[(of_places.random(len(times)) * len(chosen)).astype(numpy.int64)]
        keys = came["key_hash"] = UNKNOWN if key_sampler is None else key_sampler.hashes(of_keys, len(times))
        came["partition"] = UNKNOWN if key_sampler is None else keys % counts[topic]
        came["bytes"] = sizes_of(spec.record_size, of_sizes, len(times))
        records, ends, rest = cut(numpy.concatenate((waiting, came)), spec.batching, int(times[-1]))
        waiting = records[rest]
        if ends:
            yield table(records, ends)
    records, ends, _ = cut(waiting, spec.batching, None, duration_ns)
    if ends:
        yield table(records, ends)


def cut(
    records: Rows, batching: Batching, until: int | None, end: int = 0
) -> tuple[Rows, list[tuple[int, int, int]], Numbers]:
    """Cuts records into batches: the records, grouped by their place; (first, last + 1, time) of each batch; and what waits on.

    `until`: the time up to which all records are known. None: no more come, and batches that wait leave at `end`.
    """
    places = records["topic"] * (2**32) + records["partition"]
    order = numpy.argsort(places, kind="stable")
    records, places = records[order], places[order]
    count = len(order)
    times = records["time_ns"].tolist()
    if batching.records == 1:
        return records, [(number, number + 1, time) for number, time in enumerate(times)], order[:0]
    sums = [0, *numpy.cumsum(records["bytes"]).tolist()]
    stops = numpy.flatnonzero(numpy.diff(places)) + 1
    ends: list[tuple[int, int, int]] = []
    rest: list[int] = []
    start = 0
    for stop in [*stops.tolist(), count] if count else []:
        while start < stop:
            deadline = None if batching.linger_ns is None else times[start] + batching.linger_ns
            last = stop if batching.records is None else min(stop, start + batching.records)
            is_full = last - start == batching.records
            leaves = times[last - 1] if is_full else None
            by_bytes = max(start + 1, bisect_right(sums, sums[start] + batching.bytes, start, last + 1) - 1)
            if by_bytes < last:
                last, leaves = by_bytes, times[by_bytes]  # the record that does not fit sends the batch
            if deadline is not None and (leaves is None or deadline < leaves):
                last = bisect_right(times, deadline, start, last)
                leaves = deadline
                if last == stop and until is not None and deadline > until:
                    leaves = None
            if leaves is None and until is None:
                leaves = end
            if leaves is None:
                rest.extend(range(start, last))
            else:
                ends.append((start, last, leaves))
            start = last
    return records, ends, numpy.array(rest, numpy.int64)


def sizes_of(size: RecordSize, generator: Generator, count: int) -> Numbers:
    """Sizes of records in bytes."""
    first, second = (*size.parameters, 0.0)[:2]
    if size.kind == "constant":
        return numpy.full(count, int(first))
    if size.kind == "uniform":
        return generator.integers(int(first), int(second), count, endpoint=True)
    if size.kind == "weights":
        values, weights = numpy.array(size.parameters[::2]), numpy.array(size.parameters[1::2])
        shares = numpy.cumsum(weights) / weights.sum()
        return values[numpy.searchsorted(shares, generator.random(count), side="right")].astype(numpy.int64)
    if size.kind == "normal":
        drawn = generator.normal(first, second, count)
    else:
        drawn = first * numpy.exp(second * generator.standard_normal(count))
    return numpy.clip(numpy.rint(drawn), 1, size.max).astype(numpy.int64)


class _KeySampler:
    """Draws keys, as hashes. Key number n, from 1, is the text of n in every producer."""

    def __init__(self, keys: Keys) -> None:
        weights = numpy.arange(1, keys.keys + 1, dtype=numpy.float64) ** -keys.exponent
        self._shares = numpy.cumsum(weights)
        self._shares /= self._shares[-1]

    def hashes(self, generator: Generator, count: int) -> Numbers:
        drawn = numpy.searchsorted(self._shares, generator.random(count), side="right")
        numbers = pyarrow.array(numpy.minimum(drawn, len(self._shares) - 1) + 1)
        hashes: Numbers = key_hashes(numbers.cast(pyarrow.string()), "murmur2").to_numpy()
        return hashes
