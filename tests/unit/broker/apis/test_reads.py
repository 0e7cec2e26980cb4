"""Fetch, ListOffsets and OffsetForLeaderEpoch as clients of each version and as other brokers see them (INV-16, BAD-28)."""

from __future__ import annotations

import logging
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from broker.network.request_channel import OLD_CLIENTS
from broker.process.rare_lines import RareLine
from broker.requests.long_answers import LongAnswers
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest
from protocol.types import TopicPartition
from tests.support.api_world import FakeConnection, SteppingClock, World, run
from tests.support.fake_time import FakeTime

FETCH, LIST_OFFSETS, EPOCH_ENDS = ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Manager:
    """Stands for the replica manager and its fetches. The offset of a partition is its number, or an error."""

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.asked = 0
        self.offsets = self
        self._error = error

    def fetch(self, params: Any, request: FetchRequest, respond: Any, *, uses_topic_ids: bool) -> None:
        self.asked += 1
        topics = [(key, [FetchPartitionData(p.partition, self._error) for p in rows]) for key, rows in request.topics]
        respond(ErrorCode.NONE, 0, topics)

    def answer_at_once(self, *_: Any) -> None:
        """Nothing can be answered at once."""

    def listing_offset(self, tp: TopicPartition, *_: Any) -> Generator[None, None, tuple[int, int, int]]:
        self.asked += 1
        if self._error:
            raise KafkaError(self._error)
        return -1, tp.partition, 3
        yield

    def offsets_before(
        self, tp: TopicPartition, timestamp: int, count: int, *_: Any
    ) -> Generator[None, None, list[int]]:
        self.asked += 1
        if self._error:
            raise KafkaError(self._error)
        return [tp.partition + 10, tp.partition][:count]
        yield

    def offset_for_leader_epoch(self, *_: Any) -> tuple[int, int]:
        self.asked += 1
        return 0, 5


def world_of(manager: Manager, replica_listener: str | None = None) -> World:
    world = World()
    world.context.replica_listener = replica_listener
    world.context.replica_manager = world.context.fetches = manager
    return world


def fetch_body(version: int, replica: int) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1000,
    }
    return {
        "replica_id": replica,
        "replica_state": {"replica_id": replica, "replica_epoch": 2},
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "rack_id": "",
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "topics": [{"topic": "t", "partitions": [partition]}] if version < 13 else [],
    }


def list_body(*partitions: int, replica: int = -1) -> dict[str, Any]:
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1, "max_num_offsets": 1}
        for number in partitions
    ]
    topics = [{"name": "t", "partitions": rows}]
    return {"replica_id": replica, "isolation_level": 0, "topics": topics, "timeout": 1000}


def errors(world: World, api_key: ApiKey, version: int, replica: int = -1) -> set[int]:
    """The errors of the answer and of its partitions; none when the connection was closed."""
    if api_key is FETCH:
        body = fetch_body(version, replica)
    elif api_key is LIST_OFFSETS:
        body = list_body(0, replica=replica)
    else:
        row = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
        body = {"replica_id": replica, "topics": [{"topic": "t", "partitions": [row]}]}
    connection, waiting = world.begin(api_key, version, body)
    if waiting is not None:
        run(waiting)
    if not connection.is_open:
        return set()
    answer = World.answer(connection, api_key, version)
    topics = answer.responses if api_key is FETCH else answer.topics
    return {getattr(answer, "error_code", 0), *(p.error_code for t in topics for p in t.partitions)} - {0}


@pytest.mark.parametrize(
    ("api_key", "error", "since", "before"),
    [
        (FETCH, ErrorCode.KAFKA_STORAGE_ERROR, 6, NOT_LEADER),
        (FETCH, ErrorCode.OFFSET_OUT_OF_RANGE, 0, None),
        (LIST_OFFSETS, ErrorCode.OFFSET_NOT_AVAILABLE, 5, ErrorCode.LEADER_NOT_AVAILABLE),
        (LIST_OFFSETS, NOT_LEADER, 0, None),
    ],
)
def test_old_clients_get_an_error_that_they_know(
    api_key: ApiKey, error: ErrorCode, since: int, before: ErrorCode | None
) -> None:
    """As in Kafka: the error that older clients get makes them retry, or look for the next leader."""
    for version in range(SUPPORTED[api_key].min, min(SUPPORTED[api_key].max, 12) + 1):
        found = errors(world_of(Manager(error)), api_key, version)
        assert found == {error if version >= since else before}, version


async def test_the_first_version_of_list_offsets_has_several_offsets() -> None:
    """Clients such as Burrow send it without asking for ApiVersions."""
    world = world_of(Manager())
    asked = [(0, -1, 1), (1, -1, 5), (2, -3, 1), (3, -1, -1), (4, -1, 0)]
    rows = [{"partition_index": p, "timestamp": time, "max_num_offsets": count} for p, time, count in asked]
    body = {"replica_id": -1, "topics": [{"name": "t", "partitions": rows}]}
    (topic,) = (await world.call(LIST_OFFSETS, 0, body)).topics
    assert [(row.error_code, row.old_style_offsets) for row in topic.partitions] == [
        (ErrorCode.NONE, (10,)),
        (ErrorCode.NONE, (11, 1)),
        (ErrorCode.UNSUPPORTED_VERSION, ()),
        (ErrorCode.INVALID_REQUEST, ()),
        (ErrorCode.NONE, ()),
    ]


class Partitions:
    """Partitions 0 and 1 are known; this broker leads 0."""

    def find(self, tp: TopicPartition) -> Any:
        if tp.partition > 1:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self if tp.partition == 0 else SimpleNamespace(leader_log=self.refuse)

    def leader_log(self) -> None:
        """It leads."""

    def refuse(self) -> None:
        raise KafkaError(NOT_LEADER)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [3, 3000])
async def test_a_fetch_that_cannot_carry_the_records_says_so(version: int, count: int) -> None:
    """As a Kafka that may not convert records. The client does not ask for ApiVersions, so this answer is all that it hears."""
    world = world_of(Manager())
    world.context.replica_manager = SimpleNamespace(partitions=Partitions())
    rows = [{"partition": number, "fetch_offset": 5, "partition_max_bytes": 1000} for number in range(count)]
    body = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1000}
    answer = await world.call(FETCH, version, {**body, "topics": [{"topic": "t", "partitions": rows}]})
    (topic,) = answer.responses
    assert [(row.error_code, row.high_watermark, bytes(row.records)) for row in topic.partitions][:3] == [
        (ErrorCode.UNSUPPORTED_VERSION, -1, b""),
        (NOT_LEADER, -1, b""),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, b""),
    ]
    assert len(topic.partitions) == count


async def test_old_fetches_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """A client that gets no records asks again at once."""
    caplog.set_level(logging.INFO)
    world = world_of(Manager())
    clock = FakeTime()
    world.context.old_fetches = RareLine(1.0, clock.monotonic)
    body = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1000, "topics": []}
    for _ in range(12):
        await world.call(FETCH, 0, body)
        clock.now += 0.25
    ends = [message.partition(OLD_CLIENTS)[2] for message in caplog.messages]
    assert ends == ["", " (and 3 earlier fetches)", " (and 3 earlier fetches)"]


@pytest.mark.parametrize("version", [0, 1, 7])
async def test_partitions_that_are_named_twice_are_refused(version: int) -> None:
    """As in Kafka, from v1 on: each gets INVALID_REQUEST. The work grows linearly with the partitions."""
    count = 30_000
    world = world_of(Manager())
    world.context.long_answers = LongAnswers(SteppingClock().monotonic)
    connection, waiting = world.begin(LIST_OFFSETS, version, list_body(*range(count), *range(0, count, 2)))
    assert waiting is not None, "other requests run in between"
    await waiting
    answer = World.answer(connection, LIST_OFFSETS, version)
    found = [(p.partition_index, p.error_code, offset_of(p)) for t in answer.topics for p in t.partitions]
    once = [(number, 0, number if version else number + 10) for number in range(count) if number % 2]
    assert [row for row in found if row[1] == 0] == once
    assert {row[1:] for row in found if row[0] % 2 == 0} == {(ErrorCode.INVALID_REQUEST, -1)}


def offset_of(row: Any) -> int:
    return int(row.offset) if hasattr(row, "offset") else next(iter(row.old_style_offsets), -1)


# -- requests with a replica id are for brokers: on a listener of clients they are refused ---------------------------------

AS_REPLICA = [
    *((FETCH, version) for version in (7, 11, 12, 13, 15, 17)),
    *((LIST_OFFSETS, version) for version in (0, 1, 4, 7, 9)),
    *((EPOCH_ENDS, version) for version in (3, 4)),
]


@pytest.mark.parametrize(("api_key", "version"), AS_REPLICA)
def test_on_a_client_listener_a_replica_id_is_refused(api_key: ApiKey, version: int) -> None:
    manager = Manager()
    world = world_of(manager, "INTERNAL")
    for replica in (0, 2, 2**31 - 1):
        assert errors(world, api_key, version, replica) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert manager.asked == 0
    assert errors(world, api_key, version, -1) == set()
    assert manager.asked == 1, "consumers are served there"


@pytest.mark.parametrize("version", [4, 6])
def test_a_version_without_a_fitting_error_closes_the_connection(version: int) -> None:
    manager = Manager()
    world = world_of(manager, "INTERNAL")
    connection, _ = world.begin(FETCH, version, fetch_body(version, 2))
    assert (connection.is_open, connection.sent, manager.asked) == (False, b"", 0)


@pytest.mark.parametrize("replica_listener", [None, FakeConnection.listener])
@pytest.mark.parametrize(("api_key", "version"), AS_REPLICA)
def test_on_the_brokers_listener_a_replica_is_served(
    api_key: ApiKey, version: int, replica_listener: str | None
) -> None:
    manager = Manager()
    assert errors(world_of(manager, replica_listener), api_key, version, 2) == set()
    assert manager.asked == 1
