"""DeleteTopics and CreatePartitions: what is answered and what is written. The codes are Kafka 3.9.1's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from broker.admin import topic_admin
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.topic_ids import topic_id_text
from protocol.types import Assignment
from protocol.zk.session import Op, SetOp
from protocol.zk.znodes import DeleteTopicZNode, TopicZNode
from tests.support.api_world import LONG_MS, OTHER_ID, SHORT_MS, T_ID, World, state, turns_until

# -- DeleteTopics ---------------------------------------------------------------------------------------------------------


def by_name(*names: str, timeout: int = LONG_MS) -> dict[str, Any]:
    rows = [{"name": name, "topic_id": None} for name in names]
    return {"topics": rows, "topic_names": names, "timeout": timeout}


def by_id(*ids: uuid.UUID, timeout: int = LONG_MS) -> dict[str, Any]:
    return {"topics": [{"name": None, "topic_id": topic_id} for topic_id in ids], "timeout": timeout}


def rows_of(answer: Any) -> list[tuple[str | None, int]]:
    return [(row.name, row.error_code) for row in answer.responses]


@pytest.mark.parametrize("version", [0, 1, 4, 5, 6])
async def test_deletion_waits_until_the_topic_is_forgotten(world: World, version: int) -> None:
    """CTL-9."""
    task = asyncio.create_task(world.call(ApiKey.DELETE_TOPICS, version, by_name("t", "t", "nope")))
    await turns_until(lambda: DeleteTopicZNode.path("t") in world.zk.nodes)
    assert not task.done()
    world.forget()
    assert rows_of(await task) == [("t", 0), ("t", 0), ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_a_topic_that_was_created_again_counts_as_deleted(world: World) -> None:
    task = asyncio.create_task(world.call(ApiKey.DELETE_TOPICS, 6, by_id(T_ID, OTHER_ID)))
    await turns_until(lambda: DeleteTopicZNode.path("t") in world.zk.nodes)
    world.update([state("t", 0, 1, (1,))], t=OTHER_ID)
    answer = await task
    assert rows_of(answer) == [("t", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
    assert [row.topic_id for row in answer.responses] == [T_ID, OTHER_ID]


@pytest.mark.parametrize(("level", "told"), [(ApiLevel.KAFKA_3_9, None), (ApiLevel.KAFKA_4, T_ID)])
async def test_the_id_of_a_topic_that_was_named_by_its_name(
    world: World, level: ApiLevel, told: uuid.UUID | None
) -> None:
    """As from a ZooKeeper controller, or at level 4 from a KRaft controller."""
    world.context.api_level = level
    task = asyncio.create_task(world.call(ApiKey.DELETE_TOPICS, 6, by_name("t", "nope")))
    await turns_until(lambda: DeleteTopicZNode.path("t") in world.zk.nodes)
    world.forget()
    assert [row.topic_id for row in (await task).responses] == [told, None]


async def test_a_topic_id_that_zookeeper_no_longer_has_deletes_nothing(world: World) -> None:
    """FLT-36: the cache still has the old topic, ZooKeeper has the new topic of that name."""
    world.write_topic("t", OTHER_ID, {0: Assignment((1,))})
    assert rows_of(await world.call(ApiKey.DELETE_TOPICS, 6, by_id(T_ID))) == [("t", ErrorCode.UNKNOWN_TOPIC_ID)]
    assert DeleteTopicZNode.path("t") not in world.zk.nodes


async def test_a_deletion_by_an_id_that_the_node_has_lost_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool before Kafka 2.8 wrote the node. The controller is about to give the id back."""
    monkeypatch.setattr(topic_admin, "ID_RETRY_S", 0)
    world.zk.ensure(TopicZNode.path("t"), TopicZNode.encode(None, {0: Assignment((1,))}))
    task = asyncio.create_task(world.call(ApiKey.DELETE_TOPICS, 6, by_id(T_ID)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert DeleteTopicZNode.path("t") not in world.zk.nodes
    world.write_topic("t", T_ID, {0: Assignment((1,))})
    await turns_until(lambda: DeleteTopicZNode.path("t") in world.zk.nodes)
    world.forget()
    assert rows_of(await task) == [("t", 0)]


@pytest.mark.parametrize("marked_before", [False, True])
async def test_a_deletion_that_takes_too_long_times_out(world: World, marked_before: bool) -> None:
    """Whether it was marked for deletion before or not: it is marked afterwards."""
    if marked_before:
        world.zk.ensure(DeleteTopicZNode.path("t"))
    answer = await world.call(ApiKey.DELETE_TOPICS, 6, by_name("t", timeout=SHORT_MS))
    assert rows_of(answer) == [("t", ErrorCode.REQUEST_TIMED_OUT)]
    assert DeleteTopicZNode.path("t") in world.zk.nodes


@pytest.mark.parametrize(
    ("version", "body", "settings", "active", "code"),
    [
        (6, by_name("t"), {}, False, ErrorCode.NOT_CONTROLLER),
        (1, by_name("t"), {}, False, ErrorCode.NOT_CONTROLLER),
        (6, by_id(T_ID), {}, False, ErrorCode.NOT_CONTROLLER),
        (6, by_name("t"), {"delete_topic_enable": False}, True, ErrorCode.TOPIC_DELETION_DISABLED),
        (3, by_name("t"), {"delete_topic_enable": False}, True, ErrorCode.TOPIC_DELETION_DISABLED),
        (0, by_name("t"), {"delete_topic_enable": False}, True, ErrorCode.INVALID_REQUEST),
        (2, by_name("t"), {"delete_topic_enable": False}, True, ErrorCode.INVALID_REQUEST),
        (6, {"topics": [{"name": "t", "topic_id": T_ID}], "timeout": 1}, {}, True, ErrorCode.INVALID_REQUEST),
        (6, {"topics": [{"name": None, "topic_id": None}], "timeout": 1}, {}, True, ErrorCode.INVALID_REQUEST),
        (6, by_name("a/b"), {}, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (6, by_name(""), {}, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_deletions_that_are_refused(
    version: int, body: dict[str, Any], settings: dict[str, Any], active: bool, code: ErrorCode
) -> None:
    world = World(**settings)
    world.controller.is_active = active
    (row,) = (await world.call(ApiKey.DELETE_TOPICS, version, body)).responses
    assert row.error_code == code
    assert version < 5 or row.error_message
    assert not world.zk.children(DeleteTopicZNode.PARENT)


# -- CreatePartitions -----------------------------------------------------------------------------------------------------


def grow(name: str, count: int, *, validate_only: bool = False, timeout: int = LONG_MS) -> dict[str, Any]:
    topics = [{"name": name, "count": count, "assignments": None}]
    return {"topics": topics, "timeout": timeout, "validate_only": validate_only}


@pytest.mark.parametrize("version", [0, 3])
async def test_new_partitions_are_written_and_waited_for(world: World, version: int) -> None:
    """CTL-8: the id and the old partitions stay."""
    task = asyncio.create_task(world.call(ApiKey.CREATE_PARTITIONS, version, grow("t", 3)))
    await turns_until(lambda: len(world.topic()[1]) >= 3)
    assert world.topic() == (
        topic_id_text(T_ID),
        {0: Assignment((1, 2)), 1: Assignment((2, 3)), 2: Assignment((3, 1))},
    )
    world.update([state("t", 2, -1, (3, 1))])
    await asyncio.sleep(0)
    assert not task.done()
    world.update([state("t", 2, 3, (3, 1))])
    (row,) = (await task).results
    assert (row.name, row.error_code, row.error_message) == ("t", 0, None)


@pytest.mark.parametrize(
    ("body", "code", "partitions"),
    [
        (grow("t", 9, validate_only=True, timeout=0), ErrorCode.NONE, 2),
        (grow("t", 3, timeout=SHORT_MS), ErrorCode.REQUEST_TIMED_OUT, 3),
    ],
    ids=["only validated", "without a leader in time"],
)
async def test_new_partitions_that_the_answer_does_not_wait_for(
    world: World, body: dict[str, Any], code: ErrorCode, partitions: int
) -> None:
    (row,) = (await world.call(ApiKey.CREATE_PARTITIONS, 3, body)).results
    assert (row.error_code, len(world.topic()[1])) == (code, partitions)


async def test_an_assignment_that_changed_meanwhile_is_read_again(world: World) -> None:
    """The change of another admin between the read and the write is neither lost nor done twice."""
    interruptions = [1]

    def interrupt(ops: Sequence[Op]) -> None:
        if isinstance(ops[0], SetOp) and interruptions:
            interruptions.clear()
            world.write_topic("t", T_ID, {0: Assignment((3, 1)), 1: Assignment((2, 3)), 2: Assignment((1, 2))})

    world.session.before_multi = interrupt
    body = grow("t", 4)
    await world.call(ApiKey.CREATE_PARTITIONS, 3, body | {"timeout": SHORT_MS})
    assert sorted(world.topic()[1]) == [0, 1, 2, 3]
    assert world.topic()[1][0] == Assignment((3, 1))
    (row,) = (await world.call(ApiKey.CREATE_PARTITIONS, 3, body)).results
    assert row.error_message == "Topic already has 4 partitions."


@pytest.mark.parametrize(
    ("change", "body", "code"),
    [
        (lambda world: None, grow("nope", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda world: None, grow("t", 2), ErrorCode.INVALID_PARTITIONS),
        (lambda world: world.zk.ensure(DeleteTopicZNode.path("t")), grow("t", 3), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda world: world.zk.ensure(TopicZNode.path("t"), b"rubbish"), grow("t", 3), ErrorCode.UNKNOWN_SERVER_ERROR),
        (lambda world: setattr(world.controller, "is_active", False), grow("t", 3), ErrorCode.NOT_CONTROLLER),
        (
            lambda world: None,
            {"topics": grow("t", 3)["topics"] * 2, "timeout": 1, "validate_only": False},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_additions_that_are_refused(
    world: World, change: Callable[[World], None], body: dict[str, Any], code: ErrorCode
) -> None:
    change(world)
    before = world.zk.nodes[TopicZNode.path("t")].data
    (row,) = (await world.call(ApiKey.CREATE_PARTITIONS, 3, body)).results
    assert row.error_code == code
    assert row.error_message
    assert world.zk.nodes[TopicZNode.path("t")].data == before


async def test_the_new_partitions_of_a_request_are_limited(world: World) -> None:
    (row,) = (await world.call(ApiKey.CREATE_PARTITIONS, 3, grow("t", 10_003))).results
    assert row.error_code == ErrorCode.POLICY_VIOLATION
    topic = {"num_partitions": 6_000, "replication_factor": 1, "assignments": [], "configs": []}
    body = {"topics": [topic | {"name": name} for name in ("a", "b")], "timeout": 1, "validate_only": True}
    world.context.configs = SimpleNamespace(layers=SimpleNamespace(describe_topic=lambda _: ()))
    answer = await world.call(ApiKey.CREATE_TOPICS, 7, body)
    assert [row.error_code for row in answer.topics] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


@pytest.mark.parametrize(("version", "creates"), [(0, True), (1, False), (2, False)])
async def test_the_first_version_of_create_topics_cannot_only_validate(
    world: World, version: int, creates: bool
) -> None:
    world.zk.ensure("/config/topics")
    world.context.configs = SimpleNamespace(layers=SimpleNamespace(describe_topic=lambda _: ()))
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    body = {"topics": [topic | {"name": name} for name in ("new", "t")], "timeout": SHORT_MS, "validate_only": True}
    answer = await world.call(ApiKey.CREATE_TOPICS, version, body)
    made = ErrorCode.REQUEST_TIMED_OUT if creates else ErrorCode.NONE  # no controller elects its leader
    assert [row.error_code for row in answer.topics] == [made, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert (TopicZNode.path("new") in world.zk.nodes) is creates
    assert all(hasattr(row, "error_message") is (version >= 1) for row in answer.topics)


async def test_an_assignment_larger_than_zookeeper_accepts_is_refused() -> None:
    """A larger request would end the broker's session."""
    world = World(max_broker_partitions=100_000)
    with pytest.raises(KafkaError, match="bytes in ZooKeeper") as refused:
        await world.context.topic_admin.add_partitions("t", 90_000, None, validate_only=False)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    assert len(world.topic()[1]) == 2
