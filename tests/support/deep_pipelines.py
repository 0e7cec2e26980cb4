"""Clients with deep pipelines: every answer comes, in order, with the right content, and no connection is left behind (NET-1, NET-2).

    python -m tests.support.deep_pipelines --minutes 60 --directory DIR

Each client is one connection with up to DEPTH_MAX requests in flight: fetches of all sizes, Produce requests of an idempotent producer, or
both mixed with small requests, in old and new versions. Some read slowly, some go away in the middle. What is checked:

- answers come in the order of the requests, and there is one every ANSWER_S while requests are in flight. (One answer may take longer:
  its client has to read those before it first.)
- an idempotent producer is never refused, and its base offsets rise: so its requests were *handled* in order;
- fetched records are whole and those of the topic that was asked for;
- at the end no socket of a broker is in CLOSE-WAIT.

A broker whose machine stood still for a second refuses requests until it knows that its session lives. Such an answer ends its client, as a
real producer begins anew with another producer id; the answers behind it must still come in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch, crc_is_valid, decode_records, iter_batches
from tests.support.invariants import eventually
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

DEPTH_MAX = 24
ANSWER_S = 30.0
RECORD_SIZES = (10, 1_000, 40_000, 200_000, 900_000)
FETCH_SIZES = (1, 3_000, 64_000, 300_000, 1_048_576, 8_388_608)
CLOSE_WAIT = "08"
TOPICS = 3
MIB = 1024 * 1024
RETENTION = {"retention_bytes": str(200 * MIB), "segment_bytes": str(16 * MIB)}

Body = dict[str, Any]


@dataclass
class Expected:
    """A request in flight."""

    number: int
    api_key: ApiKey
    version: int
    topic: str
    sent_at: float


@dataclass
class Counts:
    """What all clients did."""

    answers: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    longest_s: float = 0.0
    connections: int = 0


class Client:
    """One connection. `weights` says how often it sends what."""

    def __init__(
        self, port: int, topics: Sequence[str], random: Random, weights: dict[ApiKey, int], counts: Counts
    ) -> None:
        self._port = port
        self._topics = topics
        self._random = random
        self._keys = list(weights)
        self._weights = list(weights.values())
        self._counts = counts
        self._in_flight: deque[Expected] = deque()
        self._changed = asyncio.Event()
        self._number = 0
        self._ends = dict.fromkeys(topics, 0)
        self._sequences = dict.fromkeys(topics, 0)
        self._written: dict[str, int] = {}
        self._producer_id = producer_id(port)
        self._is_slow = random.random() < 0.2
        self._is_refused = False

    async def run(self, ends_at: float) -> None:
        """Raises AssertionError if an answer is wrong."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        self._counts.connections += 1
        goes_away = self._random.random() < 0.2
        reading = asyncio.create_task(self._read(reader))
        try:
            await self._write(writer, reading, min(ends_at, time.monotonic() + self._random.uniform(1, 20)))
            while self._in_flight and not goes_away and not reading.done():
                await self._wait(reading)
        finally:
            writer.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if not goes_away and not reading.cancelled():
            reading.result()

    async def _write(self, writer: asyncio.StreamWriter, reading: asyncio.Task[None], until: float) -> None:
        depth = self._random.randint(1, DEPTH_MAX)
        while time.monotonic() < until and not reading.done() and not self._is_refused:
            while len(self._in_flight) < depth:
                (key,) = self._random.choices(self._keys, self._weights)
                writer.write(self._request(key))
            async with asyncio.timeout(ANSWER_S):
                await writer.drain()
            await self._wait(reading)
            if self._random.random() < 0.02:
                depth = self._random.randint(1, DEPTH_MAX)
        if reading.done():
            reading.result()

    async def _wait(self, reading: asyncio.Task[None]) -> None:
        """Waits for an answer."""
        changed = asyncio.create_task(self._changed.wait())
        done, _ = await asyncio.wait({changed, reading}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        self._changed.clear()
        assert done, f"no answer for {ANSWER_S:g} s: {list(self._in_flight)[:3]}"
        if reading in done:
            reading.result()

    def _request(self, key: ApiKey) -> bytes:
        topic = self._random.choice(self._topics)
        version, body = getattr(self, f"_{key.name.lower()}")(topic)
        self._number += 1
        self._in_flight.append(Expected(self._number, key, version, topic, time.monotonic()))
        payload = messages.encode_request(key, version, self._number, "deep", body)
        return struct.pack(">i", len(payload)) + payload

    def _fetch(self, topic: str) -> tuple[int, Body]:
        end = self._ends[topic]
        offset = self._random.randint(0, end) if end else 0
        size = self._random.choice(FETCH_SIZES)
        part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1}
        part |= {"log_start_offset": -1, "partition_max_bytes": size}
        body = {
            "replica_id": -1,
            "max_wait": self._random.choice((0, 0, 20, 200)),
            "min_bytes": 1,
            "max_bytes": size * 2,
        }
        body |= {"isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "", "forgotten_topics_data": []}
        return self._random.choice((4, 7, 11, 12)), {**body, "topics": [{"topic": topic, "partitions": [part]}]}

    def _produce(self, topic: str) -> tuple[int, Body]:
        size = self._random.choice(RECORD_SIZES)
        sequence = self._sequences[topic]
        self._sequences[topic] += 1
        value = topic.encode() + bytes(size)
        batch = build_batch(
            [(None, value, (), 1)], producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence
        )
        rows = [{"index": 0, "records": batch}]
        body = {"transactional_id": None, "acks": self._random.choice((1, -1)), "timeout": 20_000}
        return self._random.choice((3, 7, 9)), {**body, "topic_data": [{"name": topic, "partition_data": rows}]}

    def _metadata(self, topic: str) -> tuple[int, Body]:
        return 5, {"topics": [{"name": topic}], "allow_auto_topic_creation": False}

    def _list_offsets(self, topic: str) -> tuple[int, Body]:
        part = {"partition_index": 0, "timestamp": -2}
        topics = [{"name": topic, "partitions": [part]}]
        return 2, {"replica_id": -1, "isolation_level": 0, "topics": topics}

    def _api_versions(self, topic: str) -> tuple[int, Body]:
        return 0, {}

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            frame = await reader.readexactly(size)
            expected = self._in_flight.popleft()
            (number,) = struct.unpack_from(">i", frame)
            assert number == expected.number, f"the answer of request {number} came before that of {expected}"
            took = time.monotonic() - expected.sent_at
            self._counts.longest_s = max(self._counts.longest_s, took)
            self._counts.answers[expected.api_key.name] += 1
            self._check(expected, frame)
            self._changed.set()
            if self._is_slow and self._random.random() < 0.02:
                await asyncio.sleep(self._random.uniform(0.1, 1.0))  # a client that is busy with something else

    def _check(self, expected: Expected, frame: bytes) -> None:
        _, answer = messages.decode_response(expected.api_key, expected.version, frame)
        topic = expected.topic
        if expected.api_key is ApiKey.PRODUCE:
            part = answer.responses[0].partition_responses[0]
            if self._refuses(part.error_code):
                return
            assert part.error_code == 0, f"{expected}: error {part.error_code!r}"
            assert part.base_offset > self._written.get(topic, -1), f"{expected} was handled before an earlier one"
            self._written[topic] = part.base_offset
            self._ends[topic] = max(self._ends[topic], part.base_offset)
        elif expected.api_key is ApiKey.FETCH:
            part = answer.responses[0].partitions[0]
            if self._refuses(part.error_code):
                return
            assert part.error_code in (0, 1), f"{expected}: error {part.error_code!r}"
            self._ends[topic] = max(self._ends[topic], part.high_watermark)
            self._check_records(topic, bytes(part.records or b""))
        elif expected.api_key is ApiKey.LIST_OFFSETS:
            part = answer.topics[0].partitions[0]
            assert self._refuses(part.error_code) or part.error_code == 0, f"{expected}: error {part.error_code!r}"

    def _refuses(self, error: int) -> bool:
        """Whether the broker does not act for its session now, or did not for an earlier request of this client."""
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and not self._is_refused:
            self._is_refused = True
            self._counts.refused += 1
        return self._is_refused

    def _check_records(self, topic: str, records: bytes) -> None:
        expected = None
        for position, header in iter_batches(records):
            assert crc_is_valid(records, position, header), f"{topic}: a broken batch at offset {header.base_offset}"
            assert expected in (None, header.base_offset), f"{topic}: offset {header.base_offset}, expected {expected}"
            expected = header.base_offset + 1
            (record,) = decode_records(records, position)
            assert (record.value or b"").startswith(topic.encode()), f"{topic}: a record of another topic"


KINDS: tuple[dict[ApiKey, int], ...] = (
    {ApiKey.FETCH: 1},
    {ApiKey.FETCH: 3, ApiKey.PRODUCE: 1},
    {ApiKey.PRODUCE: 1},
    {ApiKey.FETCH: 2, ApiKey.PRODUCE: 2, ApiKey.METADATA: 1, ApiKey.LIST_OFFSETS: 1, ApiKey.API_VERSIONS: 1},
)


def producer_id(port: int) -> int:
    with Wire(port) as wire:
        answer = wire.call(ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout": 60_000})
        assert answer.error_code == 0
        return int(answer.producer_id)


async def keep_running(clients: int, port: int, topics: Sequence[str], seed: int, seconds: float) -> Counts:
    """Runs that many clients at a time and replaces each that ends. Raises AssertionError if one of them is served wrongly."""
    counts, ends_at = Counts(), time.monotonic() + seconds

    async def one_after_the_other(number: int) -> None:
        random = Random(f"{seed}-{number}")
        while time.monotonic() < ends_at:
            await Client(port, topics, random, KINDS[number % len(KINDS)], counts).run(ends_at)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(one_after_the_other(number))
    return counts


def left_behind(port: int) -> int:
    """Sockets of the broker whose client is gone, and which the broker does not close."""
    wanted = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[1].endswith(wanted) and row[3] == CLOSE_WAIT)


def run_pipelines(cluster: LocalCluster, *, clients: int, seed: int, seconds: float) -> Counts:
    """On one broker, which leads all the topics."""
    topics = [new_topic(cluster.bootstrap_servers, assignment=[[1]], **RETENTION) for _ in range(TOPICS)]
    port = cluster.port(1)
    counts = asyncio.run(keep_running(clients, port, topics, seed, seconds))
    eventually(lambda: left_behind(port) == 0, "no connection is left behind", timeout_s=10)
    return counts


@contextlib.contextmanager
def cluster_in(directory: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory / "cluster")
    try:
        cluster.create(brokers=1)
        cluster.start(timeout=60)
        cluster.wait_ready(timeout=60)
        yield cluster
    finally:
        cluster.destroy()


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--clients", default=16, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Where the cluster runs.  [default: a temporary directory]"
)
def main(minutes: float, clients: int, seed: int, directory: Path | None) -> None:
    """Run clients with deep pipelines against a broker, and check each answer."""
    with tempfile.TemporaryDirectory() as temporary, cluster_in(directory or Path(temporary)) as cluster:
        counts = run_pipelines(cluster, clients=clients, seed=seed, seconds=minutes * 60)
    answers = ", ".join(f"{number:,} {name}" for name, number in counts.answers.most_common())
    click.echo(f"passed: {counts.connections:,} connections, {counts.refused} of them refused; answers: {answers}")
    click.echo(f"the longest answer took {counts.longest_s:.2f} s")


if __name__ == "__main__":
    main()
