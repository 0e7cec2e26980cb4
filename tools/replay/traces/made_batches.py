"""The batches that the producers of a workload send: record times, sizes and keys, cut into batches as a Kafka producer does."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy
import pyarrow
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.traces.arrivals import arrivals
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.workload import Batching, Keys, ProducerSpec, RecordSize

NO_KEY = -1

BATCHES = pyarrow.schema(
    [
        ("time_ns", pyarrow.int64()),
        ("client", pyarrow.int64()),
        ("topic", pyarrow.int64()),
        ("partition", pyarrow.int64()),
        ("key_hash", pyarrow.int64()),
        ("records", pyarrow.int64()),
        ("bytes", pyarrow.int64()),
    ]
)
"""`client` and `topic` are numbers. `partition` is always known here; `key_hash` is NO_KEY or that of the first record."""

Numbers = NDArray[numpy.int64]


def seed_of(seed: int, name: str, number: int) -> SeedSequence:
    """The seed of one client. It depends on nothing else, so another client changes no other's events."""
    return SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()), len(name), number))


@dataclass(slots=True)
class _Records:
    """Records that came, in order."""

    times: Numbers
    topics: Numbers
    partitions: Numbers
    keys: Numbers
    sizes: Numbers

    def columns(self) -> tuple[Numbers, ...]:
        return self.times, self.topics, self.partitions, self.keys, self.sizes

    def __getitem__(self, chosen: Numbers) -> _Records:
        return _Records(*(column[chosen] for column in self.columns()))

    def followed_by(self, other: _Records) -> _Records:
        pairs = zip(self.columns(), other.columns(), strict=True)
        return _Records(*(numpy.concatenate(pair) for pair in pairs))


def batches_of(
    spec: ProducerSpec, number: int, client: int, topics: Mapping[str, int], duration_ns: int, seed: int
) -> Iterator[pyarrow.Table]:
    """The batches of client `number` of a producer, sorted, in tables that have rows. `topics`: name -> partitions."""
    of_times, *others = seed_of(seed, f"producer {spec.name}", number).spawn(4)
    of_sizes, of_keys, of_places = (default_rng(other) for other in others)
    names = list(topics)
    chosen = numpy.array([names.index(topic) for topic in spec.topics], numpy.int64)
    counts = numpy.array(list(topics.values()), numpy.int64)
    key_sampler = None if spec.keys is None else _KeySampler(spec.keys)
    waiting = _Records(*(numpy.empty(0, numpy.int64) for _ in range(5)))

    def table(records: _Records, ends: list[tuple[int, int, int]]) -> pyarrow.Table:
        first, last, times = (numpy.array(column, numpy.int64) for column in zip(*ends, strict=True))
        sums = numpy.concatenate(([0], numpy.cumsum(records.sizes)))
        topic = records.topics[first]
        partition = records.partitions[first]
        if spec.keys is None:
            partition = (of_places.random(len(first)) * counts[topic]).astype(numpy.int64)
        size = HEADER_SIZE + numpy.maximum(1, numpy.rint((sums[last] - sums[first]) * spec.compression_ratio))
        columns = [times, numpy.full(len(first), client), topic, partition, records.keys[first], last - first]
        made = pyarrow.table([*columns, size.astype(numpy.int64)], schema=BATCHES)
        return made.take(pyarrow.array(numpy.argsort(times, kind="stable")))

    for times in arrivals(spec.rate, of_times, duration_ns):
        if not len(times):
            continue
        topic = chosen[(of_places.random(len(times)) * len(chosen)).astype(numpy.int64)]
        keys = numpy.full(len(times), NO_KEY) if key_sampler is None else key_sampler.hashes(of_keys, len(times))
        partition = numpy.full(len(times), -1) if key_sampler is None else keys % counts[topic]
        came = _Records(times, topic, partition, keys, sizes_of(spec.record_size, of_sizes, len(times)))
        records, ends, rest = cut(waiting.followed_by(came), spec.batching, int(times[-1]))
        waiting = records[rest]
        if ends:
            yield table(records, ends)
    records, ends, _ = cut(waiting, spec.batching, None, duration_ns)
    if ends:
        yield table(records, ends)


def cut(
    records: _Records, batching: Batching, until: int | None, end: int = 0
) -> tuple[_Records, list[tuple[int, int, int]], Numbers]:
    """Cuts records into batches: the records, grouped by their place; (first, last + 1, time) of each batch; and what waits on.

    `until`: the time up to which all records are known. None: no more come, and batches that wait leave at `end`.
    """
    places = records.topics * (2**32) + records.partitions
    order = numpy.argsort(places, kind="stable")
    records, places = records[order], places[order]
    count = len(order)
    if batching.records == 1:
        return records, [(number, number + 1, time) for number, time in enumerate(records.times.tolist())], order[:0]
    times = records.times.tolist()
    sums = [0, *numpy.cumsum(records.sizes).tolist()]
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
