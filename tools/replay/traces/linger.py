"""Gathers events into batches as a producer does with linger.ms and batch.size. Pure.

A batch is of one client and one partition; records without a key share a batch, whose partition is not known. It is sent `linger_ms` after
its first record, or when the next record would make it larger than `batch_bytes`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pyarrow

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.traces.batch_sizes import record_size

MILLISECOND_NS = 1_000_000
SCHEMA = pyarrow.schema(
    [
        ("time_ns", pyarrow.int64()),
        ("client", pyarrow.string()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("key_hash", pyarrow.int64()),
        ("records", pyarrow.int64()),
        ("bytes", pyarrow.int64()),
    ]
)
NO_PARTITION = -1

Owner = tuple[str, str, int]
"""Client, topic, and the partition or `NO_PARTITION`."""


@dataclass(slots=True)
class _Batch:
    owner: Owner
    first_ns: int
    records: int = 0
    bytes: int = HEADER_SIZE
    is_sent: bool = False


class Lingering:
    """The batches that are not sent yet."""

    def __init__(self, linger_ms: int, batch_bytes: int, partitions: int) -> None:
        self._linger_ns = linger_ms * MILLISECOND_NS
        self._batch_bytes = batch_bytes
        self._partitions = partitions
        self._open: dict[Owner, _Batch] = {}
        self._in_order: deque[_Batch] = deque()
        self._sent: dict[str, list[object]] = {name: [] for name in SCHEMA.names}

    def add(self, events: pyarrow.Table) -> pyarrow.Table:
        """Takes events in the order of time. Returns the batches that are sent until the last of them, in the order of time."""
        columns = (events[name].to_pylist() for name in ("time_ns", "client", "topic", "partition", "key_hash", "body"))
        for time_ns, client, topic, partition, key_hash, body in zip(*columns, strict=True):
            self._send_until(time_ns)
            if partition == NO_PARTITION and key_hash is not None:
                partition = key_hash % self._partitions
            owner = (client, topic, partition)
            batch = self._open.get(owner)
            if batch is not None:
                size = self._size_in(batch, time_ns, body)
                if batch.bytes + size > self._batch_bytes:
                    self._send(batch, time_ns)
                    batch = None
            if batch is None:
                batch = self._open[owner] = _Batch(owner, time_ns)
                self._in_order.append(batch)
                size = self._size_in(batch, time_ns, body)
            batch.records += 1
            batch.bytes += size
        return self._taken()

    def finish(self) -> pyarrow.Table:
        """Returns the batches that are left."""
        if self._in_order:
            self._send_until(self._in_order[-1].first_ns + self._linger_ns)
        return self._taken()

    def _size_in(self, batch: _Batch, time_ns: int, body: int) -> int:
        return record_size(body, time_ns // MILLISECOND_NS - batch.first_ns // MILLISECOND_NS, batch.records)

    def _send_until(self, time_ns: int) -> None:
        while self._in_order and (self._in_order[0].is_sent or self._in_order[0].first_ns + self._linger_ns <= time_ns):
            batch = self._in_order.popleft()
            if not batch.is_sent:
                self._send(batch, batch.first_ns + self._linger_ns)

    def _send(self, batch: _Batch, time_ns: int) -> None:
        batch.is_sent = True
        del self._open[batch.owner]
        client, topic, partition = batch.owner
        row = (time_ns, client, topic, partition, None, batch.records, batch.bytes)
        for name, value in zip(SCHEMA.names, row, strict=True):
            self._sent[name].append(value)

    def _taken(self) -> pyarrow.Table:
        table = pyarrow.table(self._sent, schema=SCHEMA)
        self._sent = {name: [] for name in SCHEMA.names}
        return table
