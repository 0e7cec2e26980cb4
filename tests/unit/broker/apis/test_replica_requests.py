"""Requests with a replica id are for brokers (BAD-28): on another listener than theirs they move and show nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest
from tests.support.api_world import FakeConnection, World, run

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OWN = FakeConnection.listener


class Manager:
    """Takes the place of the replica manager and of its fetches, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.offsets = self

    def fetch(self, params: Any, request: FetchRequest, respond: Any, *, uses_topic_ids: bool) -> None:
        self.asked += 1
        none = ErrorCode.NONE
        respond(none, 0, [(key, [FetchPartitionData(p.partition, none) for p in rows]) for key, rows in request.topics])

    def listing_offset(self, *_: Any) -> Generator[None, None, tuple[int, int, int]]:
        self.asked += 1
        return -1, 5, 0
        yield

    def offset_for_leader_epoch(self, *_: Any) -> tuple[int, int]:
        self.asked += 1
        return 0, 5


def world_of(replica_listener: str | None) -> tuple[World, Manager]:
    world, manager = World(), Manager()
    world.context.replica_listener = replica_listener
    world.context.replica_manager = world.context.fetches = manager
    return world, manager


def fetch_body(version: int, replica: int) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": 0,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0, "rack_id": ""}
    body |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    body["topics"] = [{"topic": "t", "partitions": [partition]}]
    if version < 15:
        body["replica_id"] = replica
    else:
        body["replica_state"] = {"replica_id": replica, "replica_epoch": 2}
    return body


def errors(world: World, api_key: ApiKey, version: int, replica: int) -> set[int]:
    """Those of the answer, of the whole or of its partitions; none when the connection was closed."""
    if api_key is ApiKey.FETCH:
        body = fetch_body(version, replica)
        if version >= 13:
            body["topics"] = []
    elif api_key is ApiKey.LIST_OFFSETS:
        row = {"partition_index": 0, "current_leader_epoch": 0, "timestamp": -1}
        body = {"replica_id": replica, "isolation_level": 0, "topics": [{"name": "t", "partitions": [row]}]}
    else:
        row = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
        body = {"replica_id": replica, "topics": [{"topic": "t", "partitions": [row]}]}
    connection, waiting = world.begin(api_key, version, body)
    if waiting is not None:
        run(waiting)
    if not connection.is_open:
        return set()
    answer = messages.decode_response(api_key, version, connection.sent[4:])[1]
    if api_key is ApiKey.FETCH:
        return {answer.error_code, *(p.error_code for t in answer.responses for p in t.partitions)}
    return {p.error_code for t in answer.topics for p in t.partitions}


AS_REPLICA = [(ApiKey.FETCH, version) for version in (7, 11, 12, 13, 15, 17)]
AS_REPLICA += [(ApiKey.LIST_OFFSETS, version) for version in (1, 4, 7, 9)]
AS_REPLICA += [(ApiKey.OFFSET_FOR_LEADER_EPOCH, version) for version in (3, 4)]


@pytest.mark.parametrize(("api_key", "version"), AS_REPLICA)
def test_on_a_listener_of_clients_a_replica_id_is_refused(api_key: ApiKey, version: int) -> None:
    world, manager = world_of("INTERNAL")
    for replica in (0, 2, 2**31 - 1):
        assert errors(world, api_key, version, replica) == {REFUSED}
    assert manager.asked == 0
    assert errors(world, api_key, version, -1) == {0}, "consumers are served there"


@pytest.mark.parametrize("version", [4, 6])
def test_a_version_that_cannot_say_so_ends_the_connection(version: int) -> None:
    world, manager = world_of("INTERNAL")
    assert (errors(world, ApiKey.FETCH, version, 2), manager.asked) == (set(), 0)


@pytest.mark.parametrize("replica_listener", [None, OWN])
@pytest.mark.parametrize(("api_key", "version"), AS_REPLICA)
def test_on_the_brokers_listener_a_replica_is_served(
    api_key: ApiKey, version: int, replica_listener: str | None
) -> None:
    world, manager = world_of(replica_listener)
    assert errors(world, api_key, version, 2) == {0}
    assert manager.asked == 1
