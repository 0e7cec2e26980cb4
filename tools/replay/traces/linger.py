"""Gathers events into batches as a producer does with linger.ms and batch.size. Pure.

A batch is of one client and one partition; records without a key share a batch, whose partition is not known. It is sent `linger_ms` after
its first record, or when the next record would make it larger than `batch_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow

from protocol.kafka.record_batch import HEADER_SIZE
from tools.replay.traces.batch_sizes import record_size

MILLISECOND_NS = 1_000_000


def gather(linger_ms: int, batch_bytes: int, tables: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The batches of events, which come by client, topic and partition, and of each in the order of time. Both have the same columns.

    A batch has the other columns of its first event, and no hash of a key.
    """
    first: dict[str, Any] | None = None
    schema = None
    for table in tables:
        schema = table.schema
        sent = []
        for event in table.to_pylist():
            if first is not None and _owner(first) == _owner(event) and event["time_ns"] < _due(first, linger_ms):
                size = _size_in(first, event)
                if first["bytes"] + size <= batch_bytes:
                    first["records"] += 1
                    first["bytes"] += size
                    continue
                sent.append(first | {"time_ns": event["time_ns"]})
            elif first is not None:
                sent.append(first | {"time_ns": _due(first, linger_ms)})
            first = event | {"key_hash": None, "records": 0, "bytes": HEADER_SIZE}
            first |= {"records": 1, "bytes": HEADER_SIZE + _size_in(first, event)}
        yield pyarrow.RecordBatch.from_pylist(sent, schema)
    if first is not None:
        yield pyarrow.RecordBatch.from_pylist([first | {"time_ns": _due(first, linger_ms)}], schema)


def _owner(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["client"], event["topic"], event["partition"]


def _due(first: dict[str, Any], linger_ms: int) -> int:
    return int(first["time_ns"]) + linger_ms * MILLISECOND_NS


def _size_in(first: dict[str, Any], event: dict[str, Any]) -> int:
    later_ms = event["time_ns"] // MILLISECOND_NS - first["time_ns"] // MILLISECOND_NS
    return record_size(event["body"], later_ms, first["records"])
