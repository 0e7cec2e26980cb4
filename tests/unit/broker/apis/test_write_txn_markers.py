"""WriteTxnMarkers: markers in the log, an error for each partition, and groups that hear of what was replicated (KIP-98)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import Marker, parse_marker
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import parse_header
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tests.support.api_world import World
from tests.support.fake_groups import FakeGroups

T0, T1, GROUPS3 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition(OFFSETS_TOPIC, 3)
NONE = ErrorCode.NONE
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class FakeAppends:
    """Answers each partition with the error that the test wrote down. While `is_slow`, the test answers later."""

    def __init__(self) -> None:
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.asked: list[tuple[int, int, Marker, tuple[TopicPartition, ...]]] = []
        self.origins: list[AppendOrigin] = []
        self.is_slow = False
        self.waiting: list[Any] = []

    def append(self, acks: int, timeout_ms: int, entries: Any, respond: Any, *, origin: AppendOrigin) -> None:
        assert (acks, timeout_ms) == (-1, 30_000)
        self.origins.append(origin)
        header = parse_header(entries[0][1])
        marker = parse_marker(entries[0][1])
        assert marker is not None
        assert all(batch == entries[0][1] for _, batch in entries)
        partitions = tuple(tp for tp, _ in entries)
        self.asked.append((header.producer_id, header.producer_epoch, marker, partitions))
        results = [
            ProducePartitionResult(tp.partition, self.errors.get(tp, NONE), 100 + tp.partition) for tp in partitions
        ]
        if self.is_slow:
            self.waiting.append(lambda: respond(results))
        else:
            respond(results)


class MarkerWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.groups = FakeGroups()
        self.appends = FakeAppends()
        self.context.groups = self.groups
        self.context.replica_listener = None
        self.context.clock = SimpleNamespace(wall_ms=lambda: 1_700_000_000_000, monotonic=lambda: 0.0)
        here = {T0, T1, GROUPS3}
        self.context.replica_manager = SimpleNamespace(
            appends=self.appends, partitions=SimpleNamespace(get=lambda tp: tp if tp in here else None)
        )

    async def write(self, *markers: dict[str, Any], version: int = 1) -> dict[int, dict[TopicPartition, ErrorCode]]:
        return rows(await self.call(ApiKey.WRITE_TXN_MARKERS, version, {"markers": markers}))


def rows(answer: Any) -> dict[int, dict[TopicPartition, ErrorCode]]:
    return {
        marker.producer_id: {
            TopicPartition(topic.name, row.partition_index): ErrorCode(row.error_code)
            for topic in marker.topics
            for row in topic.partitions
        }
        for marker in answer.markers
    }


def marker(producer_id: int, *partitions: TopicPartition, is_commit: bool = True, epoch: int = 4) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": is_commit,
        "coordinator_epoch": 6,
        "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()],
    }


@pytest.fixture
def world() -> MarkerWorld:
    return MarkerWorld()


async def test_markers_are_appended_and_groups_hear_of_theirs(world: MarkerWorld) -> None:
    assert await world.write(marker(7, T0, GROUPS3, T1), marker(8, T0, is_commit=False)) == {
        7: {T0: NONE, GROUPS3: NONE, T1: NONE},
        8: {T0: NONE},
    }
    assert world.appends.asked == [(7, 4, Marker(True, 6), (T0, T1, GROUPS3)), (8, 4, Marker(False, 6), (T0,))]
    completed = [question for question in world.groups.asked if len(question) == 3]
    assert completed == [(7, {3: 103}, True)]


async def test_markers_of_transaction_version_2(world: MarkerWorld) -> None:
    """TXN-6, KIP-1228: only v2 of the request has them."""
    of_version = [marker(7 + version, T0) | {"transaction_version": version} for version in (0, 1, 2, 3)]
    assert await world.write(*of_version, version=2) == {7 + version: {T0: NONE} for version in (0, 1, 2, 3)}
    assert world.appends.origins == [AppendOrigin.COORDINATOR] * 2 + [AppendOrigin.RAISED_EPOCH] * 2
    await world.write(of_version[2])
    assert world.appends.origins[-1] is AppendOrigin.COORDINATOR


async def test_each_partition_has_its_own_error(world: MarkerWorld) -> None:
    nowhere = TopicPartition("nowhere", 5)
    world.appends.errors = {T0: FENCED, GROUPS3: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
    assert await world.write(marker(7, T0, T1, nowhere, GROUPS3), marker(7, nowhere), marker(9, nowhere)) == {
        7: {
            T0: FENCED,
            T1: NONE,
            nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            GROUPS3: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        },
        9: {nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert not [question for question in world.groups.asked if len(question) == 3], "the marker will be repeated"


async def test_the_answer_waits_for_all_markers(world: MarkerWorld) -> None:
    """BUG-26: the handler itself ends at once. Groups hear of each marker when it is replicated."""
    world.appends.is_slow = True
    body = {"markers": [marker(7, T0), marker(8, GROUPS3)]}
    connection, waiting = world.begin(ApiKey.WRITE_TXN_MARKERS, 1, body)
    assert waiting is None
    world.appends.waiting[1]()
    assert [question for question in world.groups.asked if len(question) == 3] == [(8, {3: 103}, True)]
    assert connection.sent == b""
    world.appends.waiting[0]()
    assert rows(world.answer(connection, ApiKey.WRITE_TXN_MARKERS, 1)) == {7: {T0: NONE}, 8: {GROUPS3: NONE}}


@pytest.mark.parametrize("change", [{"producer_id": -1}, {"producer_epoch": -1}])
async def test_a_marker_needs_a_producer(world: MarkerWorld, change: dict[str, int]) -> None:
    found = await world.write(marker(7, T0) | change, marker(8, T0))
    assert found == {change.get("producer_id", 7): {T0: ErrorCode.INVALID_REQUEST}, 8: {T0: NONE}}
    assert [asked[0] for asked in world.appends.asked] == [8]


async def test_a_listener_for_clients_takes_markers(world: MarkerWorld) -> None:
    """Kafka's tool that aborts a hanging transaction sends them there, also if brokers have a listener of their own."""
    world.context.replica_listener = "INTERNAL"
    assert await world.write(marker(7, T0, T1)) == {7: dict.fromkeys((T0, T1), NONE)}
    assert [asked[0] for asked in world.appends.asked] == [7]


async def test_a_bug_of_groups_makes_the_coordinator_repeat_their_marker(world: MarkerWorld) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("the test")

    world.groups.transaction_completed = fails  # type: ignore[attr-defined]
    assert await world.write(marker(7, T0, GROUPS3)) == {7: {T0: NONE, GROUPS3: ErrorCode.UNKNOWN_SERVER_ERROR}}
