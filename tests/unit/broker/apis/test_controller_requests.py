"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments: what the controller is asked, and what is answered.

The codes are Kafka 3.9.1's, also where they stand: an election's NOT_CONTROLLER is each partition's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.types import Assignment
from protocol.types import TopicPartition as TP
from tests.support.api_world import LONG_MS, SHORT_MS, World, state, turns, turns_until

# -- ElectLeaders ---------------------------------------------------------------------------------------------------------


def election(rows: Mapping[str, Sequence[int]] | None, kind: int = 0, timeout: int = LONG_MS) -> dict[str, Any]:
    wanted = None if rows is None else [{"topic": topic, "partitions": numbers} for topic, numbers in rows.items()]
    return {"election_type": kind, "topic_partitions": wanted, "timeout": timeout}


def elected(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, row.partition_id): row.error_code
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


async def test_an_election_waits_until_this_broker_knows_the_leader(world: World) -> None:
    """CTL-12. The broker may not know a new order of the replicas either: partition 1 seems to have its preferred leader."""
    failed = KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "why")
    world.update([state("t", 0, 2, (1, 2)), state("t", 1, 2, (2, 3))])
    world.controller.answers = {TP("t", 0): None, TP("t", 1): None, TP("t", 2): failed}
    task = asyncio.create_task(world.call(ApiKey.ELECT_LEADERS, 2, election({"t": [0, 1, 2]})))
    await turns_until(lambda: bool(world.controller.asked))
    world.update([state("t", 0, 1, (1, 2), epoch=1), state("t", 1, 2, (3, 2), epoch=1)])
    await turns(5)
    assert not task.done()
    world.update([state("t", 1, 3, (3, 2), epoch=2)])
    assert elected(await task) == {("t", 0): 0, ("t", 1): 0, ("t", 2): failed.code}
    assert world.controller.asked == [(False, [TP("t", 0), TP("t", 1), TP("t", 2)])]


@pytest.mark.parametrize(
    ("version", "body", "question"),
    [
        (0, election({"t": [0]}), (False, [TP("t", 0)])),
        (1, election({"t": [0]}, 1), (True, [TP("t", 0)])),
        (2, election(None), (False, None)),
        (2, election(None, 1), (True, None)),
        (2, election({}), (False, [])),
    ],
)
async def test_an_election_is_passed_to_the_controller(
    world: World, version: int, body: dict[str, Any], question: Any
) -> None:
    assert elected(await world.call(ApiKey.ELECT_LEADERS, version, body)) == {}
    assert world.controller.asked == [question]


async def test_an_election_times_out_if_this_broker_does_not_learn_of_the_leader(world: World) -> None:
    world.update([state("t", 0, 2, (1, 2)), state("t", 1, -1, (2, 3))])
    world.controller.answers = {TP("t", 0): None}
    answer = await world.call(ApiKey.ELECT_LEADERS, 2, election({"t": [0]}, timeout=SHORT_MS))
    assert elected(answer) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
    world.controller.answers = {TP("t", 0): None, TP("t", 1): None}
    world.controller.before_answer = lambda: world.update([state("t", 0, 2, (1, 2), epoch=1)])
    answer = await world.call(ApiKey.ELECT_LEADERS, 2, election({"t": [0, 1]}, 1, SHORT_MS))
    assert elected(answer) == {("t", 0): 0, ("t", 1): ErrorCode.REQUEST_TIMED_OUT}


@pytest.mark.parametrize("wanted", [{"t": [0, 1]}, None])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_only_the_controller_elects(world: World, wanted: Mapping[str, Sequence[int]] | None, when: str) -> None:
    """Each partition has NOT_CONTROLLER, as in Kafka; also if the broker stops being controller before the answer."""
    if when == "before":
        world.controller.is_active = False
    else:
        world.controller.before_answer = lambda: setattr(world.controller, "is_active", False)
    answer = await world.call(ApiKey.ELECT_LEADERS, 2, election(wanted))
    assert answer.error_code == 0
    assert elected(answer) == {("t", 0): ErrorCode.NOT_CONTROLLER, ("t", 1): ErrorCode.NOT_CONTROLLER}


async def test_an_unknown_election_type_is_refused(world: World) -> None:
    answer = await world.call(ApiKey.ELECT_LEADERS, 2, election({"t": [0]}, 5))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert elected(answer) == {("t", 0): ErrorCode.INVALID_REQUEST}
    assert world.controller.asked == []


async def test_a_controller_that_does_not_answer_in_time(world: World) -> None:
    """CTL-14: ZooKeeper is away."""
    world.controller.hangs = True
    answer = await world.call(ApiKey.ELECT_LEADERS, 2, election({"t": [0]}, timeout=SHORT_MS))
    assert elected(answer) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
    answer = await world.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": SHORT_MS, "topics": []})
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


# -- reassignments --------------------------------------------------------------------------------------------------------


async def test_reassignments_are_started_and_cancelled(world: World) -> None:
    """CTL-11: null replicas cancel a reassignment. Of a partition named twice, the last replicas count."""
    world.controller.answers = {
        TP("t", 0): None,
        TP("u", 4): KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "none"),
        TP("t", 1): KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "why"),
    }
    topics = [
        {
            "name": "t",
            "partitions": [
                {"partition_index": 0, "replicas": [9]},
                {"partition_index": 0, "replicas": [3, 1]},
                {"partition_index": 1, "replicas": []},
            ],
        },
        {"name": "u", "partitions": [{"partition_index": 4, "replicas": None}]},
    ]
    answer = await world.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": LONG_MS, "topics": topics})
    assert world.controller.asked == [{TP("t", 0): (3, 1), TP("t", 1): (), TP("u", 4): None}]
    assert (answer.error_code, answer.error_message) == (0, "")
    rows = {
        (t.name, p.partition_index): (p.error_code, p.error_message) for t in answer.responses for p in t.partitions
    }
    assert rows == {("t", 0): (0, None), ("t", 1): (39, "why"), ("u", 4): (85, "none")}


@pytest.mark.parametrize(("version", "asked", "allowed"), [(0, {}, True), (1, {}, True), (1, {"allow": False}, False)])
async def test_the_factor_may_change_unless_the_request_forbids_it(
    world: World, version: int, asked: dict[str, bool], allowed: bool
) -> None:
    """KIP-860."""
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [3]}]}]
    fields = {f"{name}_replication_factor_change": value for name, value in asked.items()}
    body = {"timeout": LONG_MS, "topics": topics, **fields}
    answer = await world.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, body)
    assert world.controller.may_change_factor is allowed
    assert getattr(answer, "allow_replication_factor_change", True) is allowed


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, [("t", 0), ("t", 1), ("u", 0)]), ([], []), ([("t", [1, 9]), ("nope", [0])], [("t", 1)])],
)
async def test_reassignments_are_listed(
    world: World, wanted: list[tuple[str, list[int]]] | None, expected: list[tuple[str, int]]
) -> None:
    assignment = Assignment((1, 2, 0), adding=(2,), removing=(0,))
    world.controller.moving = dict.fromkeys([TP("t", 1), TP("u", 0), TP("t", 0)], assignment)
    topics = None if wanted is None else [{"name": t, "partition_indexes": numbers} for t, numbers in wanted]
    answer = await world.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": LONG_MS, "topics": topics})
    rows = [(topic.name, row) for topic in answer.topics for row in topic.partitions]
    assert [(name, row.partition_index) for name, row in rows] == expected
    assert all((row.replicas, row.adding_replicas, row.removing_replicas) == ((1, 2, 0), (2,), (0,)) for _, row in rows)


async def test_only_the_controller_reassigns(world: World) -> None:
    """The whole answer has NOT_CONTROLLER, as in Kafka."""
    world.controller.is_active = False
    body = {"timeout": LONG_MS, "topics": []}
    for api_key in (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS):
        answer = await world.call(api_key, 0, body)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        assert answer.error_message
