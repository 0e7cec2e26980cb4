"""Latency from the moment a record is sent until its consumer has it: a producer and a consumer, whose fetch waits."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tools.bench.load.cluster import Partition
from tools.bench.load.plan import Frame, Plan, PlannedConnection, batch, fetch_frame, produce_frame

FETCH_BYTES = 1024 * 1024


def end_to_end_plan(
    partitions: Sequence[Partition],
    in_flight: int,
    record_bytes: int,
    records_per_batch: int,
    acks: int,
    warm_up_s: float,
    seconds: float,
) -> Plan:
    """One pair of connections for each partition. A producer has `in_flight` batches that its consumer has not received yet."""
    records = batch(record_bytes, records_per_batch, int(time.time() * 1000))
    frames: list[Frame] = []
    connections: list[PlannedConnection] = []
    for partition in partitions:
        producer, first = len(connections), len(frames)
        where = [(partition.topic, partition.index)]
        frames.append(Frame(produce_frame(where, acks, records)))
        frames.append(fetch_frame(partition.topic, partition.index, FETCH_BYTES))
        connections += [
            PlannedConnection("paired", partition.leader, in_flight, first, start=partition.end),
            PlannedConnection("fetch", partition.leader, 1, first + 1, start=partition.end, peer=producer),
        ]
    return Plan(warm_up_s, seconds, frames, connections)
