"""`max.connections` does not limit followers on a listener that they share with clients (BAD-34)."""

from __future__ import annotations

from functools import partial

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.network import acceptor
from broker.network.acceptor import UNPROVEN_MAX, Acceptor, AcceptorSettings, ConnectionCounts
from broker.network.connection import ClientConnection
from broker.network.request_channel import Request, RequestChannel
from broker.requests.followers import is_of_follower
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchRequest
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import BrokerInfo
from tests.unit.broker.network.test_processor import LIMITS, Clock, Transport, Turns, receive


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


def test_connections_that_only_claim_to_be_a_followers_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ListOffsets with any replica id makes a connection exempt from `max.connections`, so these are limited too."""
    monkeypatch.setattr(acceptor, "CLAIMED_MAX", 3)
    world = World(1)
    world.connect(API_VERSIONS)
    proven = world.connect(fetch(2, 200))[1]
    claimed = [world.connect(epochs(2))[1] for _ in range(10)]
    assert [transport.is_closed for transport in claimed] == [True] * 7 + [False] * 3
    assert not proven.is_closed
    assert not world.connect(fetch(2, 200))[1].is_closed
