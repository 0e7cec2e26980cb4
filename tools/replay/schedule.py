"""Which partition, which task and which moment each operation of a trace gets. Pure.

A trace says when things happened; a replay says when they are due: `start + (time - first time) / speed`. Everything
that decides this is here, so that the producing task, the reading task and the analysis cannot disagree.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping


def partition_of(key: bytes | None, event_id: int, partition_count: int) -> int:
    """The partition of a record: as confluent-kafka's own default (`consistent_random`), CRC-32 of the key.

    Records without a key are dealt out in turn. The replay computes this itself, so that the reader of a partition
    knows beforehand which events it waits for.
    """
    return (zlib.crc32(key) if key else event_id) % partition_count


def due_after_s(time_us: int, first_time_us: int, speed: float) -> float:
    """Seconds after the replay's start at which an operation of that time in the trace is due."""
    return (time_us - first_time_us) / 1e6 / speed


def spread(weights: Mapping[str, int], task_count: int) -> dict[str, int]:
    """Gives every client (name -> number of operations) one of the tasks 0..task_count-1, evenly by operations.

    A client stays whole, so that the order of its operations is kept. The heaviest comes first and goes to the task
    that has least; ties go by name, so that the answer is always the same.
    """
    load = [0] * task_count
    chosen: dict[str, int] = {}
    for client in sorted(weights, key=lambda name: (-weights[name], name)):
        task = load.index(min(load))
        chosen[client] = task
        load[task] += weights[client]
    return chosen


def partitions_of_reader(reader: int, reader_count: int, partition_count: int) -> list[int]:
    """The partitions that reading task `reader` of `reader_count` is assigned, in order."""
    return list(range(reader, partition_count, reader_count))


def busiest_partition(keys: Mapping[bytes, int], partition_count: int) -> int:
    """The partition that gets most of the events (key -> number of events): there a lost leader is felt at once."""
    load = [0] * partition_count
    for key, events in keys.items():
        load[partition_of(key, 0, partition_count)] += events
    return load.index(max(load))
