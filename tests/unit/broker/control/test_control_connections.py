"""Anybody can connect to the control listener: what connections take from the broker is bounded (BAD-4, BAD-28)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial

import pytest

from broker.apis.api_versions import answer_before_login
from broker.control import connections
from broker.control.connections import Connection, ControlConnections, ControlLogins
from broker.process.audit_log import AuditLog
from broker.process.clock import SystemClock
from broker.security.login import Logins
from broker.security.scram_users import ScramUsers, credential_text
from broker.settings.sasl import ListenerSasl
from protocol.failure_detection.connection_watch import ConnectionWatch
from protocol.kafka.api_keys import ApiLevel
from protocol.network_client import Disconnected, NetworkClient
from protocol.sasl_login import ClientLogin
from protocol.scram import credential_of, salted_password

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class World:
    """Frames `t...` come from the controller. `b...` are carried out until the test ends them. `w...` wait for their turn."""

    def __init__(self) -> None:
        self.listening = ControlConnections(self._answer)
        self.port = 0
        self.go_on = asyncio.Event()
        self.waiting = 0

    async def _answer(self, connection: Connection, frame: bytearray) -> bytes:
        kind = frame[:1]
        connection.is_trusted |= kind in (b"t", b"b")
        connection.is_busy = kind == b"b"
        if kind in (b"b", b"w"):
            self.waiting += 1
            await self.go_on.wait()
        return bytes(frame[:4])

    async def open(self, sent: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        await asyncio.sleep(0.002)
        return reader, writer

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


async def is_answered(streams: Streams, frame: bytes = framed(b"t123")) -> bool:
    reader, writer = streams
    writer.write(frame)
    return await reader.read(4) == frame[4:8]


@pytest.fixture
def world(runner: asyncio.Runner) -> Iterator[World]:
    world = World()
    world.port = runner.run(world.listening.start("127.0.0.1", 0))
    yield world
    runner.run(world.listening.close())
    assert world.listening.held_bytes == 0


@pytest.mark.parametrize(
    "length", [-1, 0, 3, connections.FRAME_BYTES_MAX + 1, 2**31 - 1], ids=["-1", "0", "3", "max", "2GB"]
)
async def test_an_illegal_frame_length_closes_the_connection(world: World, length: int) -> None:
    reader, _ = await world.open(length.to_bytes(4, "big", signed=True))
    assert await reader.read() == b""


async def test_a_connection_above_the_limit_replaces_an_untrusted_one(world: World) -> None:
    """The controller must always get through, however many silent connections there are."""
    world.listening.connections_max = 3
    controller = await world.open()
    assert await is_answered(controller)
    silent = [await world.open() for _ in range(20)]
    await world.until(lambda: len(world.listening) == 3)
    assert await asyncio.gather(*(reader.read() for reader, _ in silent[:18])) == [b""] * 18
    assert await is_answered(controller)
    assert await is_answered(await world.open()), "also a new one of the controller"


async def test_incomplete_frames_of_all_connections_take_bounded_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the limit, 40 frames of 20 MB each were kept for a minute."""
    monkeypatch.setattr(connections, "FRAME_BYTES_MAX", 100_000)
    monkeypatch.setattr(connections, "BYTES_MAX", 200_000)

    half = (100_000).to_bytes(4, "big") + b"t" + bytes(59_000)
    controller = await world.open()
    assert await is_answered(controller)
    readers = []
    for _ in range(10):
        readers.append((await world.open(half))[0])
        await world.until(lambda: world.listening.held_bytes > 59_000)
        assert world.listening.held_bytes <= 200_000
    assert await is_answered(controller, framed(b"t123" + bytes(90_000))), "it is trusted, the others make room"
    assert await readers[0].read() == b""


async def test_waiting_requests_may_be_closed_but_not_one_that_is_carried_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BYTES_MAX", 200_000)

    busy = await world.open(framed(b"b123" + bytes(90_000)))
    waiting = await world.open(framed(b"w123" + bytes(90_000)))
    await world.until(lambda: world.waiting == 2)
    assert await is_answered(await world.open(), framed(b"t123" + bytes(90_000)))
    assert await waiting[0].read() == b""
    world.go_on.set()
    assert await busy[0].read(4) == b"b123"


async def test_a_trickled_frame_and_an_unread_answer_have_a_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FRAME_TIMEOUT_S", 0.02)

    silent = await world.open()
    for sent in (b"\0", b"\0\0\0\x09t", framed(b"t123") + b"\0\0"):
        reader, _ = await world.open(sent)
        await reader.read()
        assert reader.at_eof()
    assert await is_answered(silent), "a connection without a partly read frame may be silent"


async def test_a_peer_that_does_not_read_keeps_no_descriptor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport that is only closed keeps its socket until the peer has read what is still unsent."""
    monkeypatch.setattr(connections, "WRITE_TIMEOUT_S", 0.05)
    transports: list[asyncio.WriteTransport] = []

    async def is_welcome(connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        transports.append(writer.transport)
        return True

    async def answer(connection: Connection, frame: bytearray) -> bytes:
        return bytes(50_000_000)

    monkeypatch.setattr(world.listening, "_is_welcome", is_welcome)
    monkeypatch.setattr(world.listening, "_handle_frame", answer)
    _, writer = await world.open(framed(b"t123"))
    await world.until(lambda: bool(transports) and not len(world.listening))
    await world.until(lambda: transports[0].get_extra_info("socket").fileno() == -1)
    writer.close()


# -- logins by SASL --------------------------------------------------------------------------------------------------------

SILENT = AuditLog(None, SystemClock())
BROKERS = ClientLogin("SCRAM-SHA-512", "broker", "a secret")


def control_logins(brokers: Collection[str] = ("broker",)) -> ControlLogins:
    """Of a listener where `broker` and `eve` have a password, by PLAIN and by SCRAM; `eve` is no broker."""
    passwords = {"broker": "a secret", "eve": "e"}
    users = ScramUsers()
    for user, password in passwords.items():
        salted = salted_password("sha512", password, b"salt", 4096)
        credential = credential_of("SCRAM-SHA-512", salted, b"salt", 4096)
        users.changed({user: {"SCRAM-SHA-512": credential_text(credential)}})
    sasl = ListenerSasl("CONTROLLER", ("PLAIN", "SCRAM-SHA-512"), passwords, {}, 1000)
    return ControlLogins(
        Logins(sasl, users, partial(answer_before_login, ApiLevel.KAFKA_3_9), SILENT),
        lambda user, _: user in brokers,
        0.01,
    )


def asked(number: int) -> tuple[bytes, ...]:
    return number.to_bytes(4, "big"), b"asked"


async def echo(connection: Connection, frame: bytearray) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        (BROKERS, ""),
        (ClientLogin("PLAIN", "broker", "a secret"), ""),
        (ClientLogin("PLAIN", "broker", "x"), "it refuses user 'broker' with PLAIN: Authentication failed: Invalid"),
        (ClientLogin("SCRAM-SHA-512", "nobody", "x"), "due to invalid credentials with SASL mechanism SCRAM-SHA-512"),
        (ClientLogin("PLAIN", "eve", "e"), "closed the connection"),
        (ClientLogin("SCRAM-SHA-256", "broker", "a secret"), "it refuses SCRAM-SHA-256: UNSUPPORTED_SASL_MECHANISM"),
        (None, "closed the connection"),
    ],
)
async def test_only_brokers_get_through(login: ClientLogin | None, reason: str) -> None:
    listening = ControlConnections(echo, None, control_logins())
    port = await listening.start("127.0.0.1", 0)
    client = NetworkClient(SystemClock(), request_timeout_ms=10_000, random=lambda: 0.5, login=login)
    try:
        if reason:
            with pytest.raises(Disconnected, match=re.escape(reason)):
                await client.send(("127.0.0.1", port), asked)
        else:
            assert bytes((await client.send(("127.0.0.1", port), asked))[4:]) == b"asked"
    finally:
        client.close()
        await listening.close()


async def test_who_is_no_broker_any_more_gets_no_answer() -> None:
    brokers = {"broker", "eve"}
    listening = ControlConnections(echo, None, control_logins(brokers))
    port = await listening.start("127.0.0.1", 0)
    login = ClientLogin("PLAIN", "eve", "e")
    client = NetworkClient(SystemClock(), request_timeout_ms=10_000, random=lambda: 0.5, login=login)
    try:
        assert bytes((await client.send(("127.0.0.1", port), asked))[4:]) == b"asked"
        brokers.remove("eve")
        with pytest.raises(Disconnected):
            await client.send(("127.0.0.1", port), asked)
    finally:
        client.close()
        await listening.close()


async def test_a_watch_logs_in_and_stays() -> None:
    listening = ControlConnections(echo, None, control_logins())
    port = await listening.start("127.0.0.1", 0)
    answers: list[bool] = []
    is_sure = asyncio.Event()

    def suspected(is_suspected: bool) -> None:
        answers.append(is_suspected)
        is_sure.set()

    watch = ConnectionWatch(("127.0.0.1", port), lambda: None, suspected, login=BROKERS)
    try:
        async with asyncio.timeout(10):
            await is_sure.wait()
        assert answers == [False]
        assert [one.is_known for one in listening._connections] == [True]
    finally:
        watch.close()
        await listening.close()
