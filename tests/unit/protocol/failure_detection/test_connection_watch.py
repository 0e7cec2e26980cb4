"""The watch of one address, against listeners on loopback (CTL-16)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from protocol.failure_detection import connection_watch
from protocol.failure_detection.connection_watch import ConnectionWatch

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_watch, "AGAIN_S", 0.01)
    monkeypatch.setattr(connection_watch, "WAIT_S", 0.01)
    monkeypatch.setattr(connection_watch, "SPACING_S", 0.005)
    monkeypatch.setattr(connection_watch, "SHORT_LIVED_S", 0.001)
    monkeypatch.setattr(connection_watch, "STABLE_S", 0.0)
    monkeypatch.setattr(connection_watch, "TRUST_S", 0.01)
    monkeypatch.setattr(connection_watch, "CONNECT_TIMEOUT_S", 0.05)


class World:
    """A listener that can be closed and opened at the same port, and a watch of it."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []
        self.address = (HOST, 0)
        self.server: asyncio.Server | None = None
        self.deaths = 0
        self.suspicions: list[bool] = []
        self.changed = asyncio.Event()
        self.watch: ConnectionWatch | None = None

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._accept, *self.address)
        self.address = self.server.sockets[0].getsockname()[:2]

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        self.changed.set()

    def close(self) -> None:
        assert self.server is not None
        self.server.close()
        self.reset()

    def reset(self) -> None:
        for writer in self.accepted:
            writer.transport.abort()
        self.accepted.clear()

    def begin(self) -> None:
        self.watch = ConnectionWatch(self.address, self._died, self._suspected)

    def _died(self) -> None:
        self.deaths += 1
        self.changed.set()

    def _suspected(self, is_suspected: bool) -> None:
        self.suspicions.append(is_suspected)
        self.changed.set()

    async def until(self, check: Callable[[], object]) -> None:
        while not check():
            self.changed.clear()
            await self.changed.wait()


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(test: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            world = World()
            await world.open()
            try:
                async with asyncio.timeout(10):
                    await test(world)
            finally:
                if world.watch is not None:
                    world.watch.close()
                world.close()

        if request.param == "uvloop":
            uvloop.run(whole())
        else:
            asyncio.run(whole())

    return run


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def test_a_listener_that_is_gone_is_found_dead(play: Play) -> None:
    async def test(world: World) -> None:
        world.begin()
        await world.until(lambda: world.suspicions)
        world.close()
        await world.until(lambda: world.deaths)
        assert world.suspicions[:2] == [False, True], "suspected as soon as the connection has ended"

    play(test)


def test_one_that_was_never_there_is_found_dead_too(play: Play) -> None:
    """A controller that was just elected had no connection to a broker that died with its predecessor."""

    async def test(world: World) -> None:
        world.close()
        world.begin()
        await world.until(lambda: world.deaths)
        assert True not in world.suspicions

    play(test)


def test_a_connection_that_is_reset_by_a_living_listener_is_made_again(play: Play) -> None:
    async def test(world: World) -> None:
        world.begin()
        for count in range(5):
            await world.until(lambda n=count: world.accepted and len(world.suspicions) == 2 * n + 1)
            world.reset()
        await world.until(lambda: len(world.suspicions) == 11)
        assert world.deaths == 0
        assert world.suspicions == [False, True] * 5 + [False]

    play(test)


def test_one_that_accepts_once_more_while_it_is_killed_stays_suspected(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog of a listener outlives the process's other connections by some milliseconds."""
    monkeypatch.setattr(connection_watch, "STABLE_S", 0.005)

    async def test(world: World) -> None:
        world.begin()
        await world.until(lambda: world.suspicions)
        world.reset()
        await world.until(lambda: world.accepted)
        world.close()
        await world.until(lambda: world.deaths)
        assert world.suspicions[:2] == [False, True]
        assert False not in world.suspicions[1:]

    play(test)


def test_one_that_accepts_and_closes_for_ever_is_not_suspected(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy whose way to the broker is broken: clients must not be kept waiting because of it."""
    monkeypatch.setattr(connection_watch, "STABLE_S", 30.0)

    async def test(world: World) -> None:
        world.begin()
        for _ in range(5):
            await world.until(lambda: world.accepted)
            world.reset()
        assert True not in world.suspicions

    play(test)


def test_a_death_is_told_again_while_nobody_closes_the_watch(play: Play) -> None:
    """What followed from the first time may have been impossible: ZooKeeper was away (CTL-14)."""

    async def test(world: World) -> None:
        world.close()
        world.begin()
        await world.until(lambda: world.deaths >= 3)

    play(test)


def test_one_that_started_again_is_watched_again(play: Play) -> None:
    async def test(world: World) -> None:
        world.begin()
        await world.until(lambda: world.accepted)
        world.close()
        await world.until(lambda: world.deaths)
        await world.open()
        await world.until(lambda: world.accepted)
        world.deaths = 0
        world.close()
        await world.until(lambda: world.deaths)

    play(test)


def test_our_own_close_tells_nothing(play: Play) -> None:
    async def test(world: World) -> None:
        world.begin()
        await world.until(lambda: world.accepted and world.suspicions)
        assert world.watch is not None
        world.watch.close()
        world.close()
        await asyncio.sleep(0.05)  # nothing happens, and that cannot be awaited
        assert (world.deaths, world.suspicions) == (0, [False])

    play(test)


def test_a_listener_that_does_not_accept_lives(play: Play) -> None:
    """A paused process (SIGSTOP): its kernel goes on accepting, and when the queue is full it is silent."""

    async def test(world: World) -> None:
        with socket.socket() as listener:
            listener.bind((HOST, 0))
            listener.listen(0)
            world.address = listener.getsockname()
            with socket.create_connection(world.address), socket.socket() as second:
                second.setblocking(False)
                second.connect_ex(world.address)  # the queue is full now
                world.begin()
                await world.until(lambda: world.suspicions)
                await asyncio.sleep(0.2)
                assert (world.deaths, True in world.suspicions) == (0, False)

    play(test)


def test_a_name_that_cannot_be_resolved_proves_nothing(play: Play) -> None:
    async def test(world: World) -> None:
        world.address = ("no-such-host.invalid", 1)
        world.begin()
        await world.until(lambda: world.suspicions)
        assert (world.deaths, world.suspicions[0]) == (0, False)
        world.address = (HOST, 0)

    play(test)
