"""The network client against a scripted server on loopback (NET-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from protocol.network_client import RECEIVE_BUFFER_SIZE, Disconnected, NetworkClient, RequestTimedOut


class StillClock:
    """Time that stands unless it is moved, so that back-offs are what the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class RunningClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Server:
    """Accepts, keeps every request that comes (without its length), and answers when the test says so."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[bytes, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self.address)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        assert self._server is not None
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

    async def answer(self, body: bytes = b"") -> bytes:
        """Answers the next request with its correlation id and `body`; gives back the request."""
        request, writer = await self.requests.get()
        self.write(writer, request[:4] + body)
        return request

    @staticmethod
    def write(writer: asyncio.StreamWriter, frame: bytes) -> None:
        writer.write(len(frame).to_bytes(4, "big") + frame)


def encoded(text: bytes) -> Callable[[int], list[bytes]]:
    return lambda correlation_id: [correlation_id.to_bytes(4, "big"), text]


def new_client(clock: StillClock | RunningClock | None = None, timeout_ms: int = 10_000) -> NetworkClient:
    return NetworkClient(clock or StillClock(), request_timeout_ms=timeout_ms, random=lambda: 0.5, max_in_flight=2)


def run(scenario: Callable[[Server], Awaitable[None]]) -> None:
    """Runs a scenario with a server of its own, on asyncio's loop and on uvloop, which brokers run on."""

    async def whole() -> None:
        server = Server()
        await server.start()
        async with asyncio.timeout(30):
            await scenario(server)
        await server.stop()

    for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(whole())


async def turns(count: int = 20) -> None:
    """Lets everything that is ready happen."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_requests_and_answers_keep_their_order_on_one_connection() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b"%d" % n))) for n in range(5)]
        for n in range(5):
            request = await server.answer(b"answer %d" % n)
            assert request == n.to_bytes(4, "big") + b"%d" % n
        answers = await asyncio.gather(*sends)
        assert [bytes(answer[4:]) for answer in answers] == [b"answer %d" % n for n in range(5)]
        assert len(server.writers) == 1
        client.close()

    run(scenario)


def test_no_more_than_the_maximum_is_in_flight() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b"%d" % n))) for n in range(3)]
        first, writer = await server.requests.get()
        second, _ = await server.requests.get()
        await turns()
        assert server.requests.empty()
        server.write(writer, first[:4])
        await sends[0]
        third, _ = await server.requests.get()
        assert third[4:] == b"2"
        server.write(writer, second[:4])
        server.write(writer, third[:4])
        await asyncio.gather(*sends)
        client.close()

    run(scenario)


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
def test_answers_of_any_size_in_any_pieces(sizes: list[int]) -> None:
    async def scenario(server: Server) -> None:
        client = NetworkClient(StillClock(), request_timeout_ms=10_000, random=lambda: 0.5, max_in_flight=10)
        bodies = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b""))) for _ in sizes]
        stream = b""
        for body in bodies:
            request, writer = await server.requests.get()
            stream += (len(body) + 4).to_bytes(4, "big") + request + body
        for begin in (0, 1, 6):  # split inside the length and inside the correlation id
            end = {0: 1, 1: 6, 6: len(stream)}[begin]
            writer.write(stream[begin:end])
            await writer.drain()
            await turns()
        answers = await asyncio.gather(*sends)
        assert [bytes(answer[4:]) for answer in answers] == bodies
        client.close()

    run(scenario)


def test_a_connection_that_breaks_fails_what_is_in_flight_and_waiting() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b""))) for _ in range(4)]
        await server.requests.get()
        await server.requests.get()
        server.cut()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Disconnected] * 4
        assert not client.is_connected(server.address)
        client.close()

    run(scenario)


def test_it_connects_again_after_the_back_off() -> None:
    async def scenario(server: Server) -> None:
        clock = StillClock()
        client = new_client(clock)
        first = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.answer()
        await first
        server.cut()
        while client.is_connected(server.address):
            await turns()
        clock.now += 1  # the back-off of 50 ms is over
        second = asyncio.ensure_future(client.send(server.address, encoded(b"again")))
        assert (await server.answer())[4:] == b"again"
        await second
        client.close()

    run(scenario)


def test_back_off_grows_to_its_maximum_and_starts_anew_after_an_answer() -> None:
    async def scenario(server: Server) -> None:
        clock = StillClock()
        client = NetworkClient(
            clock, request_timeout_ms=1000, random=lambda: 0.5, backoff_ms=50, backoff_max_ms=1000, max_in_flight=1
        )
        await server.stop()
        delays = []
        for _ in range(7):
            with pytest.raises(Disconnected, match="cannot connect"):
                await client.send(server.address, encoded(b""))
            delays.append(round(client._nodes[server.address].retry_at - clock.now, 6))
            clock.now += delays[-1]
        assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        await server.start()
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.answer()
        await send
        server.cut()
        while client.is_connected(server.address):
            await turns()
        assert round(client._nodes[server.address].retry_at - clock.now, 6) == 0.05
        client.close()

    run(scenario)


@pytest.mark.parametrize(("random", "expected"), [(0.0, 0.04), (0.5, 0.05), (1.0, 0.06)])
def test_back_off_has_jitter(random: float, expected: float) -> None:
    async def scenario(server: Server) -> None:
        clock = StillClock()
        client = NetworkClient(clock, request_timeout_ms=1000, random=lambda: random)
        await server.stop()
        with pytest.raises(Disconnected):
            await client.send(server.address, encoded(b""))
        assert client._nodes[server.address].retry_at == pytest.approx(clock.now + expected)
        await server.start()

    run(scenario)


def test_sends_during_the_back_off_wait_for_one_attempt() -> None:
    async def scenario(server: Server) -> None:
        client = new_client(RunningClock())
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.requests.get()
        server.cut()
        with pytest.raises(Disconnected):
            await send
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b"%d" % n))) for n in range(2)]
        assert (await server.answer())[4:] == b"0"
        assert (await server.answer())[4:] == b"1"
        await asyncio.gather(*sends)
        assert len(server.writers) == 1
        client.close()

    run(scenario)


def test_no_answer_in_time_closes_the_connection_and_fails_all_of_it() -> None:
    async def scenario(server: Server) -> None:
        client = new_client(RunningClock(), timeout_ms=30)
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b""))) for _ in range(2)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RequestTimedOut] * 2
        assert not client.is_connected(server.address)
        client.close()

    run(scenario)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x00\x00\x00\x04\x00\x00\x00\x09", "where 0 was next"),
        (b"\x00\x00\x00\x03abc", "frame of 3 bytes"),
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        (b"HTTP/1.1 400 Bad Request", "frame of 1213486160 bytes"),
    ],
)
def test_garbage_closes_the_connection(frame: bytes, reason: str) -> None:
    async def scenario(server: Server) -> None:
        client = NetworkClient(
            StillClock(), request_timeout_ms=10_000, random=lambda: 0.5, response_bytes_max=100_000_000
        )
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        _, writer = await server.requests.get()
        writer.write(frame)
        with pytest.raises(Disconnected, match=reason):
            await send
        assert not client.is_connected(server.address)
        client.close()

    run(scenario)


def test_an_answer_nobody_asked_for_closes_the_connection() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.answer()
        await send
        server.write(server.writers[0], b"\x00\x00\x00\x01")
        while client.is_connected(server.address):
            await turns()
        client.close()

    run(scenario)


def test_a_cancelled_request_keeps_its_place_in_the_order() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        first = asyncio.ensure_future(client.send(server.address, encoded(b"first")))
        second = asyncio.ensure_future(client.send(server.address, encoded(b"second")))
        one, writer = await server.requests.get()
        two, _ = await server.requests.get()
        first.cancel()
        await turns()
        server.write(writer, one[:4] + b"A")
        server.write(writer, two[:4] + b"B")
        assert bytes((await second)[4:]) == b"B"
        assert first.cancelled()
        client.close()

    run(scenario)


def test_a_caller_cancelled_while_connecting_does_not_take_it_from_the_others() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        first = asyncio.ensure_future(client.send(server.address, encoded(b"first")))
        second = asyncio.ensure_future(client.send(server.address, encoded(b"second")))
        await asyncio.sleep(0)
        first.cancel()
        assert (await server.answer())[4:] == b"second"
        await second
        client.close()

    run(scenario)


def test_an_encoder_that_fails_harms_nobody_else() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()

        def broken(correlation_id: int) -> list[bytes]:
            raise ValueError("cannot encode")

        for _ in range(3):
            with pytest.raises(ValueError, match="cannot encode"):
                await client.send(server.address, broken)
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.answer()
        await send
        client.close()

    run(scenario)


@pytest.mark.parametrize("is_connected", [True, False])
def test_close_fails_what_waits_and_every_later_send(is_connected: bool) -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        sends = [asyncio.ensure_future(client.send(server.address, encoded(b""))) for _ in range(3)]
        if is_connected:
            await server.requests.get()
        else:
            await asyncio.sleep(0)
        client.close()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Disconnected] * 3
        with pytest.raises(Disconnected):
            await client.send(server.address, encoded(b""))

    run(scenario)


def test_disconnect_forgets_the_node() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))
        await server.requests.get()
        client.disconnect(server.address)
        client.disconnect(server.address)
        with pytest.raises(Disconnected):
            await send
        send = asyncio.ensure_future(client.send(server.address, encoded(b"")))  # at once: no back-off
        await server.answer()
        await send
        client.close()

    run(scenario)


def test_a_host_that_does_not_exist_is_disconnected() -> None:
    async def scenario(server: Server) -> None:
        client = new_client()
        with pytest.raises(Disconnected):
            await client.send(("127.0.0.1", 0), encoded(b""))
        client.close()

    run(scenario)


class ClosedTransport:
    """uvloop's, which closes without a word to its protocol when `create_connection` is cancelled, and then takes nothing."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation; the handler is closed")

    def abort(self) -> None:
        """Nothing is left to do."""


def test_a_connection_made_in_the_moment_of_the_time_out_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was cut comes back: the system's second try is a second after the first, and so is the time-out."""

    async def made_too_late(protocol_factory: Callable[[], asyncio.Protocol], *_: object) -> None:
        protocol_factory().connection_made(ClosedTransport())  # type: ignore[arg-type]
        await asyncio.Event().wait()

    async def scenario() -> None:
        server = Server()
        await server.start()
        clock = StillClock()
        client = NetworkClient(clock, request_timeout_ms=10_000, random=lambda: 0.5, connect_timeout_ms=60_000)
        a_moment = asyncio.timeout(0.001)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_connection", made_too_late)
            patch.setattr(asyncio, "timeout", lambda _: a_moment)
            with pytest.raises(Disconnected, match="took more than"):
                await client.send(server.address, encoded(b""))
        assert not client.is_connected(server.address)
        clock.now += 1
        again = asyncio.ensure_future(client.send(server.address, encoded(b"again")))
        assert (await server.answer())[4:] == b"again"
        await again
        client.close()
        await server.stop()

    asyncio.run(scenario())
