"""New connections that wait for their turn: their order, those who have left, how many there may be (KIP-612)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from broker.network import turnstile
from broker.network.acceptor import Acceptor, AcceptorSettings, ConnectionCounts
from broker.network.request_channel import RequestChannel
from broker.network.turnstile import PASSED_IN_A_TURN, Turnstile, hung_up
from tests.support.fake_time import FakeTime
from tests.unit.broker.network.test_processor import LIMITS


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class One:
    def __init__(self, name: str, log: list[str], descriptor: int = -1) -> None:
        self.name = name
        self.remote_address = name.rpartition("/")[0]
        self._log = log
        self._descriptor = descriptor

    def begin(self) -> None:
        self._log.append(self.name)

    def abort(self) -> None:
        self._log.append(f"not {self.name}")

    def has_left(self) -> bool:
        return self._descriptor >= 0 and hung_up(self._descriptor)


class World:
    """`waits`: what each counted connection waits for, in ms; 0 after the last."""

    def __init__(self, *waits: int, room: int = 1000) -> None:
        self.log: list[str] = []
        self.waits = list(waits)
        self.turnstile = Turnstile("CLIENTS", self._wait_ms, lambda: room, FakeTime().monotonic)

    def _wait_ms(self) -> int:
        return self.waits.pop(0) if self.waits else 0

    def arrive(self, name: str, descriptor: int = -1) -> None:
        one = One(name, self.log, descriptor)
        if self.turnstile.passes(one):
            one.begin()

    async def has_logged(self, *names: str) -> None:
        await until(lambda: len(self.log) >= len(names))
        assert self.log == list(names)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_nobody_overtakes_one_that_waits(new_loop: object) -> None:
    world = World(0, 1, 0, 1)
    for name in "abcd":
        world.arrive(name)
    assert (world.log, world.waits) == (["a"], [0, 1]), "those behind the first are counted when their turn comes"
    await world.has_logged("a", "b", "c", "d")
    world.arrive("e")
    assert world.log[-1] == "e"


async def test_addresses_take_turns(new_loop: object) -> None:
    world = World(*[1] * 7)
    for name in ("a/1", "a/2", "a/3", "b/1", "a/4", "c/1", "b/2"):
        world.arrive(name)
    await world.has_logged("a/1", "b/1", "c/1", "a/2", "b/2", "a/3", "a/4")


async def test_where_all_room_is_taken_a_crowd_makes_place(
    new_loop: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turnstile, "WAITING_MAX", 3)
    world = World(10_000)
    for name in ("a/1", "a/2", "a/3", "a/4", "b/1", "c/1", "b/2"):
        world.arrive(name)
    assert world.log == ["not a/4", "not a/3", "not a/2", "not b/2"]
    assert "refused a connection of a on CLIENTS" in caplog.text
    world.turnstile.close()
    assert world.log[4:] == ["not a/1", "not b/1", "not c/1"]


async def test_many_whose_turn_has_come_share_the_turns_of_the_loop(new_loop: object) -> None:
    world = World(1)
    for number in range(3 * PASSED_IN_A_TURN):
        world.arrive(f"{number}")
    await until(lambda: bool(world.log))
    assert len(world.log) == PASSED_IN_A_TURN
    await world.has_logged(*(f"{number}" for number in range(3 * PASSED_IN_A_TURN)))


@pytest.mark.parametrize("data", [b"", b"a request that nobody reads"])
async def test_whoever_has_left_gives_its_turn_to_the_next(new_loop: object, sockets: ExitStack, data: bytes) -> None:
    world = World(1, 10_000)
    pairs = [socket.socketpair() for _ in range(3)]
    for number, (ours, theirs) in enumerate(pairs):
        sockets.enter_context(ours)
        sockets.enter_context(theirs)
        world.arrive(f"{number}", ours.fileno())
    for _, theirs in pairs[:2]:
        theirs.sendall(data)
        theirs.close()
    await world.has_logged("not 0", "not 1", "2")
    assert world.waits == [10_000], "no further one was counted"


@pytest.mark.parametrize("room", [3, 1000])
async def test_above_the_limit_they_are_closed_at_once(
    new_loop: object, room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turnstile, "WAITING_MAX", 1000 if room == 3 else 3)
    world = World(10_000, room=room)
    for name in "abcde":
        world.arrive(name)
    assert world.log == ["not d", "not e"]
    assert len(caplog.records) == 1
    assert "max.connection.creation.rate is reached, and 3 connections wait" in caplog.text
    world.turnstile.close()
    assert world.log[2:] == ["not a", "not b", "not c"]


async def test_a_connection_that_waits_is_not_read_and_then_is_as_any(new_loop: object, sockets: ExitStack) -> None:
    """With a real listener. One that has hung up while it waited is never seen by the processors."""
    waits = [0, 300]
    handled: list[bytes] = []
    channel = RequestChannel(
        asyncio.get_running_loop(),
        lambda request: handled.append(bytes(request.frame)),
        max_requests=100,
        max_large_bytes=-1,
    )
    settings = AcceptorSettings("CLIENTS", 1, LIMITS, wait_ms=lambda: waits.pop(0) if waits else 0)
    acceptor = Acceptor(settings, channel, FakeTime(), ConnectionCounts(1000, 1000))  # type: ignore[arg-type]
    port = await acceptor.bind("127.0.0.1", 0)
    await acceptor.serve()
    frames = [bytes([0, 3, 0, 1, 0, 0, 0, number, 255, 255]) for number in range(4)]
    clients = [sockets.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in frames]
    for client, frame in zip(clients, frames, strict=True):
        client.sendall(len(frame).to_bytes(4, "big") + frame)
    clients[2].close()
    await until(lambda: bool(handled) and not waits)
    assert (handled, acceptor.connections) == (frames[:1], 1)
    await until(lambda: len(handled) == 3)
    assert handled == [frames[0], frames[1], frames[3]]
    assert acceptor.connections == 3
    acceptor.close()
