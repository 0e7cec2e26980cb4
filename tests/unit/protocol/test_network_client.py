"""The network client against a scripted server on loopback (NET-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from protocol.network_client import RECEIVE_BUFFER_SIZE, Disconnected, NetworkClient, RequestTimedOut
from tests.support.fake_time import FakeTime

pytestmark = pytest.mark.usefixtures("new_loop")
Answer = asyncio.Future[Any]


class RunningClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class World:
    """A server that keeps every request without its length, and a client. The test says when the server answers."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.client = self.new_client()
        self.requests: asyncio.Queue[tuple[bytes, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ("127.0.0.1", 0)

    def new_client(self, **settings: Any) -> NetworkClient:
        """A clock that stands still, so that a back-off lasts until the test moves the time."""
        defaults = {
            "request_timeout_ms": 10_000,
            "random": lambda: 0.5,
            "max_in_flight": 2,
            "connect_timeout_ms": 60_000,
        }
        self.client = NetworkClient(settings.pop("clock", self.time), **(defaults | settings))
        return self.client

    async def __aenter__(self) -> World:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self.address)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                self.requests.put_nowait((await reader.readexactly(size), writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def send(self, *texts: bytes) -> list[Answer]:
        return [asyncio.ensure_future(self.client.send(self.address, encoded(text))) for text in texts]

    async def answer(self, body: bytes = b"") -> bytes:
        """Answers the next request with its correlation id and `body`. Returns the request."""
        request, writer = await self.requests.get()
        self.write(writer, request[:4] + body)
        return request

    async def exchange(self, text: bytes = b"") -> None:
        """One request and its answer."""
        (sent,) = self.send(text)
        assert (await self.answer())[4:] == text
        await sent

    @staticmethod
    def write(writer: asyncio.StreamWriter, frame: bytes) -> None:
        writer.write(len(frame).to_bytes(4, "big") + frame)

    @property
    def is_connected(self) -> bool:
        return self.client.is_connected(self.address)

    async def until_disconnected(self) -> None:
        while self.is_connected:  # noqa: ASYNC110 - the client has no event for it
            await asyncio.sleep(0)

    def back_off(self) -> float:
        return round(self.client._nodes[self.address].retry_at - self.time.now, 6)


@pytest.fixture
def world() -> World:
    return World()


def encoded(text: bytes) -> Callable[[int], list[bytes]]:
    return lambda correlation_id: [correlation_id.to_bytes(4, "big"), text]


async def outcomes(sends: list[Answer]) -> set[type]:
    return {type(outcome) for outcome in await asyncio.gather(*sends, return_exceptions=True)}


async def turns(count: int = 20) -> None:
    """Lets everything that is ready happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_and_answers_keep_their_order_on_one_connection(world: World) -> None:
    sends = world.send(*(b"%d" % n for n in range(5)))
    for n in range(5):
        assert await world.answer(b"answer %d" % n) == n.to_bytes(4, "big") + b"%d" % n
    assert [bytes(answer[4:]) for answer in await asyncio.gather(*sends)] == [b"answer %d" % n for n in range(5)]
    assert len(world.writers) == 1


async def test_no_more_than_the_maximum_is_in_flight(world: World) -> None:
    sends = world.send(b"0", b"1", b"2")
    (first, writer), (second, _) = await world.requests.get(), await world.requests.get()
    await turns()
    assert world.requests.empty()
    world.write(writer, first[:4])
    await sends[0]
    third, _ = await world.requests.get()
    assert third[4:] == b"2"
    world.write(writer, second[:4])
    world.write(writer, third[:4])
    await asyncio.gather(*sends)


@pytest.mark.parametrize(
    "sizes",
    [
        [0, 1, 2],
        [RECEIVE_BUFFER_SIZE - 8],
        [RECEIVE_BUFFER_SIZE - 7],
        [RECEIVE_BUFFER_SIZE, 5, 3 * RECEIVE_BUFFER_SIZE + 1],
        [5_000_000, 0, 70_000],
    ],
)
async def test_answers_of_any_size_in_any_pieces(world: World, sizes: list[int]) -> None:
    world.new_client(max_in_flight=10)
    bodies = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    sends = world.send(*[b""] * len(sizes))
    stream = b""
    for body in bodies:
        request, writer = await world.requests.get()
        stream += (len(body) + 4).to_bytes(4, "big") + request + body
    for piece in (stream[:1], stream[1:6], stream[6:]):  # split inside the length and inside the correlation id
        writer.write(piece)
        await writer.drain()
        await turns()
    assert [bytes(answer[4:]) for answer in await asyncio.gather(*sends)] == bodies


async def test_a_connection_that_breaks_fails_what_is_in_flight_and_waiting(world: World) -> None:
    sends = world.send(*[b""] * 4)
    await world.requests.get()
    await world.requests.get()
    world.cut()
    assert await outcomes(sends) == {Disconnected}
    assert not world.is_connected


async def test_back_off_grows_to_its_maximum_and_is_short_again_after_an_answer(world: World) -> None:
    world.new_client(backoff_ms=50, backoff_max_ms=1000)
    await world.stop()
    delays = []
    for _ in range(7):
        with pytest.raises(Disconnected, match="cannot connect"):
            await world.client.send(world.address, encoded(b""))
        delays.append(world.back_off())
        world.time.now += delays[-1]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    await world.start()
    await world.exchange()
    world.cut()
    await world.until_disconnected()
    assert world.back_off() == 0.05


@pytest.mark.parametrize(("random", "expected"), [(0.0, 0.04), (0.5, 0.05), (1.0, 0.06)])
async def test_the_next_attempt_waits_for_the_back_off_with_jitter(
    world: World, random: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.new_client(random=lambda: random)
    await world.stop()
    slept: list[float] = []
    turn = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await turn(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for _ in range(2):
        assert await outcomes(world.send(b"")) == {Disconnected}
    assert slept == [pytest.approx(expected)]
    await world.start()


async def test_sends_during_the_back_off_wait_for_one_attempt(world: World) -> None:
    world.new_client(clock=RunningClock())
    failed = world.send(b"")
    await world.requests.get()
    world.cut()
    assert await outcomes(failed) == {Disconnected}
    sends = world.send(b"0", b"1")
    assert [(await world.answer())[4:] for _ in sends] == [b"0", b"1"]
    await asyncio.gather(*sends)
    assert len(world.writers) == 1


async def test_no_answer_in_time_closes_the_connection_and_fails_all_its_requests(world: World) -> None:
    world.new_client(clock=RunningClock(), request_timeout_ms=30)
    assert await outcomes(world.send(b"", b"")) == {RequestTimedOut}
    assert not world.is_connected


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x00\x00\x00\x04\x00\x00\x00\x09", "where 0 was next"),
        (b"\x00\x00\x00\x03abc", "frame of 3 bytes"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"HTTP/1.1 400 Bad Request", "frame of 1213486160 bytes"),
    ],
)
async def test_garbage_closes_the_connection(world: World, frame: bytes, reason: str) -> None:
    world.new_client(response_bytes_max=100_000_000)
    (send,) = world.send(b"")
    _, writer = await world.requests.get()
    writer.write(frame)
    with pytest.raises(Disconnected, match=reason):
        await send
    assert not world.is_connected


async def test_an_unexpected_answer_closes_the_connection(world: World) -> None:
    await world.exchange()
    world.write(world.writers[0], b"\x00\x00\x00\x01")
    await world.until_disconnected()


async def test_a_cancelled_request_keeps_its_place_in_the_order(world: World) -> None:
    first, second = world.send(b"first", b"second")
    (one, writer), (two, _) = await world.requests.get(), await world.requests.get()
    first.cancel()
    await turns()
    world.write(writer, one[:4] + b"A")
    world.write(writer, two[:4] + b"B")
    assert bytes((await second)[4:]) == b"B"
    assert first.cancelled()


async def test_cancelling_one_caller_does_not_end_the_connection_attempt(world: World) -> None:
    first, second = world.send(b"first", b"second")
    await asyncio.sleep(0)
    first.cancel()
    assert (await world.answer())[4:] == b"second"
    await second


async def test_an_encoder_that_fails_does_not_affect_other_requests(world: World) -> None:
    def broken(correlation_id: int) -> list[bytes]:
        raise ValueError("cannot encode")

    for _ in range(3):
        with pytest.raises(ValueError, match="cannot encode"):
            await world.client.send(world.address, broken)
    await world.exchange()


@pytest.mark.parametrize("is_connected", [True, False])
async def test_close_fails_waiting_requests_and_later_sends(world: World, is_connected: bool) -> None:
    sends = world.send(*[b""] * 3)
    await (world.requests.get() if is_connected else asyncio.sleep(0))
    world.client.close()
    assert await outcomes([*sends, *world.send(b"")]) == {Disconnected}


async def test_disconnect_forgets_the_node(world: World) -> None:
    sends = world.send(b"")
    await world.requests.get()
    world.client.disconnect(world.address)
    world.client.disconnect(world.address)
    assert await outcomes(sends) == {Disconnected}
    await world.exchange()  # at once: no back-off


class ClosedTransport:
    """uvloop closes it without a call of its protocol when `create_connection` is cancelled. It takes nothing then."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    def abort(self) -> None:
        """Does nothing."""


async def test_a_connection_opened_at_the_moment_of_the_timeout_is_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that was cut comes back: the system's second try is a second after the first, and so is the time-out."""

    async def made_too_late(protocol_factory: Callable[[], asyncio.Protocol], *_: object) -> None:
        protocol_factory().connection_made(ClosedTransport())  # type: ignore[arg-type]
        await asyncio.Event().wait()

    a_moment = asyncio.timeout(0.001)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_connection", made_too_late)
        patch.setattr(asyncio, "timeout", lambda _: a_moment)
        with pytest.raises(Disconnected, match="took more than"):
            await world.client.send(world.address, encoded(b""))
    assert not world.is_connected
    world.time.now += 1
    await world.exchange(b"again")
