"""What an encrypted connection has not sent is counted, by both loops, and comes in full when the client reads (NET-2)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from broker.control import connections
from broker.control.connections import Connection, ControlConnections
from broker.network.acceptor import Acceptor, AcceptorSettings, ConnectionCounts
from broker.network.connection import ClientConnection
from broker.network.paced_transport import PIECE
from broker.network.request_channel import RequestChannel
from broker.settings.config import BrokerConfig
from tests.support.certificates import Certificates, loaded_tls
from tests.unit.broker.network.test_processor import LIMITS, Clock

HOST = "127.0.0.1"
ANSWER = b"".join(number.to_bytes(4, "big") for number in range(1024 * 256))
SOCKET_BYTES = 32 * 1024
KERNEL_MAX = 256 * 1024
"""More than the sockets of both sides hold here."""


class Served:
    """A listener with TLS, its one connection, and the client's end of it, on small sockets."""

    def __init__(self, certificate: Path, authority: Path) -> None:
        self._authority = authority
        tls = loaded_tls("SSL", BrokerConfig(ssl_keystore_type="PEM", ssl_keystore_location=str(certificate)))
        self.channel = RequestChannel(
            asyncio.get_running_loop(), [].append, max_requests=100, max_large_bytes=-1, max_unsent_bytes=-1
        )
        settings = AcceptorSettings("SSL", 1, LIMITS, tls_context=lambda: tls.server_context)
        self.acceptor = Acceptor(settings, self.channel, Clock(), ConnectionCounts(10, 10))

    async def __aenter__(self) -> Served:
        port = await self.acceptor.bind(HOST, 0)
        await self.acceptor.serve()
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        await asyncio.to_thread(plain.connect, (HOST, port))
        context = ssl.create_default_context(cafile=str(self._authority))
        self.client = await asyncio.to_thread(context.wrap_socket, plain, server_hostname=HOST)
        self.client.settimeout(30)
        (self.connection,) = self.acceptor.processors[0].connections
        assert self.transport.get_extra_info("sslcontext") is not None
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()
        self.acceptor.close()

    @property
    def transport(self) -> Any:
        return of(self.connection)._transport

    def write(self, answer: bytes) -> None:
        writer = of(self.connection)._writer
        writer.add([answer])
        writer.flush()

    def read_all(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size and (some := self.client.recv(size - len(got))):
            got += some
        return bytes(got)


def of(connection: ClientConnection) -> Any:
    return connection


async def test_what_a_client_does_not_read_is_counted(made: Certificates, new_loop: object) -> None:
    async with Served(made.broker, made.authority) as served:
        for times in (1, 2):
            served.write(ANSWER)
            assert times * len(ANSWER) - KERNEL_MAX - 2 * PIECE < served.channel.unsent.total <= times * len(ANSWER)
        # A client that reads a little does not change that.
        assert await asyncio.to_thread(served.read_all, len(ANSWER)) == ANSWER
        served.write(b"!")
        assert served.transport.get_write_buffer_size() > len(ANSWER) - KERNEL_MAX - 3 * PIECE
        assert await asyncio.to_thread(served.read_all, len(ANSWER) + 1) == ANSWER + b"!"
        assert served.channel.unsent.total == 0


async def test_what_waits_at_the_end_is_sent(made: Certificates, new_loop: object) -> None:
    async with Served(made.broker, made.authority) as served:
        served.write(ANSWER)
        before = served.channel.unsent.total
        served.connection.close("the test ends it")
        assert served.transport.get_write_buffer_size() >= before - PIECE
        assert await asyncio.to_thread(served.read_all, len(ANSWER)) == ANSWER


async def test_an_aborted_connection_counts_no_more(made: Certificates, new_loop: object) -> None:
    async with Served(made.broker, made.authority) as served:
        served.write(ANSWER)
        gone = asyncio.get_running_loop().create_future()
        served.connection.when_ended(lambda: gone.set_result(None))
        served.connection.abort()
        await gone
        assert served.channel.unsent.total == 0


async def test_a_control_connection_whose_peer_does_not_read_ends(
    made: Certificates, new_loop: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's transport would take the whole answer, and say that nothing is unsent."""
    monkeypatch.setattr(connections, "WRITE_TIMEOUT_S", 0.05)
    tls = loaded_tls("CONTROLLER", BrokerConfig(ssl_keystore_type="PEM", ssl_keystore_location=str(made.broker)))

    async def answer(connection: Connection, frame: bytearray) -> bytes:
        return frame[:4] * 10_000_000 if frame == b"unread" else bytes(frame)

    listening = ControlConnections(answer, lambda: tls.server_context)
    port = await listening.start(HOST, 0)
    context = ssl.create_default_context(cafile=str(made.authority))

    def ask(*frames: bytes) -> ssl.SSLSocket:
        client = context.wrap_socket(socket.create_connection((HOST, port)), server_hostname=HOST)
        client.settimeout(30)
        for frame in frames:
            client.sendall(len(frame).to_bytes(4, "big") + frame)
        return client

    large = b"read" * 50_000
    with await asyncio.to_thread(ask, large, b"again") as read:
        received = b""
        while len(received) < len(large) + 5:
            received += await asyncio.to_thread(read.recv, 100_000)
        assert received == large + b"again"
        assert len(listening) == 1
        with await asyncio.to_thread(ask, b"unread"):
            async with asyncio.timeout(10):
                while len(listening) < 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
                while len(listening) == 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
        assert len(listening) == 1
    await listening.close()
