"""`python -m tests.support.metrics_cost`: what metrics add to the CPU time of a produce request, in one process and without sockets.

The same broker's code serves the same frames, from the bytes of a read to the bytes of the answer, with and without metrics. Both take
turns in short blocks, in pairs whose order alternates, so that a machine that gets slower or faster counts for both. The result is
the median of the pairs' ratios. CPU time of the thread is compared: other processes hardly change it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import Request, RequestChannel
from broker.network.request_metrics import RequestMetrics
from broker.request_handler import PRODUCE, RequestHandler
from protocol.types import TopicPartition
from tests.support.api_world import World
from tests.support.fake_time import FakeTime
from tests.support.replica_cluster import TP, Cluster
from tests.support.turns import Turns
from tools.bench.produce_load import produce_frame

LIMITS = Limits(frame_bytes_max=1_000_000, in_flight_max=100, frame_timeout_s=5.0, idle_timeout_s=60.0)


class RealTime(FakeTime):
    """The machine's clock, and turns that the bench runs."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Transport:
    """A socket that takes everything."""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """There is no buffer."""

    def write(self, data: bytes) -> None:
        """The client has it."""


class Unmeasured(RequestHandler):
    """`handle` without metrics, for an API that is known in a version that is served."""

    def handle(self, request: Request) -> None:
        header = request.header
        api_key = header.api_key
        route = self._routes.get(api_key)
        if route is None:
            return
        oldest, newest, handler = route[:3]
        version = header.api_version
        if not oldest <= version <= newest:
            return
        if len(request.frame) > 1 << 24 and api_key != 0:
            return
        gathered = self._gathered
        try:
            if api_key == PRODUCE and gathered.gather(request):
                waiting = None
            else:
                gathered.append_all()
                waiting = handler(self._context, request)
        except ValueError:
            raise
        else:
            if waiting is not None:
                self._run(request, waiting)


def nothing(partitions: Iterable[TopicPartition]) -> None:
    """Counts no appended records."""


class Broker:
    """A leader without followers, and `connections` clients that send one request in each turn."""

    def __init__(self, cluster: Cluster, connections: int) -> None:
        world = World()
        manager = cluster.nodes[1].manager
        world.context.replica_manager = manager
        self._fetches: Any = manager.fetches
        self._count = self._fetches._note_appended
        self._time = cluster.time
        self._turns = Turns()
        self.metrics = RequestMetrics()
        measured = RequestHandler(cast(Any, world.context), self.metrics)
        plain = Unmeasured(cast(Any, world.context), RequestMetrics())
        self._handlers: dict[bool, Callable[[Request], None]] = {True: measured.handle, False: plain.handle}

        def end_turn() -> None:
            measured.end_turn()
            plain.end_turn()

        self._channel = RequestChannel(
            self._turns, measured.handle, max_requests=500, max_large_bytes=-1, end_turn=end_turn
        )
        clock = cast(Any, cluster.time)
        self._processor = Processor(self._channel, LIMITS, clock, lambda connection: True, lambda connection: None)
        self._connections = []
        for _ in range(connections):
            connection = ClientConnection(self._processor, "PLAINTEXT")
            connection.connection_made(Transport())  # type: ignore[arg-type]
            self._connections.append(connection)
        self._frame = produce_frame(TP.topic, TP.partition, 100, 1)

    def cost(self, requests: int, *, is_on: bool) -> float:
        """CPU seconds of a request."""
        cast(Any, self._channel)._handle = self._handlers[is_on]
        self._fetches._note_appended = self._count if is_on else nothing
        frame, size, turns, timers = self._frame, len(self._frame), self._turns, self._time
        rounds = requests // len(self._connections)
        began = time.thread_time()
        for _ in range(rounds):
            for connection in self._connections:
                connection.get_buffer(-1)[:size] = frame
                connection.buffer_updated(size)
            turns.run()
            timers.turn()
        return (time.thread_time() - began) / (rounds * len(self._connections))


class Found(NamedTuple):
    """`ratios`: with / without metrics, of each pair, in order. CPU seconds of a request in the quietest tenth of the blocks."""

    ratios: list[float]
    with_metrics: float
    without: float


async def compare(connections: int, pairs: int, requests: int) -> Found:
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), time=RealTime())
        manager = (await cluster.start_led(1)).manager
        broker = Broker(cluster, connections)
        ratios = []
        costs: dict[bool, list[float]] = {True: [], False: []}
        for is_on in costs:
            broker.cost(10 * requests, is_on=is_on)
        gc.disable()
        settled = time.monotonic()
        for number in range(pairs):
            for is_on in (True, False) if number % 2 else (False, True):
                costs[is_on].append(broker.cost(requests, is_on=is_on))
            ratios.append(costs[True][-1] / costs[False][-1])
            if time.monotonic() > settled + 1:
                settled = time.monotonic()
                broker.metrics.settle()
                await manager.count_appended()
        gc.enable()
        cluster.close()
        quiet = {is_on: statistics.quantiles(found, n=10)[0] for is_on, found in costs.items()}
        return Found(sorted(ratios), quiet[True], quiet[False])


@click.command()
@click.option("--connections", multiple=True, type=int, default=(1, 20), show_default=True)
@click.option("--pairs", default=1000, show_default=True)
@click.option("--requests", default=200, show_default=True, help="Requests of each of the two blocks of a pair.")
def main(connections: tuple[int, ...], pairs: int, requests: int) -> None:
    """Serve produce requests with one small record, with and without metrics in turns."""
    for count in connections:
        found = asyncio.run(compare(count, pairs, requests))
        ratios = found.ratios
        quarter = len(ratios) // 4
        click.echo(
            f"{count:>3} connections: {found.without * 1e6:.2f} us CPU per request without metrics, "
            f"{found.with_metrics * 1e6:.2f} us with them, in the quietest tenth of the blocks: {found.with_metrics / found.without:.4f}"
        )
        click.echo(
            f"    with/without of the pairs: median {statistics.median(ratios):.4f}, half of them from {ratios[quarter]:.4f} "
            f"to {ratios[-quarter - 1]:.4f}"
        )


if __name__ == "__main__":
    main()
