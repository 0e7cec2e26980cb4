"""Metadata: named topics are answered once, created ones are limited, and an answer waits for the next leader (CTL-16)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.apis import metadata
from broker.cluster import suspected_leaders
from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.network.request_channel import Request
from broker.requests.metadata_topics import MetadataTopics
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import BrokerInfo, Endpoint
from tests.support.api_world import LONG_MS, T_ID, FakeConnection, World, state, turns_until
from tools.inspect.conformance.requests import complete

VERSIONS = range(SUPPORTED[ApiKey.METADATA].min, SUPPORTED[ApiKey.METADATA].max + 1)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class MetadataWorld(World):
    """The topic `t` is known."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.zk.ensure("/config/topics")
        self.context.cluster_id = "c"
        self.context.suspected_leaders = SuspectedLeaders(self.metadata)
        self.context.metadata_topics = MetadataTopics(self.metadata, frozenset, ())

    async def ask(self, version: int, *topics: str | uuid.UUID, creation: bool = False) -> list[tuple[int, Any, int]]:
        """(error, name or id, number of partitions) of each topic of the answer."""
        rows = [
            {"name": None, "topic_id": topic} if isinstance(topic, uuid.UUID) else {"name": topic, "topic_id": None}
            for topic in topics
        ]
        body = {"topics": rows, "allow_auto_topic_creation": creation, "include_topic_authorized_operations": False}
        answer = await self.call(ApiKey.METADATA, version, body | {"include_cluster_authorized_operations": False})
        return [(row.error_code, row.name or row.topic_id, len(row.partitions)) for row in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_that_is_named_twice_is_answered_once(version: int) -> None:
    world = MetadataWorld(auto_create_topics_enable=False)
    found = await world.ask(version, "t", "u", "t", "a/b", "u", "t")
    expected = [(0, "t", 2), (UNKNOWN, "u", 0), (ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b", 0)]
    assert sorted(found) == sorted(expected)


async def test_a_topic_requested_by_name_and_by_id_is_answered_once() -> None:
    nobody = uuid.UUID(int=9)
    found = await MetadataWorld().ask(12, T_ID, "t", nobody, nobody)
    assert found == [(0, "t", 2), (ErrorCode.UNKNOWN_TOPIC_ID, nobody, 0)]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("topic", [{"name": "t", "topic_id": T_ID}, {"name": None, "topic_id": None}])
async def test_a_topic_id_or_no_name_refuses_the_whole_request_before_version_12(
    version: int, topic: dict[str, Any]
) -> None:
    """KIP-516: these versions tell ids, and do not take them."""
    body = {"topics": [topic], "allow_auto_topic_creation": False}
    schema = messages.request_schema(ApiKey.METADATA, version)
    connection, _ = MetadataWorld().begin_frame(
        messages.encode_request(ApiKey.METADATA, version, 1, "test", complete(schema, body))
    )
    answer = World.answer(connection, ApiKey.METADATA, version)
    (row,) = answer.topics
    assert (row.error_code, row.topic_id) == (ErrorCode.INVALID_REQUEST, topic["topic_id"])
    assert (answer.brokers, answer.controller_id, answer.cluster_id) == ((), -1, None)


@pytest.mark.parametrize("version", range(8, 13))
async def test_authorized_operations_are_all_operations_if_the_client_asks(version: int) -> None:
    """KIP-430. The numbers are those of a Kafka without authorizer."""
    world = MetadataWorld(auto_create_topics_enable=False)
    topics = [{"name": name, "topic_id": None} for name in ("t", "u")]
    body = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
    answer = await world.call(ApiKey.METADATA, version, {**body, "include_cluster_authorized_operations": True})
    assert [(row.name, row.topic_authorized_operations) for row in answer.topics] == [("t", 3576), ("u", 3576)]
    if version <= 10:
        assert answer.cluster_authorized_operations == 8096
    not_asked = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
    (row, _) = (await world.call(ApiKey.METADATA, version, body | not_asked)).topics
    assert row.topic_authorized_operations == -(2**31)


async def test_the_topics_that_a_request_creates_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other topics are created when the client asks again."""
    monkeypatch.setattr(metadata, "CREATED_MAX", 2)
    world = MetadataWorld(auto_create_topics_enable=True)
    made = ErrorCode.LEADER_NOT_AVAILABLE
    found = await world.ask(9, "a", "b", "c", "a", creation=True)
    assert found == [(made, "a", 0), (made, "b", 0), (UNKNOWN, "c", 0)]
    assert {"a", "b"} <= set(world.zk.children("/brokers/topics"))
    assert "c" not in world.zk.children("/brokers/topics")


# -- while a leader may have died a moment ago (CTL-16) ----------------------------------------------------------------


VERSION = 9
BY_NAME = [{"topic_id": None, "name": "t"}]


@pytest.fixture(autouse=True)
def _long_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspected_leaders, "HOLD_S", LONG_MS / 1000)


class Asking:
    """Partition 0 of `t` is led by 1 and partition 1 by 2, until `lead`."""

    def __init__(self) -> None:
        self.world = World()
        self.suspected_leaders = SuspectedLeaders(self.world.metadata)
        self.world.context.suspected_leaders = self.suspected_leaders
        self.world.context.metadata_topics = MetadataTopics(
            self.world.metadata, lambda: self.suspected_leaders.unreachable, ()
        )
        self.world.context.cluster_id = "c"
        self.lead(2, 1, 2, 3)

    def lead(self, leader: int, *live: int) -> None:
        states = (state("t", 0, 1, (1, 2)), state("t", 1, leader, (2, 3)))
        self.world.metadata.update(UpdateMetadataRequest(1, 1, 1, states, {}, tuple(map(broker, live))))
        self.suspected_leaders.look_again()

    def ask(self, topics: list[Any] | None) -> Callable[[], Any]:
        """Returns the function that gives the answer, or None while there is none."""
        body = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        frame = memoryview(messages.encode_request(ApiKey.METADATA, VERSION, 1, "test", body))
        connection = FakeConnection()
        request = Request(cast(Any, connection), 0, parse_request_header(frame), frame, 0.0)
        assert metadata.metadata(self.world.context, request) is None, "the handler itself waits for nothing (BUG-26)"
        return lambda: World.answer(connection, ApiKey.METADATA, VERSION) if connection.sent else None


def broker(broker_id: int) -> BrokerInfo:
    return BrokerInfo(broker_id, broker_id, (Endpoint("PLAINTEXT", "h", 9000 + broker_id),))


def leaders(answer: Any) -> list[tuple[int, int]]:
    return [(row.error_code, row.leader_id) for row in answer.topics[0].partitions]


@pytest.mark.parametrize("topics", [BY_NAME, None])
async def test_the_answer_waits_for_the_next_leader(topics: list[Any] | None) -> None:
    asking = Asking()
    asking.suspected_leaders.suspect(2)
    answer = asking.ask(topics)
    assert answer() is None
    asking.suspected_leaders.depart(broker(2))
    asking.suspected_leaders.trust(2)
    assert answer() is None
    asking.lead(3, 1, 3)
    assert leaders(answer()) == [(0, 1), (0, 3)]
    assert {row.node_id for row in answer().brokers} == {1, 2, 3}, "a broker that departed is listed a little longer"
    asking.suspected_leaders.forget_departure(2)
    assert {row.node_id for row in asking.ask(topics)().brokers} == {1, 3}


async def test_after_too_long_a_wait_the_answer_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries, as it does with Kafka."""
    monkeypatch.setattr(suspected_leaders, "HOLD_S", 0.0)
    asking = Asking()
    asking.suspected_leaders.suspect(2)
    answer = asking.ask(BY_NAME)
    await turns_until(lambda: answer() is not None)
    assert leaders(answer()) == [(0, 1), (ErrorCode.LEADER_NOT_AVAILABLE, -1)]
