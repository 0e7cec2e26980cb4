"""The checks of a new topic, and how its znodes are written: BAD-26, BAD-27."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from broker.admin.topic_admin import NewTopic, TopicAdmin, TopicNames
from broker.cluster.metadata_cache import MetadataCache
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import Assignment, BrokerInfo
from protocol.zk.session import Op, SessionState
from protocol.zk.znodes import ConfigZNode, TopicZNode
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.refusals import refused


class World:
    def __init__(self, brokers: int = 3, **settings: Any) -> None:
        self.zk = MemorySession(MemoryZooKeeper())
        for path in ("/brokers/topics", "/config/topics"):
            self.zk.server.ensure(path)
        self.metadata = MetadataCache()
        infos = tuple(BrokerInfo(n, n, ()) for n in range(1, brokers + 1))
        existing = PartitionState("old.topic", 0, 1, 1, 0, (1,), 0, (1,))
        self.metadata.update(
            UpdateMetadataRequest(1, 1, 1, (existing,), {"old.topic": "AAAAAAAAAAAAAAAAAAAAAQ"}, infos)
        )
        config = BrokerConfig(broker_id=1, **settings)
        self.admin = TopicAdmin(config, self.zk, self.metadata, lambda n: 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("a.b", "a_b", True), ("a_b", "a.b", True), ("a.b", "a.b", False), ("ab", "a_b", False), ("a.b_c", "a_b.c", True)],
)
def test_collisions(one: str, other: str, expected: bool) -> None:
    with pytest.raises(KafkaError) if expected else contextlib.nullcontext():
        TopicNames([other]).check_collision(one)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("old_topic"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("only.zookeeper.knows"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("old.topic"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", configs={"x": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", partitions=1, assignments={0: (1,)}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", assignments={1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (1, 9)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignments={0: (1, 2), 1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_illegal_topics_are_refused(topic: NewTopic, error: ErrorCode) -> None:
    world = World()
    world.zk.server.ensure("/brokers/topics/only_zookeeper_knows")
    with pytest.raises(KafkaError) as raised:
        await world.admin.write(world.admin.plan(topic))
    assert raised.value.code is error
    assert raised.value.message


def test_defaults_and_placement() -> None:
    planned = World(num_partitions=3, default_replication_factor=2).admin.plan(NewTopic("t"))
    assert planned.assignment == {0: (1, 2), 1: (2, 3), 2: (3, 1)}
    assert planned.replication_factor == 2


async def test_a_topic_is_written_with_its_settings() -> None:
    world = World()
    planned = world.admin.plan(NewTopic("t", assignments={0: (3, 1)}, configs={"retention.ms": "5"}))
    await world.admin.write(planned)
    assert ConfigZNode.decode(world.zk.server.nodes["/config/topics/t"].data) == {"retention.ms": "5"}
    _, assignment = TopicZNode.decode(world.zk.server.nodes["/brokers/topics/t"].data)
    assert assignment[0].replicas == (3, 1)
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        await world.admin.write(world.admin.plan(NewTopic("t")))


async def test_a_topic_whose_answer_is_lost_is_created_once() -> None:
    """BUG-5: the second attempt finds the topic by its id."""
    world = World()
    world.zk.lose_answers = 1
    await world.admin.write(world.admin.plan(NewTopic("t")))
    assert len(world.zk.server.writes) == 1


async def test_a_topic_whose_answer_is_lost_may_have_more_partitions_meanwhile() -> None:
    """Another admin has seen the topic already."""
    world = World()
    planned = world.admin.plan(NewTopic("t"))

    def more_partitions(ops: Sequence[Op]) -> None:
        if len(world.zk.server.writes) == 1:
            grown = {0: Assignment((1,)), 1: Assignment((2,))}
            world.zk.server.ensure("/brokers/topics/t", TopicZNode.encode(topic_id_text(planned.topic_id), grown))

    world.zk.lose_answers = 1
    world.zk.before_multi = more_partitions
    await world.admin.write(planned)
    assert len(TopicZNode.decode(world.zk.server.nodes["/brokers/topics/t"].data)[1]) == 2


async def test_an_automatic_creation_does_not_wait_for_zookeeper() -> None:
    """The client's Metadata request names topics that exist, too, and nothing else on its connection is answered before."""
    world = World()
    world.zk.change_state(SessionState.SUSPENDED)
    waits: list[float] = []
    repeated = world.zk.repeated

    async def noted(step: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        waits.append(timeout_s)
        await repeated(step, timeout_s)

    world.zk.repeated = noted  # type: ignore[assignment]
    assert await world.admin.create_automatically(["a", "b"]) == dict.fromkeys("ab", ErrorCode.LEADER_NOT_AVAILABLE)
    assert waits == [0, 0]


@pytest.mark.parametrize("go_in_that_moment", [False, True])
async def test_settings_of_a_deleted_topic_of_that_name_are_replaced(go_in_that_moment: bool) -> None:
    """FLT-36: a deletion of a topic of that name may remove its settings and its node meanwhile, in one multi."""
    world = World()
    world.zk.server.ensure("/config/topics/t", ConfigZNode.encode({"retention.ms": "1"}))

    async def exists(path: str) -> None:
        world.zk.server.remove("/config/topics/t")

    if go_in_that_moment:
        world.zk.exists = exists  # type: ignore[method-assign, assignment]
    await world.admin.write(world.admin.plan(NewTopic("t")))
    assert ConfigZNode.decode(world.zk.server.nodes["/config/topics/t"].data) == {}
    assert "/brokers/topics/t" in world.zk.server.nodes


async def test_automatic_creation() -> None:
    world = World(default_replication_factor=4)
    assert await world.admin.create_automatically(["t"]) == {"t": ErrorCode.INVALID_REPLICATION_FACTOR}
    world = World()
    errors = await world.admin.create_automatically(["t", "t", "u", "old.topic"])
    assert errors == dict.fromkeys(["t", "u", "old.topic"], ErrorCode.LEADER_NOT_AVAILABLE)
    assert {"/brokers/topics/t", "/brokers/topics/u"} <= set(world.zk.server.nodes)


INTERNAL = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
TRANSACTIONS = INTERNAL | {
    "compression.type": "uncompressed",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


@pytest.mark.parametrize(
    ("name", "partitions", "configs"),
    [("__consumer_offsets", 4, INTERNAL), ("__transaction_state", 5, TRANSACTIONS), ("ordinary", 1, {})],
)
async def test_internal_topics_have_the_settings_that_kafka_gives_them(
    name: str, partitions: int, configs: dict[str, str]
) -> None:
    """What a real Kafka 3.9.1 has made of them, asked for by Metadata."""
    world = World(offsets_topic_num_partitions=4, transaction_state_log_num_partitions=5)
    assert await world.admin.create_automatically([name]) == {name: ErrorCode.LEADER_NOT_AVAILABLE}
    assert ConfigZNode.decode(world.zk.server.nodes[f"/config/topics/{name}"].data) == configs
    _, assignment = TopicZNode.decode(world.zk.server.nodes[f"/brokers/topics/{name}"].data)
    factor = 1 if name == "ordinary" else 3
    assert [len(replicas.replicas) for replicas in assignment.values()] == [factor] * partitions


async def test_the_number_of_replicas_per_broker_is_limited() -> None:
    """`max.broker.partitions`, of 3 brokers that have one replica."""
    world = World(max_broker_partitions=4)

    async def make(name: str, partitions: int) -> None:
        await world.admin.write(world.admin.plan(NewTopic(name, partitions, 3)))

    await make("three", 3)
    with pytest.raises(KafkaError) as raised:
        await make("four", 4)
    assert raised.value.code is ErrorCode.POLICY_VIOLATION
    assert "max.broker.partitions is 4, with 3 live brokers" in raised.value.message
    assert TopicZNode.path("four") not in world.zk.server.nodes
    assert await world.admin.create_automatically(["one"]) == {"one": ErrorCode.LEADER_NOT_AVAILABLE}
