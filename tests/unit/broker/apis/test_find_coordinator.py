"""FindCoordinator, and the creation of `__consumer_offsets` (CLI-2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.cluster.suspected_leaders import SuspectedLeaders
from broker.requests.context import ApiContext
from broker.requests.long_answers import LongAnswers
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from protocol.types import BrokerInfo, Endpoint
from protocol.zk.znodes import ConfigZNode, TopicZNode
from tests.support.api_world import SteppingClock, World, state, turns_until
from tests.support.fake_groups import FakeGroups

VERSIONS = range(SUPPORTED[ApiKey.FIND_COORDINATOR].min, SUPPORTED[ApiKey.FIND_COORDINATOR].max + 1)
NOT_AVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
Found = tuple[int, int, str, int]
"""(error code, node id, host, port)"""


class CoordinatorWorld(World):
    """The group's partition is as many as its id has characters; partitions 1 to 3 are led by the broker of that number.

    Broker 1 has no listener for these clients, and broker 3 is not live.
    """

    def __init__(self, *, with_topic: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.zk.ensure("/config/topics")
        self.context.groups = FakeGroups()
        self.suspected_leaders = self.context.suspected_leaders = SuspectedLeaders(self.metadata)
        self.context.node_endpoint = self.node_endpoint
        brokers = tuple(
            BrokerInfo(n, n, (Endpoint("PLAINTEXT" if n == 2 else "OTHER", f"host-{n}", 9000 + n),)) for n in (1, 2)
        )
        states = [state(OFFSETS_TOPIC, n, leader, (1, 2)) for n, leader in ((1, 1), (2, 2), (3, 3), (4, -1))]
        if with_topic:
            self.metadata.update(UpdateMetadataRequest(1, 1, 2, tuple(states), {}, brokers))

    def node_endpoint(self, broker_id: int, listener: str) -> Any:
        return ApiContext.node_endpoint(self.context, broker_id, listener)

    async def find(self, version: int, *keys: str, key_type: int = 0) -> list[Found]:
        body = {"key": keys[0] if keys else "", "coordinator_keys": keys, "key_type": key_type}
        answer = await self.call(ApiKey.FIND_COORDINATOR, version, body)
        rows = answer.coordinators if version >= 4 else [answer]
        return [(row.error_code, row.node_id, row.host, row.port) for row in rows]


def nowhere(error: ErrorCode) -> Found:
    return (error, -1, "", -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_leader_of_the_groups_partition(version: int) -> None:
    world = CoordinatorWorld()
    assert await world.find(version, "22") == [(0, 2, "host-2", 9002)]
    for key in ("1", "333", "4444", "unknown partition"):
        assert await world.find(version, key) == [nowhere(NOT_AVAILABLE)]


@pytest.mark.parametrize("version", range(1, 7))
async def test_the_coordinator_of_a_transactional_id(version: int) -> None:
    """TXN-1. The first request creates the topic."""
    world = CoordinatorWorld(transaction_state_log_num_partitions=7, transaction_state_log_replication_factor=2)
    world.context.transactions = FakeGroups()
    assert await world.find(version, "22", key_type=1) == [nowhere(NOT_AVAILABLE)]
    _, assignment = world.topic(TRANSACTION_STATE_TOPIC)
    assert len(assignment) == 7
    states = [state(TRANSACTION_STATE_TOPIC, n, leader, (1, 2)) for n, leader in ((1, 1), (2, 2), (4, -1))]
    brokers = world.metadata.brokers()
    world.metadata.update(UpdateMetadataRequest(1, 1, 3, tuple(states), {}, brokers))
    assert await world.find(version, "22", key_type=1) == [(0, 2, "host-2", 9002)]
    assert await world.find(version, "4444", key_type=1) == [nowhere(NOT_AVAILABLE)]


@pytest.mark.parametrize("version", range(4, 7))
async def test_many_groups(version: int) -> None:
    """KIP-699: one answer for each, in order."""
    world = CoordinatorWorld()
    found = [(0, 2, "host-2", 9002), nowhere(NOT_AVAILABLE), (0, 2, "host-2", 9002)]
    assert await world.find(version, "aa", "b", "aa") == found
    assert await world.find(version) == []


@pytest.mark.parametrize("version", range(4, 7))
async def test_very_many_groups(version: int) -> None:
    """CTL-16: the answer is made in steps and names no suspected leader: a client that lost its coordinator gets the next coordinator."""
    world = CoordinatorWorld()
    world.context.long_answers = LongAnswers(SteppingClock().monotonic)
    world.suspected_leaders.suspect(2)
    keys = ["aa", "b"] * 1000
    connection, waiting = world.begin(ApiKey.FIND_COORDINATOR, version, {"key_type": 0, "coordinator_keys": keys})
    assert waiting is not None
    await waiting
    assert not connection.sent
    world.suspected_leaders.trust(2)
    await turns_until(lambda: bool(connection.sent))
    answer = World.answer(connection, ApiKey.FIND_COORDINATOR, version)
    found = [(row.key, row.error_code, row.node_id, row.port) for row in answer.coordinators]
    assert found == [("aa", 0, 2, 9002), ("b", NOT_AVAILABLE, -1, -1)] * 1000


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_group_id_longer_than_a_kafka_string(version: int) -> None:
    """As in Kafka: flexible versions do not allow longer strings."""
    (found,) = await CoordinatorWorld().find(version, "x" * 32_767)
    assert found == nowhere(NOT_AVAILABLE)
    if version >= 3:
        with pytest.raises(MalformedRequest):
            await CoordinatorWorld().find(version, "x" * 32_768)


@pytest.mark.parametrize(("version", "key_type", "error"), [(3, 9, 42), (5, 2, 42), (6, 2, 15)])
async def test_coordinators_that_are_not_supported(version: int, key_type: int, error: ErrorCode) -> None:
    """INVALID_REQUEST is not retried; the error for share groups is."""
    assert await CoordinatorWorld().find(version, "22", key_type=key_type) == [nowhere(error)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_first_request_creates_the_topic(version: int) -> None:
    world = CoordinatorWorld(
        with_topic=False,
        offsets_topic_num_partitions=7,
        offsets_topic_replication_factor=2,
        offsets_topic_segment_bytes=1000,
    )
    assert await world.find(version, "22") == [nowhere(NOT_AVAILABLE)]
    assert await world.find(version, "22") == [nowhere(NOT_AVAILABLE)]
    _, assignment = world.topic(OFFSETS_TOPIC)
    assert len(assignment) == 7
    assert {len(replicas.replicas) for replicas in assignment.values()} == {2}
    config = json.loads(world.zk.nodes[ConfigZNode.path("topics", OFFSETS_TOPIC)].data)["config"]
    assert config == {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "1000"}


async def test_too_few_brokers_for_the_topic() -> None:
    """As in Kafka: the topic is not created with fewer replicas than configured."""
    world = CoordinatorWorld(with_topic=False, offsets_topic_replication_factor=4)
    assert await world.find(3, "22") == [nowhere(NOT_AVAILABLE)]
    assert TopicZNode.path(OFFSETS_TOPIC) not in world.zk.nodes
