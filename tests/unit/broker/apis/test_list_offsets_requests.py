"""ListOffsets as a client of each version sees it (INV-16)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from broker.requests.long_answers import LongAnswers
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.types import TopicPartition
from tests.support.api_world import SteppingClock, World

SERVED = SUPPORTED[ApiKey.LIST_OFFSETS]


class Offsets:
    """Takes the replica manager's place: every question ends in this error."""

    def __init__(self, error: ErrorCode) -> None:
        self.offsets = self
        self._error = error

    def listing_offset(self, *_: Any) -> Any:
        raise KafkaError(self._error)


@pytest.mark.parametrize("version", range(SERVED.min, SERVED.max + 1))
@pytest.mark.parametrize("error", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_old_clients_are_told_an_error_that_they_know(version: int, error: ErrorCode) -> None:
    """OFFSET_NOT_AVAILABLE came with v5; LEADER_NOT_AVAILABLE makes the older ones ask again, too."""
    world = World()
    world.context.replica_manager = Offsets(error)
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [partition]}]}
    connection, _ = world.begin(ApiKey.LIST_OFFSETS, version, body)
    answer = messages.decode_response(ApiKey.LIST_OFFSETS, version, connection.sent[4:])[1]
    is_unknown = error is ErrorCode.OFFSET_NOT_AVAILABLE and version < 5
    expected = ErrorCode.LEADER_NOT_AVAILABLE if is_unknown else error
    assert [p.error_code for t in answer.topics for p in t.partitions] == [expected]


class Found:
    """Takes the replica manager's place: each partition's offset is its number."""

    def __init__(self) -> None:
        self.offsets = self

    def listing_offset(self, tp: TopicPartition, *_: Any) -> Generator[None, None, tuple[int, int, int]]:
        return -1, tp.partition, 3
        yield


@pytest.mark.parametrize("version", [1, 7])
async def test_partitions_that_are_named_twice(world: World, version: int) -> None:
    """As in Kafka: INVALID_REQUEST for each of them. A hundred thousand are no more work for each than a few."""
    count = 30_000
    world.context.replica_manager = Found()
    world.context.long_answers = LongAnswers(SteppingClock().monotonic)
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in (*range(count), *range(0, count, 2))
    ]
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": rows}]}
    connection, waiting = world.begin(ApiKey.LIST_OFFSETS, version, body)
    assert waiting is not None, "others have their turn"
    await waiting
    answer = messages.decode_response(ApiKey.LIST_OFFSETS, version, connection.sent[4:])[1]
    found = [(p.partition_index, p.error_code, p.offset) for t in answer.topics for p in t.partitions]
    once = [(number, 0, number) for number in range(count) if number % 2]
    assert [row for row in found if row[1] == 0] == once
    assert {row[1:] for row in found if row[0] % 2 == 0} == {(ErrorCode.INVALID_REQUEST, -1)}
