"""Metadata while a leader may have died a moment ago (CTL-16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.apis.metadata import metadata
from broker.cluster import suspected_leaders
from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.network.request_channel import Request
from broker.requests.metadata_topics import MetadataTopics
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import BrokerInfo, Endpoint
from tests.support.api_world import LONG_MS, FakeConnection, World, state, turns_until

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
        assert metadata(self.world.context, request) is None, "the handler itself waits for nothing (BUG-26)"
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
