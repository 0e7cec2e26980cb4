"""One load on one topic, measured: what `ottla bench produce|consume` and `compare` do.

with bench_topic(load, "127.0.0.1:9092") as topic:
    result = measure(load, "127.0.0.1:9092", topic, seconds=5.0, warm_up_s=1.0)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocol.types import Address
from tools.bench.closed_loop.api_versions import FETCH_VERSION, PRODUCE_VERSION
from tools.bench.closed_loop.generate import OnNote, generate, unheard
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, silent
from tools.bench.closed_loop.request_plan import Frame, Plan, PlannedConnection, batch, fetch_frame, produce_frame
from tools.bench.closed_loop.target import Partition, Target, check_replicas, fill, own_topics, partitions_of

__all__ = ["BenchError", "Load", "Measurement", "bench_topic", "end_to_end_plan", "measure", "produce_plan"]

END_TO_END_FETCH_BYTES = 1024 * 1024
FILL_BYTES = 128 * 1024 * 1024
"""Values in a topic that is to be read: few enough to stay in the page cache."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load. `raw` requests are encoded already; `librdkafka` is an application's client, with batches of its own.

    produce: each of `connections` sends to the partitions that one broker leads, in turns; a raw request has one batch of
    `records_per_batch` records for one partition. consume: each connection reads one partition, again and again from its log start to
    its end, `fetch_bytes` at most with each request. Each request in flight reads the partition on its own. `record_bytes`: the size of a
    value. `acks`: 1, or -1 for all. `api_version`: of raw requests; None: the usual one.
    """

    kind: Literal["produce", "consume"]
    client: Literal["raw", "librdkafka"] = "raw"
    connections: int = 1
    in_flight: int = 1
    record_bytes: int = 100
    records_per_batch: int = 1
    acks: int = 1
    replication_factor: int = 1
    partitions: int = 1
    fetch_bytes: int = 1024 * 1024
    api_version: int | None = None

    @property
    def version(self) -> int:
        """Of the raw requests."""
        return self.api_version or (PRODUCE_VERSION if self.kind == "produce" else FETCH_VERSION)


@contextlib.contextmanager
def bench_topic(
    load: Load,
    bootstrap_server: str,
    command_config: Path | None = None,
    fill_bytes: int = FILL_BYTES,
    configs: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A topic for the load, filled with batches of the load if it consumes; it is deleted at the end. Raises AdminError, BenchError."""
    target = Target.of(bootstrap_server, command_config)
    with own_topics(target, 1, load.partitions, load.replication_factor, configs) as (topic,):
        if load.kind == "consume":
            check_replicas(target, topic, -1)
            fill(target, topic, load.record_bytes, load.records_per_batch, fill_bytes)
        yield topic


def measure(
    load: Load,
    bootstrap_server: str,
    topic: str,
    seconds: float,
    warm_up_s: float,
    *,
    command_config: Path | None = None,
    on_progress: OnProgress = silent,
    on_note: OnNote = unheard,
) -> Measurement:
    """Runs the load on an existing topic. Raises BenchError, with one line that says what is wrong.

    `on_note` is told once if the load is generated in Python, and why.
    """
    target = Target.of(bootstrap_server, command_config)
    if load.kind == "produce":
        check_replicas(target, topic, load.acks)
    partitions = partitions_of(target, [topic])
    if load.kind == "consume":
        partitions = [partition for partition in partitions if partition.end > partition.start]
        if not partitions:
            raise BenchError(f"topic {topic!r} has no records to read; without --topic, one is created and filled")
    if load.client == "librdkafka":
        from tools.bench.closed_loop import librdkafka_load  # imported when needed, so that `--help` is fast

        window = warm_up_s, seconds
        if load.kind == "produce":
            return librdkafka_load.produce(
                target, topic, load.connections, load.record_bytes, load.acks, window, on_progress
            )
        return librdkafka_load.consume(target, partitions, load.connections, load.fetch_bytes, window, on_progress)
    if load.kind == "produce":
        plan = produce_plan(load, partitions, warm_up_s, seconds)
    else:
        plan = _consume_plan(load, partitions, warm_up_s, seconds)
    return generate(plan, target, on_progress, on_note)


def produce_plan(
    load: Load, partitions: Sequence[Partition], warm_up_s: float, seconds: float, partitions_per_request: int = 1
) -> Plan:
    """Connections go to the leaders in turns. Those to one leader share its partitions, or write to the same ones if they are more."""
    of_leaders: dict[Address, list[Partition]] = {}
    for partition in partitions:
        of_leaders.setdefault(partition.leader, []).append(partition)
    leaders = list(of_leaders)
    records = batch(load.record_bytes, load.records_per_batch, int(time.time() * 1000))
    frames: list[Frame] = []
    connections = []
    for number in range(load.connections):
        leader = leaders[number % len(leaders)]
        of_leader = of_leaders[leader]
        rank = number // len(leaders)
        sharers = len(range(number % len(leaders), load.connections, len(leaders)))
        share = of_leader[rank::sharers] or [of_leader[rank % len(of_leader)]]
        first = len(frames)
        for at in range(0, len(share), partitions_per_request):
            together = share[at : at + partitions_per_request]
            where = [(partition.topic, partition.index) for partition in together]
            data = produce_frame(where, load.acks, records, load.version)
            count = len(together) * load.records_per_batch
            frames.append(Frame(data, count, count * load.record_bytes, version=load.version))
        connections.append(PlannedConnection("produce", leader, load.in_flight, first, len(frames) - first))
    return Plan(warm_up_s, seconds, frames, connections)


def end_to_end_plan(load: Load, partitions: Sequence[Partition], warm_up_s: float, seconds: float) -> Plan:
    """A producer and a consumer for each partition. A producer has `in_flight` batches that its consumer has not received yet."""
    records = batch(load.record_bytes, load.records_per_batch, int(time.time() * 1000))
    frames: list[Frame] = []
    connections: list[PlannedConnection] = []
    for partition in partitions:
        producer, first = len(connections), len(frames)
        where = [(partition.topic, partition.index)]
        frames.append(Frame(produce_frame(where, load.acks, records)))
        frames.append(fetch_frame(partition.topic, partition.index, END_TO_END_FETCH_BYTES))
        connections += [
            PlannedConnection("paired", partition.leader, load.in_flight, first, start=partition.end),
            PlannedConnection("fetch", partition.leader, 1, first + 1, start=partition.end, peer=producer),
        ]
    return Plan(warm_up_s, seconds, frames, connections)


def _consume_plan(load: Load, partitions: Sequence[Partition], warm_up_s: float, seconds: float) -> Plan:
    version = load.version
    frames = [fetch_frame(partition.topic, partition.index, load.fetch_bytes, version) for partition in partitions]
    connections = []
    for number in range(load.connections):
        at = number % len(partitions)
        partition = partitions[at]
        connections.append(
            PlannedConnection("fetch", partition.leader, load.in_flight, at, 1, partition.start, partition.end)
        )
    return Plan(warm_up_s, seconds, frames, connections)
