"""A listening socket: how many connections it accepts in a turn, and of whom, and what is left when it is closed (NET-1, BAD-34)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import uvloop

from broker.cluster.metadata_cache import MetadataCache
from broker.network import acceptor
from broker.network.acceptor import (
    ACCEPTED_IN_A_TURN,
    NO_OVERRIDES,
    UNPROVEN_MAX,
    Acceptor,
    AcceptorSettings,
    ConnectionCounts,
)
from broker.network.connection import ClientConnection
from broker.network.request_channel import Request, RequestChannel
from broker.process.descriptors import shares_of
from broker.requests.followers import is_of_follower
from broker.security.certificate_subject import BadSubject
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchRequest
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import BrokerInfo
from tests.unit.broker.network.test_processor import LIMITS, Clock, Transport, Turns, receive

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


async def listening_at(
    max_connections: int = 1000,
    throttle_ms: Callable[[str], int] = lambda address: 0,
    max_at: Mapping[str, int] = NO_OVERRIDES,
) -> tuple[Acceptor, int]:
    """It accepts connections at this port."""
    requests: list[Any] = []
    channel = RequestChannel(asyncio.get_running_loop(), requests.append, max_requests=100, max_large_bytes=-1)
    counts = ConnectionCounts(max_connections, 1000, max_at=max_at)
    acceptor = Acceptor(AcceptorSettings("PLAINTEXT", 3, LIMITS, throttle_ms=throttle_ms), channel, Clock(), counts)
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


@pytest.mark.parametrize("limits", [{"max_connections": 3}, {"max_at": {"PLAINTEXT": 3}}])
async def test_the_limit_holds_when_all_come_in_one_turn(
    new_loop: object, clients: ExitStack, limits: dict[str, Any]
) -> None:
    acceptor, port = await listening_at(**limits)
    await all_connect(clients, port)
    assert acceptor.connections == 3
    acceptor.close()


# -- limits and shares -------------------------------------------------------------------------------------------------


class Connection:
    """A broker's, as the counts see it."""

    def __init__(self, counts: ConnectionCounts, last_heard: float) -> None:
        self.last_heard = last_heard
        self.is_open = True
        self._counts = counts
        counts.take_broker(self)  # type: ignore[arg-type]

    def abort(self) -> None:
        self.is_open = False
        self._counts.give_back_broker(self)  # type: ignore[arg-type]


def test_clients_have_no_more_than_their_share() -> None:
    shares = shares_of(256)
    counts = ConnectionCounts(2**31 - 1, 2**31 - 1, shares)
    assert [counts.take(f"{number}", "CLIENTS") for number in range(shares.clients)] == [""] * shares.clients
    assert "limit of open files" in counts.take("late", "CLIENTS")
    counts.share(shares_of(1024))
    assert counts.take("late", "CLIENTS") == ""
    assert counts.clients_max == shares_of(1024).clients
    counts.limit(7, 7)
    assert counts.clients_max == 7
    assert "max.connections=7" in counts.take("later", "CLIENTS")


def test_a_broker_above_the_limit_replaces_the_one_silent_for_longest() -> None:
    counts = ConnectionCounts(1, 1, shares_of(256))
    share = shares_of(256).brokers
    silent = Connection(counts, last_heard=1.0)
    others = [Connection(counts, last_heard=10.0 + number) for number in range(share - 1)]
    late = Connection(counts, last_heard=100.0)
    assert not silent.is_open
    assert late.is_open
    assert all(other.is_open for other in others)
    late.abort()
    another = Connection(counts, last_heard=101.0)
    assert another.is_open
    assert all(other.is_open for other in others)


def test_a_listener_has_a_limit_of_its_own_within_that_of_all() -> None:
    counts = ConnectionCounts(4, 9, max_at={"INSIDE": 2})
    assert counts.take("a", "INSIDE") == counts.take("a", "INSIDE") == counts.take("a", "CLIENTS") == ""
    assert counts.take("a", "INSIDE") == "listener.name.inside.max.connections=2 is reached"
    assert counts.take("a", "CLIENTS") == ""
    assert counts.take("a", "CLIENTS") == "max.connections=4 is reached"
    counts.give_back("a", "INSIDE")
    assert counts.take("a", "INSIDE") == ""
    counts.limit(9, 9, max_at={"CLIENTS": 1})
    assert counts.take("a", "INSIDE") == ""
    assert counts.take("a", "CLIENTS") == "listener.name.clients.max.connections=1 is reached"


def test_changed_limits_apply_to_the_next_connection() -> None:
    counts = ConnectionCounts(2, 2)
    assert counts.take("a", "CLIENTS") == counts.take("a", "CLIENTS") == ""
    assert "max.connections=2" in counts.take("b", "CLIENTS")
    counts.limit(10, 1)
    assert counts.take("b", "CLIENTS") == ""
    assert "max.connections.per.ip=1" in counts.take("b", "CLIENTS")
    assert "max.connections.per.ip=1" in counts.take("a", "CLIENTS"), "who is connected stays, but nobody more comes"
    counts.give_back("a", "CLIENTS")
    counts.limit(1, 5)
    assert "max.connections=1" in counts.take("c", "CLIENTS")


# -- certificates -----------------------------------------------------------------------------------------------------


class WithCertificate(Transport):
    """Its client has shown one."""

    def get_extra_info(self, name: str) -> Any:
        return self if name == "ssl_object" else super().get_extra_info(name)

    def getpeercert(self, *, binary_form: bool) -> bytes:
        return b"a certificate"


def unreadable(certificate: bytes) -> str:
    raise BadSubject("its certificate has no subject")


def test_whoever_has_a_certificate_without_a_readable_name_is_not_anonymous(caplog: pytest.LogCaptureFixture) -> None:
    channel = RequestChannel(Turns(), [].append, max_requests=100, max_large_bytes=-1)  # type: ignore[arg-type]
    acceptor = Acceptor(
        AcceptorSettings("SSL", 1, LIMITS, name_of=unreadable), channel, Clock(), ConnectionCounts(9, 9)
    )
    connection, transport = acceptor._new_connection(), WithCertificate()
    connection.connection_made(transport)  # type: ignore[arg-type]
    assert transport.is_closed
    assert not connection.is_open
    assert "its certificate has no subject" in caplog.text
    assert acceptor.connections == 0


async def test_single_hosts_have_limits_of_their_own() -> None:
    counts = ConnectionCounts(100, 1, None, {"10.0.0.1": 2, "2001:DB8:0:0::1": 0})
    assert [counts.take(address, "CLIENTS") for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")] == ["", "", ""]
    assert counts.take("10.0.0.1", "CLIENTS") == "max.connections.per.ip.overrides has 2 for 10.0.0.1, which is reached"
    assert "overrides has 0" in counts.take("2001:db8::1", "CLIENTS")
    assert "max.connections.per.ip=1" in counts.take("10.0.0.2", "CLIENTS")
    counts.limit(100, 1, {"localhost": 2})
    await asyncio.gather(*counts._of_hosts.tasks.values())
    assert [counts.take("127.0.0.1", "CLIENTS")[:3] for _ in range(3)] == ["", "", "max"]
    assert "max.connections.per.ip=1" in counts.take("10.0.0.1", "CLIENTS")
    assert counts.take("2001:db8::1", "CLIENTS") == ""


# -- followers on a listener that they share with clients --------------------------------------------------------------


def fetch(replica: int, epoch: int) -> bytes:
    request = FetchRequest(replica, epoch, 500, 1, 1000, 0, 0, 0, (), (), "")
    return fetch_codec.encode_request(15, 1, "c", request)


def epochs(replica: int) -> bytes:
    return messages.encode_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, 1, "c", {"replica_id": replica, "topics": []})


API_VERSIONS = messages.encode_request(
    ApiKey.API_VERSIONS, 3, 1, "c", {"client_software_name": "c", "client_software_version": "1"}
)
FOLLOWERS = [fetch(2, 200), epochs(2)]
OTHERS = [
    API_VERSIONS,
    fetch(-1, -1),
    fetch(2, -1),
    fetch(2, 199),
    fetch(2, 2**62),
    fetch(1, 100),
    fetch(3, 300),
    epochs(-1),
]


class World:
    """Broker 1's only listener; broker 2 lives."""

    def __init__(self, max_connections: int) -> None:
        metadata = MetadataCache()
        brokers = (BrokerInfo(1, 100, ()), BrokerInfo(2, 200, ()))
        metadata.update(UpdateMetadataRequest(1, 1, 100, (), {}, brokers))
        self.turns = Turns()
        self.handled: list[Request] = []
        channel = RequestChannel(self.turns, self.handled.append, max_requests=100, max_large_bytes=-1)
        settings = AcceptorSettings("PLAINTEXT", 1, LIMITS, is_of_follower=partial(is_of_follower, metadata, 1))
        self.acceptor = Acceptor(settings, channel, Clock(), ConnectionCounts(max_connections, 2**31))

    def connect(self, request: bytes = b"") -> tuple[ClientConnection, Transport]:
        connection, transport = self.acceptor._new_connection(), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        if request:
            receive(connection, transport, len(request).to_bytes(4, "big") + request)
            self.turns.run()
        return connection, transport


@pytest.mark.parametrize("request_bytes", FOLLOWERS)
def test_a_follower_is_accepted_when_the_connection_limit_is_reached(request_bytes: bytes) -> None:
    world = World(1)
    world.connect(API_VERSIONS)
    for _ in range(3):
        _, transport = world.connect(request_bytes)
        assert not transport.is_closed
    assert len(world.handled) == 4


@pytest.mark.parametrize("request_bytes", OTHERS)
def test_others_above_the_limit_are_closed_before_their_first_request_is_handled(request_bytes: bytes) -> None:
    world = World(1)
    world.connect(API_VERSIONS)
    _, transport = world.connect(request_bytes)
    assert transport.is_closed
    assert len(world.handled) == 1


def test_followers_do_not_count_as_clients() -> None:
    world = World(2)
    followers = [world.connect(fetch(2, 200))[0] for _ in range(3)]
    clients = [world.connect(API_VERSIONS) for _ in range(3)]
    assert [transport.is_closed for _, transport in clients] == [False, False, True]
    for follower in (*followers, clients[2][0]):
        follower.connection_lost(None)
    assert world.connect(API_VERSIONS)[1].is_closed, "nothing is given back that was not taken"
    clients[0][0].connection_lost(None)
    assert not world.connect(API_VERSIONS)[1].is_closed


def test_silent_connections_cannot_keep_followers_out() -> None:
    world = World(0)
    silent = [world.connect()[1] for _ in range(UNPROVEN_MAX + 1)]
    assert [transport.is_closed for transport in silent] == [True] + [False] * UNPROVEN_MAX
    assert not world.connect(fetch(2, 200))[1].is_closed


def test_connections_that_only_claim_to_be_a_followers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ListOffsets with any replica id makes a connection exempt from `max.connections`, so these are limited too."""
    monkeypatch.setattr(acceptor, "CLAIMED_MAX", 3)
    world = World(1)
    world.connect(API_VERSIONS)
    proven = world.connect(fetch(2, 200))[1]
    claimed = [world.connect(epochs(2))[1] for _ in range(10)]
    assert [transport.is_closed for transport in claimed] == [True] * 7 + [False] * 3
    assert not proven.is_closed
    assert not world.connect(fetch(2, 200))[1].is_closed


async def test_a_connection_above_the_quota_is_closed_after_a_wait(new_loop: object) -> None:
    """KIP-612. It counts for nothing, and what it sends is dropped."""
    acceptor, port = await listening_at(throttle_ms=lambda address: 30 if address == "127.0.0.1" else 0)
    began = asyncio.get_running_loop().time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes(100_000))
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    assert asyncio.get_running_loop().time() - began >= 0.025
    assert acceptor.connections == 0
    writer.close()
    acceptor.close()


async def test_connections_that_wait_to_be_closed_end_with_the_listener(
    new_loop: object, clients: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "LINGERING_MAX", 3)
    listener, port = await listening_at(throttle_ms=lambda address: 60_000)
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    for reader, _ in connections[3:]:
        with suppress(ConnectionResetError):
            assert await reader.read() == b"", "there is no place for it"
    assert len(listener._lingering) == 3
    listener.close()
    for reader, writer in connections:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert len(listener._lingering) == 0
