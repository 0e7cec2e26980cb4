"""`python -m tests.support.request_cost`: the CPU time that a broker spends on a Produce or Fetch request, in one process, without sockets.

Each load is served from the bytes of a read to the buffers of the answer. The time includes the reads of the log, but not the system
calls of the socket. The log is in the page cache. The result is the CPU time of the thread in the quietest tenth of the blocks: other
processes hardly change it.

| load | each request |
|---|---|
| produce | version 9, acks=1: one record of 100 bytes, from one connection |
| produce-20 | the same from each of 20 connections, in one turn of the loop |
| librdkafka | version 12 without a session: one partition, the next 64 KB |
| java | version 15 in a session: the client names its partition with the new offset, the next 64 KB |
| java-ten | the same, of ten partitions: only one of them has moved, and nine have nothing new |
| follower | version 15 in a session: a record is appended, the parked fetch is answered, and the next one is parked |
| follower-ten | the same, with a record in each of ten partitions |
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import itertools
import pstats
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import RequestChannel
from broker.request_handler import RequestHandler
from protocol.kafka.fetch_codec import (
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    decode_response,
    encode_request,
)
from protocol.kafka.framing import skip_tagged_fields
from protocol.kafka.record_batch import build_batch, iter_batches
from protocol.types import TopicPartition
from tests.support.api_world import World
from tests.support.fake_time import FakeTime
from tests.support.replica_cluster import Cluster
from tests.support.turns import Turns
from tools.bench.closed_loop import request_plan

ANSWER_BYTES = 64 * 1024
BATCH_BYTES = 16 * 1024
LOG_BYTES = 8 * 1024 * 1024
RECORD_BYTES = 1000
PRODUCED_BYTES = 100
TOPIC, TOPIC_ID = "t", uuid.UUID(int=77)
LEADER, FOLLOWER = 1, 2
FOLLOWER_EPOCH = 101
"""The broker epoch that the second broker of a `Cluster` gets."""

LIMITS = Limits(frame_bytes_max=1_000_000, in_flight_max=100, frame_timeout_s=5.0, idle_timeout_s=60.0)

Load = Callable[[int], float]
"""Serves that many requests; returns the CPU seconds that the broker spent on them."""


class RealTime(FakeTime):
    """The machine's clock, and timers that the measurement runs."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Taken:
    """A socket that keeps the last answer."""

    def __init__(self) -> None:
        self.last: list[bytes] = []

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Also of the encryption: what cannot be sent from a file is read."""
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """There is no buffer."""

    def write(self, data: bytes) -> None:
        self.last = [data]

    def writelines(self, parts: list[bytes]) -> None:
        self.last = parts

    def answer(self) -> memoryview:
        """The last answer, without its length."""
        return memoryview(b"".join(self.last))[4:]


class Broker:
    """A leader of `partitions`, with one client."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        world = World()
        self.cluster = cluster
        self.manager = cluster.nodes[LEADER].manager
        world.context.replica_manager = self.manager
        world.context.fetches = self.manager.fetches
        self.time = cluster.time
        self.turns = Turns()
        handler = RequestHandler(cast(Any, world.context))
        self.channel = RequestChannel(
            self.turns, handler.handle, max_requests=500, max_large_bytes=-1, end_turn=handler.end_turn
        )
        self.manager.fetches.look_with(self.channel.at_end_of_turn)
        clock = cast(Any, cluster.time)
        self.processor = Processor(self.channel, LIMITS, clock, lambda connection: True, lambda connection: None)
        self.socket = Taken()
        self.client = self.connect(self.socket)
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]

    def connect(self, socket: Taken) -> ClientConnection:
        client = ClientConnection(self.processor, "PLAINTEXT")
        client.connection_made(socket)  # type: ignore[arg-type]
        return client

    def send(self, frame: bytes) -> None:
        """A read with one request, and the turns that it asks for."""
        read(self.client, frame)
        self.look()

    def look(self) -> None:
        self.turns.run()
        self.time.turn()
        self.turns.run()

    def open_session(self, version: int, offsets: dict[int, int], *, is_follower: bool) -> int:
        """Returns the session's id."""
        self.send(fetch_frame(version, (0, 0), offsets, is_follower=is_follower))
        self.time.advance(0.6)  # the fetch may be parked
        self.look()
        session = self._decoded(version).session_id
        assert session, "the leader keeps no session"
        return session

    def records_of_answer(self, version: int) -> list[int]:
        """The partitions with records in the last answer."""
        return sorted(
            data.partition for _, partitions in self._decoded(version).topics for data in partitions if data.records
        )

    def _decoded(self, version: int) -> FetchResponse:
        answer = self.socket.answer()
        return decode_response(version, answer, skip_tagged_fields(answer, 4))

    def fill(self) -> None:
        batch = memoryview(build_batch([(None, bytes(RECORD_BYTES), [], 1000)] * (BATCH_BYTES // RECORD_BYTES)))
        for tp in self.partitions:
            for _ in range(LOG_BYTES // len(batch) if tp.partition == 0 else 1):
                self.manager.appends.append(1, 1000, [(tp, batch)], lambda results: None)
        self.time.turn()


def read(client: ClientConnection, frame: bytes) -> None:
    """Gives the bytes to the connection, as the loop does."""
    size = len(frame)
    client.get_buffer(-1)[:size] = frame
    client.buffer_updated(size)


def fetch_frame(version: int, session: tuple[int, int], offsets: dict[int, int], *, is_follower: bool) -> bytes:
    """A Fetch request with its length. `offsets`: by partition."""
    body = FetchRequest(
        replica_id=FOLLOWER if is_follower else -1,
        replica_epoch=FOLLOWER_EPOCH if is_follower else -1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 * 1024 * 1024,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[(TOPIC_ID if version >= 13 else TOPIC, [wanted(*place, is_follower) for place in offsets.items()])]
        if offsets
        else [],
        forgotten=[],
    )
    frame = encode_request(version, 7, "bench", body)
    return len(frame).to_bytes(4, "big") + frame


def wanted(partition: int, offset: int, is_follower: bool) -> FetchRequestPartition:
    return FetchRequestPartition(partition, 0, offset, -1, 0 if is_follower else -1, ANSWER_BYTES)


def producers(broker: Broker, connections: int) -> Load:
    """Each connection sends one request in each turn."""
    batch = request_plan.batch(PRODUCED_BYTES, 1, time.time_ns() // 1_000_000)
    frame = request_plan.produce_frame([(TOPIC, 0)], 1, batch)
    clients = [broker.connect(Taken()) for _ in range(connections)]

    def run(requests: int) -> float:
        began = time.thread_time()
        for first in range(0, requests, connections):
            for client in clients[: requests - first]:
                read(client, frame)
            broker.look()
        return time.thread_time() - began

    run(3 * connections)
    assert broker.cluster.nodes[LEADER].log(broker.partitions[0]).log_end_offset == 3 * connections
    return run


def consumer(broker: Broker, version: int, *, in_session: bool) -> Load:
    """Reads the first partition, again and again from its start to its end."""
    broker.fill()
    log = broker.cluster.nodes[LEADER].log(broker.partitions[0])
    offsets = [0]
    while log.log_end_offset - offsets[-1] > ANSWER_BYTES // RECORD_BYTES:
        data = memoryview(bytes(log.read(offsets[-1], ANSWER_BYTES, log.log_end_offset, True).records[0]))
        offsets.append([header for _, header in iter_batches(data) if header.base_offset >= 0][-1].next_offset)
    places = itertools.cycle(offsets[:-1])
    session = (0, -1)
    if in_session:
        ends = {tp.partition: broker.cluster.nodes[LEADER].log(tp).log_end_offset for tp in broker.partitions}
        session = (broker.open_session(version, {**ends, 0: 0}, is_follower=False), 0)

    def run(requests: int) -> float:
        nonlocal session
        frames = []
        for offset in itertools.islice(places, requests):
            if in_session:
                session = (session[0], session[1] + 1)
            frames.append(fetch_frame(version, session, {0: offset}, is_follower=False))
        began = time.thread_time()
        for frame in frames:
            broker.send(frame)
        return time.thread_time() - began

    run(3)
    assert sum(map(len, broker.socket.last)) > ANSWER_BYTES // 2, "the broker does not answer with records"
    return run


def follower(broker: Broker, version: int) -> Load:
    """A record is appended to each partition, which answers the parked fetch; then the follower fetches again, and is parked."""
    session, end = broker.open_session(version, {tp.partition: 0 for tp in broker.partitions}, is_follower=True), 0
    batch = memoryview(build_batch([(None, bytes(100), [], 1000)]))
    entries = [(tp, batch) for tp in broker.partitions]
    epoch = 0

    def run(requests: int) -> float:
        nonlocal epoch, end
        spent = 0.0
        for _ in range(requests):
            epoch += 1
            places = {tp.partition: end for tp in broker.partitions} if end else {}
            frame = fetch_frame(version, (session, epoch), places, is_follower=True)
            began = time.thread_time()
            broker.send(frame)
            parked = time.thread_time()
            broker.manager.appends.append(1, 1000, entries, lambda results: None)
            appended = time.thread_time()
            broker.look()
            spent += time.thread_time() - appended + parked - began
            end += 1
        return spent

    run(3)
    assert broker.records_of_answer(version) == [tp.partition for tp in broker.partitions], "the fetch is not answered"
    return run


LOADS: dict[str, tuple[int, Callable[[Broker], Load]]] = {
    "produce": (1, lambda broker: producers(broker, 1)),
    "produce-20": (1, lambda broker: producers(broker, 20)),
    "librdkafka": (1, lambda broker: consumer(broker, 12, in_session=False)),
    "java": (1, lambda broker: consumer(broker, 15, in_session=True)),
    "java-ten": (10, lambda broker: consumer(broker, 15, in_session=True)),
    "follower": (1, lambda broker: follower(broker, 15)),
    "follower-ten": (10, lambda broker: follower(broker, 15)),
}


async def measure(name: str, blocks: int, requests: int, profile: cProfile.Profile | None) -> float:
    """CPU seconds of a request."""
    partitions, begin = LOADS[name]
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), time=RealTime())
        brokers = (LEADER, FOLLOWER) if name.startswith("follower") else (LEADER,)
        await cluster.start(*brokers)
        for number in range(partitions):
            cluster.tp = TopicPartition(TOPIC, number)
            cluster.lead(LEADER, 0, brokers, to=(LEADER,))
        load = begin(Broker(cluster, partitions))
        load(2 * requests)
        gc.disable()
        if profile is not None:
            profile.enable()
        costs = [load(requests) / requests for _ in range(blocks)]
        if profile is not None:
            profile.disable()
        gc.enable()
        cluster.close()
        return statistics.quantiles(costs, n=10)[0]


@click.command()
@click.option("--load", "loads", multiple=True, type=click.Choice(list(LOADS)), default=tuple(LOADS))
@click.option("--blocks", default=100, show_default=True)
@click.option("--requests", default=100, show_default=True, help="Requests of a block.")
@click.option("--profile", is_flag=True, help="Print the functions that take most of the time.")
def main(loads: tuple[str, ...], blocks: int, requests: int, profile: bool) -> None:
    """Serve Produce and Fetch requests, and print the CPU time of each."""
    for name in loads:
        profiler = cProfile.Profile() if profile else None
        cost = asyncio.run(measure(name, blocks, requests, profiler))
        click.echo(f"{name:<13} {cost * 1e6:6.1f} us CPU per request")
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
