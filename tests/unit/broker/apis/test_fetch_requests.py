"""Fetch as clients of different versions see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest
from tests.support.api_world import World


class Failing:
    """Takes the place of `Fetches`: each partition's answer is this error."""

    def __init__(self, error: ErrorCode) -> None:
        self._error = error

    def fetch(self, params: Any, request: FetchRequest, respond: Callable[..., None], *, uses_topic_ids: bool) -> None:
        topics = [
            (topic, [FetchPartitionData(p.partition, self._error) for p in rows]) for topic, rows in request.topics
        ]
        respond(ErrorCode.NONE, 0, topics)


@pytest.mark.parametrize("version", [4, 5, 6, 12])
@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_old_clients_are_told_an_error_that_they_know(version: int, error: ErrorCode) -> None:
    """As Kafka's maybeDownConvertStorageError: KAFKA_STORAGE_ERROR came with v6; the others look for the next leader."""
    world = World()
    world.context.fetches = Failing(error)
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    body = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    connection, _ = world.begin(ApiKey.FETCH, version, body)
    answer = messages.decode_response(ApiKey.FETCH, version, connection.sent[4:])[1]
    is_unknown = error is ErrorCode.KAFKA_STORAGE_ERROR and version < 6
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_unknown else error
    assert [p.error_code for t in answer.responses for p in t.partitions] == [expected]
