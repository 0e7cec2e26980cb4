"""The watch of one address, against listeners on loopback (CTL-16)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import pytest

from protocol import self_connection
from protocol.failure_detection import connection_watch
from protocol.failure_detection.connection_watch import ConnectionWatch

pytestmark = pytest.mark.usefixtures("new_loop")
HOST = "127.0.0.1"
SHORT = {"AGAIN_S": 0.01, "WAIT_S": 0.01, "SPACING_S": 0.005, "SHORT_LIVED_S": 0.001, "STABLE_S": 0.0, "TRUST_S": 0.01}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the timeout of an attempt at one second: on a busy machine a live listener must not look unclear."""
    for name, seconds in SHORT.items():
        monkeypatch.setattr(connection_watch, name, seconds)


class World:
    """A listener that can be closed and opened at the same port, and a watch of it."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []
        self.address = (HOST, 0)
        self.deaths = 0
        self.suspicions: list[bool] = []
        self.changed = asyncio.Event()
        self.watch: ConnectionWatch | None = None

    async def __aenter__(self) -> World:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.watch is not None:
            self.watch.close()
        self.close()

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._accept, *self.address)
        self.address = self.server.sockets[0].getsockname()[:2]

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append(writer)
        self.changed.set()

    def close(self) -> None:
        self.server.close()
        self.reset()

    def reset(self) -> None:
        for writer in self.accepted:
            writer.transport.abort()
        self.accepted.clear()

    def start_watch(self) -> None:
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

    async def until_trusted(self) -> None:
        self.start_watch()
        await self.until(lambda: self.accepted and self.suspicions)

    async def until_dead(self) -> None:
        self.close()
        self.deaths = 0
        await self.until(lambda: self.deaths)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_listener_that_ends_is_found_dead_and_watched_again_when_it_returns(world: World) -> None:
    await world.until_trusted()
    await world.until_dead()
    assert world.suspicions[:2] == [False, True], "suspected as soon as the connection has ended"
    await world.open()
    await world.until(lambda: world.accepted)
    await world.until_dead()


async def test_an_address_without_a_listener_is_found_dead_repeatedly(world: World) -> None:
    """A controller that was just elected had no connection to a broker that died with its predecessor.

    What followed from the first time may have been impossible: ZooKeeper was away (CTL-14).
    """
    world.close()
    world.start_watch()
    await world.until(lambda: world.deaths >= 3)
    assert True not in world.suspicions


async def test_the_end_of_a_connection_with_itself_does_not_count_for_the_next_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name has two addresses, and the first attempt connects to itself: the second connection is watched."""
    own = iter([True])
    monkeypatch.setattr(self_connection, "is_to_itself", lambda _: next(own, False))
    world.start_watch()
    assert world.watch is not None
    monkeypatch.setattr(world.watch, "_resolved", partial(asyncio.sleep, 0, [world.address, world.address]))
    await world.until(lambda: len(world.accepted) == 2 and world.suspicions)
    monkeypatch.setattr(connection_watch, "TRUST_S", 30.0)  # the next one ends before it is trusted
    world.accepted[1].transport.abort()
    await world.until(lambda: len(world.accepted) == 3)
    assert world.suspicions == [False, True]


async def test_a_connection_that_a_live_listener_reset_is_opened_again(world: World) -> None:
    world.start_watch()
    for count in range(5):
        await world.until(lambda n=count: world.accepted and len(world.suspicions) == 2 * n + 1)
        world.reset()
    await world.until(lambda: len(world.suspicions) == 11)
    assert (world.deaths, world.suspicions) == (0, [False, True] * 5 + [False])


async def test_a_process_that_accepts_while_it_is_killed_stays_suspected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backlog of a listener outlives the process's other connections by some milliseconds."""
    monkeypatch.setattr(connection_watch, "STABLE_S", 0.005)
    await world.until_trusted()
    monkeypatch.setattr(connection_watch, "TRUST_S", 30.0)  # the next one ends before it is trusted
    world.reset()
    await world.until(lambda: world.accepted)
    await world.until_dead()
    assert world.suspicions[:2] == [False, True]
    assert False not in world.suspicions[1:]


async def test_a_listener_that_always_accepts_and_closes_is_not_suspected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a proxy that cannot reach its broker. Clients must not wait because of it."""
    monkeypatch.setattr(connection_watch, "STABLE_S", 30.0)
    world.start_watch()
    for _ in range(5):
        await world.until(lambda: world.accepted)
        world.reset()
    assert True not in world.suspicions


async def test_closing_the_watch_calls_no_listener(world: World) -> None:
    await world.until_trusted()
    assert world.watch is not None
    world.watch.close()
    world.close()
    await asyncio.sleep(0.05)  # nothing happens, and that cannot be awaited
    assert (world.deaths, world.suspicions) == (0, [False])


async def test_a_listener_that_does_not_accept_is_alive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused process (SIGSTOP): its kernel still accepts, until the queue is full, and then does not answer."""
    monkeypatch.setattr(connection_watch, "CONNECT_TIMEOUT_S", 0.05)
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        world.address = listener.getsockname()
        with socket.create_connection(world.address), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(world.address)  # the queue is full now
            world.start_watch()
            await world.until(lambda: len(world.suspicions) >= 3)
            assert (world.deaths, True in world.suspicions) == (0, False)


async def test_a_name_that_cannot_be_resolved_proves_nothing(world: World) -> None:
    world.address = ("no-such-host.invalid", 1)
    world.start_watch()
    await world.until(lambda: world.suspicions)
    assert (world.deaths, world.suspicions[0]) == (0, False)
