"""A listening socket: how many connections a turn of the loop accepts, and what is left when it is closed (NET-1)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import uvloop

from broker.network.acceptor import ACCEPTED_IN_A_TURN, Acceptor, AcceptorSettings, ConnectionCounts
from broker.network.request_channel import RequestChannel
from tests.unit.broker.network.test_processor import LIMITS, Clock

CLIENTS = 64


@pytest.fixture
def new_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """As a broker has it."""
    return uvloop.new_event_loop


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(clients: ExitStack, port: int) -> None:
    """The kernel completes it, whether or not the broker has accepted."""
    clients.enter_context(socket.create_connection(("127.0.0.1", port)))


def sockets() -> set[str]:
    """The descriptors of this process that are sockets."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the directory itself
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                found.add(number)
    return found


async def listening_at(max_connections: int = 1000) -> tuple[Acceptor, int]:
    """It accepts connections at this port."""
    requests: list[Any] = []
    channel = RequestChannel(asyncio.get_running_loop(), requests.append, max_requests=100, max_large_bytes=-1)
    counts = ConnectionCounts(max_connections, 1000)
    acceptor = Acceptor(AcceptorSettings("PLAINTEXT", 3, LIMITS), channel, Clock(), counts)
    port = await acceptor.bind("127.0.0.1", 0)
    await acceptor.serve()
    return acceptor, port


async def all_connect(clients: ExitStack, port: int) -> None:
    """CLIENTS of them, and as many turns of the loop as are needed if several are accepted in one."""
    for _ in range(CLIENTS):
        connect(clients, port)
    for _ in range(2 * CLIENTS // ACCEPTED_IN_A_TURN):
        await asyncio.sleep(0)


async def test_a_turn_accepts_several_connections(new_loop: object, clients: ExitStack) -> None:
    acceptor, port = await listening_at()
    await all_connect(clients, port)
    assert acceptor.connections == CLIENTS
    acceptor.close()


async def test_a_closed_listener_leaves_no_descriptor(new_loop: object, clients: ExitStack) -> None:
    before = sockets()
    acceptor, port = await listening_at()
    acceptor.stop_accepting()
    for _ in range(4):  # uvloop closes a handle in a later turn
        await asyncio.sleep(0)
    assert not sockets() - before
    with pytest.raises(ConnectionRefusedError):
        connect(clients, port)
    acceptor.close()


async def test_the_limit_holds_when_all_come_in_one_turn(new_loop: object, clients: ExitStack) -> None:
    acceptor, port = await listening_at(max_connections=3)
    await all_connect(clients, port)
    assert acceptor.connections == 3
    acceptor.close()
