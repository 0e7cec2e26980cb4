"""Assigns a partition, a task and a due time to each operation of a trace. Pure.

A trace has the times of the past; in a replay an operation is due at `start + (time - first time) / speed`. All of this is
computed here, so that the producing task, the reading task and the analysis agree.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping


def partition_of(key: bytes | None, event_id: int, partition_count: int) -> int:
    """The partition of a record, as confluent-kafka's default (`consistent_random`) chooses it: CRC-32 of the key.

    Records without a key are distributed in turn. The replay computes this itself, so that the reader of a partition knows in
    advance which events it waits for.
    """
    return (zlib.crc32(key) if key else event_id) % partition_count


def due_after_s(time_us: int, first_time_us: int, speed: float) -> float:
    """Seconds after the replay's start at which an operation with that time in the trace is due."""
    return (time_us - first_time_us) / 1e6 / speed


def spread(weights: Mapping[str, int], task_count: int) -> dict[str, int]:
    """Assigns every client (name -> number of operations) to one of the tasks 0..task_count-1, evenly by operations.

    A client is never split, so that its operations stay in order. The largest client comes first and goes to the task with the
    fewest operations; ties are resolved by name, so that the result is always the same.
    """
    load = [0] * task_count
    chosen: dict[str, int] = {}
    for client in sorted(weights, key=lambda name: (-weights[name], name)):
        task = load.index(min(load))
        chosen[client] = task
        load[task] += weights[client]
    return chosen


def partitions_of_reader(reader: int, reader_count: int, partition_count: int) -> list[int]:
    """The partitions assigned to reading task `reader` of `reader_count`, in order."""
    return list(range(reader, partition_count, reader_count))


def busiest_partition(keys: Mapping[bytes, int], partition_count: int) -> int:
    """The partition with the most events (key -> number of events), where the loss of a leader is visible at once."""
    load = [0] * partition_count
    for key, events in keys.items():
        load[partition_of(key, 0, partition_count)] += events
    return load.index(max(load))
