"""The rows of the comparison: each is a load, with its goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tools.bench.closed_loop.load import Load

KIB, MIB = 1024, 1024**2
BATCH_OVERHEAD = 72
"""Bytes of a batch with one large record, beside the value: an answer to a fetch has exactly one such batch."""
Unit = Literal["requests/s", "records/s", "MB/s"]


@dataclass(frozen=True, slots=True)
class PerfTool:
    """A load of Kafka's own ProducerPerformance or ConsumerPerformance, with a linger of 5 ms."""

    kind: Literal["produce", "consume"]
    record_bytes: int
    partitions: int
    replication_factor: int

    def as_load(self) -> Load:
        """A load on the same topic. Records to be read are written in batches of 16 KB."""
        return Load(
            kind=self.kind, connections=1, record_bytes=self.record_bytes, partitions=self.partitions,
            records_per_batch=16 * KIB // self.record_bytes, acks=-1, replication_factor=self.replication_factor,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A load, under a key that `--rows` takes.

    Goals are ratios of our figure to Kafka's: of the throughput at least, of the 99th percentile of the latency at most.
    """

    key: str
    title: str
    load: Load | PerfTool
    unit: Unit
    goal: float
    goal_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Clients:
    """Client libraries, and the versions of Produce and Fetch that they send to Kafka 3.9, as a broker's metrics count them."""

    names: str
    produce: int
    fetch: int


LIBRDKAFKA = Clients("librdkafka", 10, 16)
"""2.12 and 2.16. franz-go 1.22 and the Java client from 3.9 on send the same bytes as v11 and v17."""
OTHER_CLIENTS = (
    Clients("KafkaJS, aiokafka", 7, 11),
    Clients("kafka-go", 8, 10),
    Clients("kafka-python, sarama", 9, 12),
)
"""KafkaJS 2.2, aiokafka 0.14, kafka-go 0.4, kafka-python 3.0, and sarama 1.61 with its default settings."""

NEWEST = Clients("Java 4.1", 13, 18)
"""What it sends to brokers at level 4."""


def _produce(
    key: str,
    acks: int,
    connections: int,
    in_flight: int,
    record_bytes: int,
    goal: float,
    goal_p99: float | None = None,
    clients: Clients = LIBRDKAFKA,
) -> Row:
    replicas = 3 if acks == -1 else 1
    size = _size(record_bytes)
    start = "acks=all RF 3" if acks == -1 else "produce acks=1"
    load = Load(
        kind="produce", client="raw", connections=connections, in_flight=in_flight, record_bytes=record_bytes,
        records_per_batch=1, acks=acks, replication_factor=replicas, partitions=1, fetch_bytes=0, api_version=clients.produce,
    )  # fmt: skip
    unit: Unit = "requests/s" if record_bytes < KIB else "MB/s"
    shape = f"{connections} x {in_flight}, {size}"
    if clients is LIBRDKAFKA:
        return Row(key, f"{start}, {shape}", load, unit, goal, goal_p99)
    return Row(
        f"{key}-v{clients.produce}", f"{clients.names}: produce v{clients.produce}, {shape}", load, unit, goal, goal_p99
    )


def _fetch(key: str, answer_bytes: int, goal: float, clients: Clients = LIBRDKAFKA) -> Row:
    load = Load(
        kind="consume", client="raw", connections=1, in_flight=1, record_bytes=answer_bytes - BATCH_OVERHEAD, records_per_batch=1,
        acks=1, replication_factor=1, partitions=1, fetch_bytes=answer_bytes, api_version=clients.fetch,
    )  # fmt: skip
    if clients is LIBRDKAFKA:
        return Row(key, f"fetch, 1 x 1, {_size(answer_bytes)} answers", load, "MB/s", goal)
    title = f"{clients.names}: fetch v{clients.fetch}, {_size(answer_bytes)}"
    return Row(f"{key}-v{clients.fetch}", title, load, "MB/s", goal)


def _librdkafka(kind: Literal["produce", "consume"], goal: float) -> Row:
    """Records to be read were written in batches of 16 KB."""
    key = f"librdkafka-{kind}"
    load = Load(
        kind=kind, client="librdkafka", connections=1, in_flight=1, record_bytes=KIB, records_per_batch=16,
        acks=-1, replication_factor=3, partitions=1, fetch_bytes=MIB,
    )  # fmt: skip
    title = "librdkafka, RF 3, 1 KB, produce acks=all" if kind == "produce" else "librdkafka, RF 3, 1 KB, consume"
    return Row(key, title, load, "MB/s", goal)


def _size(count: int) -> str:
    return f"{count // MIB} MB" if count >= MIB else f"{count // KIB} KB" if count >= KIB else f"{count} B"


ROWS = (
    _produce("produce-1x1-100b", 1, 1, 1, 100, 2, 0.2),
    _produce("produce-1x5-100b", 1, 1, 5, 100, 8, 0.2),
    _produce("produce-20x1-100b", 1, 20, 1, 100, 2, 0.3),
    _produce("produce-1x5-16k", 1, 1, 5, 16 * KIB, 5),
    _produce("produce-4x5-64k", 1, 4, 5, 64 * KIB, 3),
    _produce("produce-4x2-1m", 1, 4, 2, MIB, 2),
    _produce("all-1x5-16k", -1, 1, 5, 16 * KIB, 5),
    _produce("all-4x5-64k", -1, 4, 5, 64 * KIB, 3),
    _produce("all-20x1-100b", -1, 20, 1, 100, 2.5, 0.3),
    _fetch("fetch-64k", 64 * KIB, 2),
    _fetch("fetch-1m", MIB, 1.3),
    *(_produce("produce-20x1-100b", 1, 20, 1, 100, 2, 0.3, clients) for clients in OTHER_CLIENTS),
    *(_fetch("fetch-64k", 64 * KIB, 2, clients) for clients in OTHER_CLIENTS),
    _librdkafka("produce", 2),
    _librdkafka("consume", 2.5),
    Row("perf-produce", "ProducerPerformance, RF 3, 200 B", PerfTool("produce", 200, 6, 3), "records/s", 4, 0.2),
    Row("perf-consume", "ConsumerPerformance, RF 3, 200 B", PerfTool("consume", 200, 6, 3), "MB/s", 4),
)
"""In the order in which they run and are printed. Raw requests are librdkafka's unless the title names other clients."""


NEWEST_ROWS = (
    _produce("produce-20x1-100b", 1, 20, 1, 100, 2, 0.3, NEWEST),
    _fetch("fetch-64k", 64 * KIB, 2, NEWEST),
)
"""In versions that Kafka 3.9 does not serve."""


def chosen(keys: Sequence[str], rows: Sequence[Row] = ROWS) -> list[Row]:
    """The rows with these keys, in their order; all rows without a key. ValueError names an unknown key."""
    known = {row.key for row in rows}
    for key in keys:
        if key not in known:
            raise ValueError(f"{key!r} is no row: choose from {', '.join(row.key for row in rows)}")
    return [row for row in rows if not keys or row.key in keys]
