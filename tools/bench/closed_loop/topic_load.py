"""A load on topics of its own, measured: what `ottla bench produce|consume|end-to-end` and `compare` do.

with bench_topics(load, target) as topics:
    result = measure(load, target, topics, seconds=5.0, warm_up_s=1.0)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from protocol.types import Address
from tools.bench.closed_loop.generator import generate
from tools.bench.closed_loop.load import TOPIC_IDS_SINCE, Load
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, silent
from tools.bench.closed_loop.request_plan import Frame, Plan, PlannedConnection, batch, fetch_frame, produce_frame
from tools.bench.closed_loop.target import (
    Partition,
    Target,
    check_replicas,
    fill,
    own_topics,
    partitions_of,
    topic_id_of,
)

FILL_BYTES = 128 * 1024 * 1024
"""Values in a topic that is to be read: few enough to stay in the page cache."""


@contextlib.contextmanager
def bench_topics(
    load: Load, target: Target, fill_bytes: int = FILL_BYTES, configs: Mapping[str, str] | None = None
) -> Iterator[list[str]]:
    """Topics for the load, filled with batches of the load if it consumes; deleted at the end. Raises AdminError, BenchError."""
    with own_topics(target, load.topics, load.partitions, load.replication_factor, configs) as topics:
        if load.kind == "consume":
            for topic in topics:
                check_replicas(target, topic, -1)
                fill(target, topic, load.record_bytes, load.records_per_batch, fill_bytes)
        yield topics


def measure(
    load: Load,
    target: Target,
    topics: Sequence[str],
    seconds: float,
    warm_up_s: float = 0.0,
    on_progress: OnProgress = silent,
) -> Measurement:
    """Runs the load on existing topics. Raises BenchError, with one line that says what is wrong."""
    topic, window = topics[0], (warm_up_s, seconds)
    if load.kind != "consume":
        check_replicas(target, topic, load.acks)
    partitions = partitions_of(target, topics)
    if load.kind == "consume":
        partitions = [partition for partition in partitions if partition.end > partition.start]
        if not partitions:
            raise BenchError(f"topic {topic!r} has no records to read; without --topic, one is created and filled")
    elif load.kind == "end-to-end" and len(partitions) < load.connections:
        raise BenchError(f"topic {topic!r} has {len(partitions)} partitions: use --connections {len(partitions)}")
    if load.client == "librdkafka":
        from tools.bench.closed_loop import librdkafka_load  # imported when needed, so that `--help` is fast

        if load.kind == "produce":
            return librdkafka_load.produce(target, topic, load, window, on_progress)
        if load.kind == "consume":
            return librdkafka_load.consume(target, partitions, load, window, on_progress)
        return librdkafka_load.end_to_end(target, partitions[0], load, window, on_progress)
    if target.security.protocol != "PLAINTEXT":
        raise BenchError(f"raw requests cannot speak {target.security.protocol}; --client librdkafka can")
    if load.kind == "produce":
        named = {partition.topic for partition in partitions} if load.version >= TOPIC_IDS_SINCE else ()
        ids = {name: topic_id_of(target, name) for name in named}
        frames, connections = _produce_plan(load, partitions, ids)
    elif load.kind == "consume":
        topic_id = topic_id_of(target, topic) if load.version >= TOPIC_IDS_SINCE else None
        frames, connections = _consume_plan(load, partitions, topic_id)
    else:
        frames, connections = _end_to_end_plan(load, partitions[: load.connections])
    return generate(Plan(warm_up_s, seconds, frames, connections), on_progress)


def _records_of(load: Load) -> bytes:
    """A batch of the load."""
    return batch(load.record_bytes, load.records_per_batch, int(time.time() * 1000))


def _produce_plan(
    load: Load, partitions: Sequence[Partition], topic_ids: Mapping[str, UUID]
) -> tuple[list[Frame], list[PlannedConnection]]:
    """Connections go to the leaders in turns. Those to one leader share its partitions, or write to the same ones if they are more."""
    of_leaders: dict[Address, list[Partition]] = {}
    for partition in partitions:
        of_leaders.setdefault(partition.leader, []).append(partition)
    leaders = list(of_leaders)
    records = _records_of(load)
    frames: list[Frame] = []
    connections = []
    for number in range(load.connections):
        leader = leaders[number % len(leaders)]
        of_leader = of_leaders[leader]
        rank = number // len(leaders)
        sharers = len(range(number % len(leaders), load.connections, len(leaders)))
        share = of_leader[rank::sharers] or [of_leader[rank % len(of_leader)]]
        first = len(frames)
        for at in range(0, len(share), load.partitions_per_request):
            together = share[at : at + load.partitions_per_request]
            where = [(partition.topic, partition.index) for partition in together]
            data = produce_frame(where, load.acks, records, load.version, topic_ids)
            count = len(together) * load.records_per_batch
            frames.append(Frame(data, count, count * load.record_bytes, version=load.version))
        connections.append(PlannedConnection("produce", leader, load.in_flight, first, len(frames) - first))
    return frames, connections + [PlannedConnection("idle", leaders[0])] * load.idle_connections


def _consume_plan(
    load: Load, partitions: Sequence[Partition], topic_id: UUID | None
) -> tuple[list[Frame], list[PlannedConnection]]:
    size, version = load.fetch_bytes, load.version
    frames = [fetch_frame(partition.topic, partition.index, size, version, topic_id) for partition in partitions]
    connections = []
    for number in range(load.connections):
        at = number % len(partitions)
        partition = partitions[at]
        connections.append(
            PlannedConnection("fetch", partition.leader, load.in_flight, at, 1, partition.start, partition.end)
        )
    return frames, connections


def _end_to_end_plan(load: Load, partitions: Sequence[Partition]) -> tuple[list[Frame], list[PlannedConnection]]:
    """A producer has `in_flight` batches that its consumer has not received yet."""
    records = _records_of(load)
    frames: list[Frame] = []
    connections: list[PlannedConnection] = []
    for partition in partitions:
        producer, first = len(connections), len(frames)
        where = [(partition.topic, partition.index)]
        frames.append(Frame(produce_frame(where, load.acks, records)))
        frames.append(fetch_frame(partition.topic, partition.index, load.fetch_bytes))
        connections += [
            PlannedConnection("paired", partition.leader, load.in_flight, first, start=partition.end),
            PlannedConnection("fetch", partition.leader, 1, first + 1, start=partition.end, peer=producer),
        ]
    return frames, connections
