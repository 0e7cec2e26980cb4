"""Makes the trace of a workload (RPL-5). The same workload gives the same rows; memory does not grow with the duration.

The batches of all producers are merged in order of time. Each part of them goes to the consumers; a part of the trace is written when no
consumer can have an earlier fetch any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from numpy.random import default_rng

from tools.replay.traces.made_batches import UNKNOWN, Numbers, Rows, batches_of, rows_of_table, seed_of, unknown_rows
from tools.replay.traces.made_fetches import RECORD_BYTES, Reader
from tools.replay.traces.ordering import in_whole_times, merged
from tools.replay.traces.schema import FETCH, OF_FETCH, OF_PRODUCE, PRODUCE, SCHEMA, TraceError, TraceInfo, TraceWriter
from tools.replay.traces.workload import CLIENTS_MAX, ConsumerSpec, ProducerSpec, Workload

COLUMNS_OF_CLIENTS = ("op", "client", "group", *OF_PRODUCE, *OF_FETCH)


def make_trace(workload: Workload, out: Path) -> int:
    """Writes the trace and returns its number of rows. Raises TraceError."""
    info = TraceInfo(0, f"made from a workload, seed {workload.seed}", topics=dict(workload.topics))
    with TraceWriter(out, info) as writer:
        for table in rows_of(workload):
            writer.write(table)
    return writer.rows


def rows_of(workload: Workload) -> Iterator[pyarrow.Table]:
    """The rows of the trace in order, in parts. Raises TraceError if there are too many clients."""
    clients = _Clients(workload)
    names = list(workload.topics)
    readers = list(clients.readers(workload))
    logs = [_Log(count) for count in workload.topics.values()]
    requests = 0
    waiting = unknown_rows(0)
    for batches, until in _parts(workload, clients):
        for topic, log in enumerate(logs):
            is_topic = batches["topic"] == topic
            before = log.ends.copy()
            batches["offset"][is_topic] = log.append(batches[is_topic])
            of_topic = batches[is_topic]
            for reader in readers:
                if reader.topic == topic:
                    reader.feed(of_topic, before, log.mean_size)
                    reader.start_if_due(until, log.ends, log.mean_size)
        batches["offset"] = UNKNOWN  # a produce does not say it
        waiting = numpy.concatenate((waiting, batches))
        unfinished = readers
        while True:
            advanced = [(reader, *reader.advance(until)) for reader in unfinished]
            unfinished = [reader for reader, _, has_more in advanced if has_more]
            rows = numpy.concatenate([waiting, *(fetches for _, fetches, _ in advanced)])
            rows = rows[numpy.argsort(rows["time_ns"], kind="stable")]
            bound = min([until + 1, *(reader.sends_at for reader in readers)])
            ready = int(numpy.searchsorted(rows["time_ns"], bound))
            waiting = rows[ready:]
            if ready:
                table = clients.table(rows[:ready], requests, names)
                requests = table["request"][-1].as_py() + 1
                yield table
            if not unfinished:
                break
    if len(waiting):
        yield clients.table(waiting, requests, names)


def _parts(workload: Workload, clients: _Clients) -> Iterator[tuple[Rows, int]]:
    """The batches of all producers in order, in parts, and the time up to which each part has all of them."""
    sources = [
        batches_of(spec, number, client, workload.topics, workload.duration_ns, workload.seed)
        for client, (spec, number) in enumerate(clients.producers)
    ]
    until = 0
    for table in in_whole_times(merged(sources)):
        batches = rows_of_table(table)
        until = int(batches["time_ns"][-1])
        yield batches, until
    yield unknown_rows(0), max(until, workload.duration_ns - 1)


class _Log:
    """What is in a topic: the end offset of each partition, and the mean size of a record."""

    def __init__(self, partitions: int) -> None:
        self.ends: Numbers = numpy.zeros(partitions, numpy.int64)
        self._bytes = 0
        self._records = 0

    @property
    def mean_size(self) -> float:
        return self._bytes / self._records if self._records else RECORD_BYTES

    def append(self, batches: Rows) -> Numbers:
        """Returns the base offset of each batch."""
        self._bytes += int(batches["bytes"].sum())
        self._records += int(batches["records"].sum())
        order = numpy.argsort(batches["partition"], kind="stable")
        records, partition = batches["records"][order], batches["partition"][order]
        before = numpy.cumsum(records) - records
        starts = numpy.flatnonzero(numpy.diff(partition, prepend=-1))
        lengths = numpy.diff(starts, append=len(partition))
        offsets = numpy.empty(len(order), numpy.int64)
        offsets[order] = self.ends[partition] + before - numpy.repeat(before[starts], lengths)
        numpy.add.at(self.ends, batches["partition"], batches["records"])
        return offsets


class _Clients:
    """All clients of a workload, numbered: producers first. Columns of the trace that depend on the client alone are here."""

    def __init__(self, workload: Workload) -> None:
        self.producers = [(spec, number) for spec in workload.producers for number in range(spec.count)]
        self.consumers = [
            (spec, copy, number)
            for spec in workload.consumers
            for copy in range(spec.fan_out)
            for number in range(spec.count)
        ]
        count = len(self.producers) + len(self.consumers)
        if count > CLIENTS_MAX:
            raise TraceError(f"the workload has {count:,} clients; {CLIENTS_MAX:,} are the limit")
        columns = [_of_producer(spec, number) for spec, number in self.producers]
        columns += [_of_consumer(spec, copy, number) for spec, copy, number in self.consumers]
        schema = pyarrow.schema([SCHEMA.field(name) for name in COLUMNS_OF_CLIENTS])
        self._columns = pyarrow.RecordBatch.from_pylist(columns, schema)
        self._states_partition = pyarrow.array(
            [spec.keys is None for spec, _ in self.producers] + [True] * len(self.consumers)
        )
        self._seed = workload.seed

    def readers(self, workload: Workload) -> Iterator[Reader]:
        """Members of a group share the partitions; a member without any does nothing. Without a group, each reads all."""
        topics = list(workload.topics)
        for client, (spec, copy, number) in enumerate(self.consumers, len(self.producers)):
            partitions = range(workload.topics[spec.topic])
            mine = partitions if spec.group is None else partitions[number :: spec.count]
            if mine:
                seed = seed_of(self._seed, f"consumer {spec.name}", copy * CLIENTS_MAX + number)
                yield Reader(spec, client, topics.index(spec.topic), mine, default_rng(seed).random())

    def table(self, rows: Rows, requests: int, topics: list[str]) -> pyarrow.Table:
        """Rows of the trace. `requests`: the number of the first request."""
        client = pyarrow.array(rows["client"])
        is_stated = self._states_partition.take(client).to_numpy(zero_copy_only=False)
        made: dict[str, Any] = {
            "time_ns": rows["time_ns"],
            "request": requests - 1 + numpy.cumsum(rows["first"]),
            "topic": pyarrow.array(topics).take(pyarrow.array(rows["topic"])),
            "partition": numpy.where(is_stated, rows["partition"], -1),
            "key_hash": pyarrow.array(rows["key_hash"], mask=rows["key_hash"] < 0),
            "records": rows["records"],
            "bytes": rows["bytes"],
            "offset": pyarrow.array(rows["offset"], mask=rows["offset"] < 0),
            "behind": pyarrow.array(rows["behind"], mask=rows["behind"] < 0),
            **{name: self._columns[name].take(client) for name in COLUMNS_OF_CLIENTS},
        }
        columns = [pyarrow.array(made[field.name]).cast(field.type) for field in SCHEMA]
        return pyarrow.table(columns, schema=SCHEMA)


def _of_producer(spec: ProducerSpec, number: int) -> dict[str, Any]:
    return {
        "op": PRODUCE,
        "client": f"{spec.name}-{number}",
        "compression": spec.compression,
        "acks": spec.acks,
        "transactional": False,
    }


def _of_consumer(spec: ConsumerSpec, copy: int, number: int) -> dict[str, Any]:
    name = spec.name if spec.fan_out == 1 else f"{spec.name}-{copy}"
    group = spec.group if spec.fan_out == 1 or spec.group is None else f"{spec.group}-{copy}"
    return {
        "op": FETCH,
        "client": f"{name}-{number}",
        "min_bytes": spec.min_bytes,
        "max_wait_ms": spec.max_wait_ns // 1_000_000,
        "max_bytes": spec.max_bytes,
        "group": group,
    }
