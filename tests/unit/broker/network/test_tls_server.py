"""A listener with TLS: who gets in, what the log says of the others, and how long half a handshake is kept (NET-1, BAD-34)."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from broker.network import tls_server
from broker.network.tls_server import TlsServer
from broker.network.turnstile import Turnstile
from broker.settings.config import BrokerConfig
from protocol.tls import Identity, certificates_in, load_identity, private_key_in, trust
from tests.support.certificates import Certificates, loaded_tls
from tests.unit.broker.network.test_acceptor import sockets

HOST = "127.0.0.1"


@pytest.fixture
def silent() -> Iterator[ExitStack]:
    """Sockets that send nothing."""
    with ExitStack() as stack:
        yield stack


class Echo(asyncio.Protocol):
    """Answers what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class Listener:
    """A server with TLS on a free port, and clients of it."""

    def __init__(self, made: Certificates, client_auth: str = "none") -> None:
        self.made = made
        config = BrokerConfig(
            ssl_keystore_type="PEM",
            ssl_keystore_location=str(made.broker),
            ssl_truststore_type="PEM",
            ssl_truststore_location=str(made.authority),
            ssl_client_auth=client_auth,
        )
        self.tls = loaded_tls("OUTSIDE", config)
        self.room = 1000
        self.refused: list[tuple[str, str]] = []
        self.server = TlsServer(
            "OUTSIDE",
            lambda: self.tls.server_context,
            Echo,
            asyncio.get_running_loop().time,
            lambda: self.room,
            refused=lambda *refused: self.refused.append(refused),
        )

    async def __aenter__(self) -> Listener:
        self.port = await self.server.bind(HOST, 0)
        self.server.serve(100)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    def silent(self, stack: ExitStack, source: str = HOST) -> socket.socket:
        """A connection without a byte."""
        return stack.enter_context(socket.create_connection((HOST, self.port), source_address=(source, 0)))

    def only_hello(self, stack: ExitStack, source: str = HOST) -> socket.socket:
        """A connection that sends its first record, and then nothing."""
        sent = ssl.MemoryBIO()
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), sent, server_hostname=HOST)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        connection = self.silent(stack, source)
        connection.sendall(sent.read())
        return connection

    async def echo(self, own: Path | None = None) -> bytes:
        """What a client gets that sends "hello". Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, certificates_in(self.made.authority.read_text()))
        if own is not None:
            text = await asyncio.to_thread(own.read_text)
            load_identity(context, Identity(private_key_in(text), "".join(certificates_in(text))), "")
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context, server_hostname=HOST)
        try:
            writer.write(b"hello")
            return await reader.read(100)
        finally:
            writer.transport.abort()

    def distrust(self) -> None:
        """A client that does not know the authority, and says so. Raises ssl.SSLCertVerificationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, certificates_in(self.made.stranger.read_text()))
        with socket.create_connection((HOST, self.port)) as plain:
            context.wrap_socket(plain, server_hostname=HOST)

    async def until(self, check: Callable[[], object]) -> None:
        while not check():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_a_client_is_served(made: Certificates, new_loop: object) -> None:
    async with Listener(made) as listener:
        assert await listener.echo() == b"hello"
        assert listener.server.pending == 0


async def test_a_client_that_shows_its_certificate_is_served(made: Certificates, new_loop: object) -> None:
    async with Listener(made, "required") as listener:
        assert await listener.echo(own=made.broker) == b"hello"


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (lambda made: None, "it has no certificate, and ssl.client.auth is required"),
        (Certificates.strange, "its certificate is not valid: self-signed certificate"),
        (Certificates.expired, "its certificate is not valid: certificate has expired"),
        (Certificates.not_yet_valid, "its certificate is not valid: certificate is not yet valid"),
    ],
    ids=["none", "stranger", "expired", "not yet valid"],
)
async def test_a_wrong_certificate_is_refused_and_named(
    made: Certificates,
    new_loop: object,
    caplog: pytest.LogCaptureFixture,
    own: Callable[[Certificates], Path | None],
    reason: str,
) -> None:
    async with Listener(made, "required") as listener:
        answer = b""
        with suppress(OSError):  # TLS 1.3: the client takes the handshake for done, and loses the connection
            answer = await listener.echo(own=own(made))
        assert answer == b""
        await listener.until(lambda: caplog.messages)
    assert f"TLS handshake of {HOST} on OUTSIDE failed: {reason}" in caplog.text
    ((address, said),) = listener.refused
    assert (address, said[: len(reason)]) == (HOST, reason)


async def test_other_failures_are_named_at_most_once_a_second(
    made: Certificates, new_loop: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Listener(made) as listener:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(HOST, listener.port)
            writer.write(b"\x00\x00\x00\x10\x00\x12\x00\x03 a Kafka request in the clear")
            with suppress(ConnectionResetError):
                assert len(await reader.read(100)) < 100
            writer.transport.abort()
        await listener.until(lambda: listener.server.pending == 0)
        assert len(caplog.messages) == 1
        assert "it sent no TLS: a client of this listener needs security.protocol=SSL" in caplog.text
        monkeypatch.setattr(listener.server._failures, "_every_s", 0.0)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(listener.distrust)  # asyncio's clients send no alert
        await listener.until(lambda: len(caplog.messages) == 2)
    assert "it ended the handshake: unknown ca (and 4 earlier handshakes)" in caplog.messages[1]
    assert [reason[:12] for _, reason in listener.refused] == ["it sent no T"] * 5 + ["it ended the"]


async def test_half_a_handshake_is_closed_after_a_time(
    made: Certificates,
    new_loop: object,
    silent: ExitStack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.05)
    async with Listener(made) as listener:
        held = listener.silent(silent)
        held.sendall(b"\x16\x03\x01\x02\x00\x01")
        await listener.until(lambda: caplog.messages)
        await listener.until(lambda: listener.server.pending == 0)
        held.settimeout(10)
        with suppress(ConnectionResetError):
            assert held.recv(1) == b""
    assert "no complete handshake within" in caplog.text
    assert not listener.refused


async def test_half_handshakes_do_not_keep_others_out(
    made: Certificates,
    new_loop: object,
    silent: ExitStack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one of another address comes next, although more of the crowds wait."""
    few_places(monkeypatch)
    monkeypatch.setattr(tls_server, "GRACE_S", 2.0)
    async with Listener(made) as listener:
        for number in range(20):
            listener.only_hello(silent, f"127.0.0.{2 + number % 2}")
        await listener.until(lambda: len(listener.server._under_way) == 4)
        assert await listener.echo() == b"hello"
    assert "while others wait" in caplog.text


async def test_an_address_with_many_leaves_places_to_others(
    made: Certificates, new_loop: object, silent: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_places(monkeypatch)
    async with Listener(made) as listener:
        for _ in range(20):
            listener.only_hello(silent, "127.0.0.2")
        await listener.until(lambda: listener.server.pending == 20)
        for _ in range(3):
            assert await listener.echo() == b"hello"
        assert listener.server.pending == 20


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "half a header", "half a record"]
)
async def test_silent_connections_take_no_place(
    made: Certificates, new_loop: object, silent: ExitStack, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A client of the same address is served at once, however many there are."""
    few_places(monkeypatch)
    async with Listener(made) as listener:
        for _ in range(100):
            listener.silent(silent).sendall(sent)
        await listener.until(lambda: listener.server.pending == 100)
        for _ in range(3):
            assert await listener.echo() == b"hello"
        assert listener.server.pending == 100


async def test_a_first_record_may_come_byte_by_byte(made: Certificates, new_loop: object, silent: ExitStack) -> None:
    async with Listener(made) as listener:
        whole = ssl.MemoryBIO()
        answers = ssl.MemoryBIO()
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(answers, whole, server_hostname=HOST)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        for byte in whole.read():
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.readexactly(1))[0] == tls_server.HANDSHAKE_RECORD
        writer.transport.abort()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03", b"\x16\x03\x01\x02\x00\x01\x00", b"GE"])
async def test_a_silent_connection_that_ends_is_forgotten(made: Certificates, new_loop: object, sent: bytes) -> None:
    async with Listener(made) as listener:
        with socket.create_connection((HOST, listener.port)) as connection:
            await listener.until(lambda: listener.server.pending == 1)
            connection.sendall(sent)
        await listener.until(lambda: listener.server.pending == 0)


def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody loses one because of the time."""
    monkeypatch.setattr(tls_server, "HANDSHAKES_MAX", 4)
    monkeypatch.setattr(tls_server, "CROWD_MAX", 2)
    monkeypatch.setattr(tls_server, "GRACE_S", 3600.0)
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 3600.0)


async def test_pending_connections_have_a_limit(
    made: Certificates, new_loop: object, silent: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of the address with most of them goes. Another address keeps its own."""
    monkeypatch.setattr(tls_server, "PENDING_MIN", 5)
    async with Listener(made) as listener:
        listener.room = 0
        other = listener.silent(silent, "127.0.0.3")
        crowd = [listener.silent(silent, "127.0.0.2") for _ in range(9)]
        await listener.until(lambda: listener.server.pending == 5)
        closed = 0
        for one in crowd:
            one.setblocking(False)
            with suppress(BlockingIOError, ConnectionResetError):
                closed += one.recv(1) == b""
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
        assert await listener.echo() == b"hello"


async def test_a_closed_listener_leaves_no_descriptor(made: Certificates, new_loop: object, silent: ExitStack) -> None:
    before = sockets()
    async with Listener(made) as listener:
        mine = [listener.silent(silent) for _ in range(40)]
        await listener.until(lambda: listener.server.pending == 40)
    for one in mine:
        one.close()
    for _ in range(10):  # the loop closes a handle in a later turn
        await asyncio.sleep(0)
    gc.collect()
    assert not sockets() - before
    with pytest.raises(ConnectionRefusedError):
        await listener.echo()


async def test_a_connection_above_the_quota_of_its_address_gets_no_handshake(made: Certificates) -> None:
    """KIP-612: it is closed after the throttle time, and when the listener closes."""
    async with Listener(made) as listener:
        listener.server._throttle_ms = lambda address: 30
        began = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        assert await reader.read() == b""
        assert asyncio.get_running_loop().time() - began >= 0.025
        assert listener.server.pending == 0
        writer.close()
        listener.server._throttle_ms = lambda address: 60_000
        reader, writer = await asyncio.open_connection(HOST, listener.port)
        await listener.until(lambda: listener.server._lingering)
    assert await reader.read() == b""
    assert not listener.server._lingering
    writer.close()


async def test_a_connection_above_the_rate_waits_before_its_handshake(
    made: Certificates, new_loop: object, silent: ExitStack
) -> None:
    """One that leaves meanwhile, such as a client that gives up, has no handshake at all."""
    waits = [0, 100]
    listener = Listener(made)
    loop = asyncio.get_running_loop()
    turnstile = Turnstile("OUTSIDE", lambda: waits.pop(0) if waits else 0, lambda: 100, loop.time)
    listener.server._turnstile = turnstile
    async with listener:
        assert await listener.echo() == b"hello"
        began = loop.time()
        late = asyncio.create_task(listener.echo())
        await listener.until(lambda: not waits)
        listener.only_hello(silent).close()
        assert listener.server.pending == 0
        assert await late == b"hello"
        assert loop.time() - began >= 0.1
        await listener.until(lambda: not turnstile._waiting)
        assert (listener.server.pending, listener.refused) == (0, [])
