"""A socket that is connected with itself proves that nobody listens there (CTL-16)."""

from __future__ import annotations

import asyncio
import socket
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from typing import Any

import pytest

from broker.cluster import registration
from protocol.failure_detection import connection_watch
from protocol.failure_detection.connection_watch import ConnectionWatch
from protocol.network_client import Disconnected, NetworkClient
from protocol.self_connection import is_to_itself
from protocol.types import Endpoint
from tests.support.fake_time import FakeTime


@pytest.fixture(autouse=True)
def the_port_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new connection gets the wanted port as its local port, as the system sometimes picks it."""
    create_connection = BaseEventLoop.create_connection

    async def pick(loop: BaseEventLoop, protocol: Callable[[], Any], host: str, port: int) -> Any:
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.setblocking(False)
        await loop.sock_connect(found, (host, port))
        return await create_connection(loop, protocol, sock=found)

    monkeypatch.setattr(BaseEventLoop, "create_connection", pick)
    monkeypatch.setattr(connection_watch, "SPACING_S", 0.001)


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_a_self_connection_is_detected(port: int) -> None:
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
    assert is_to_itself(transport)
    transport.close()


async def test_a_watch_finds_that_nobody_listens(port: int) -> None:
    found_dead = asyncio.Event()
    watch = ConnectionWatch(("127.0.0.1", port), found_dead.set)
    await found_dead.wait()
    watch.close()


async def test_a_request_is_not_sent_over_a_self_connection(port: int) -> None:
    """The request would come back as its own answer, and a broker could not listen on the port."""
    client = NetworkClient(FakeTime(), request_timeout_ms=1000, random=lambda: 0.5)
    with pytest.raises(Disconnected, match="connected with itself"):
        await client.send(("127.0.0.1", port), lambda _: (b"x",))
    client.close()


async def test_a_self_connection_does_not_show_that_a_broker_id_is_in_use(port: int) -> None:
    assert await registration._first_that_answers([Endpoint("L", "127.0.0.1", port)]) is None
