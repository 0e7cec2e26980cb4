"""Requests of admins through `/admin/reassign_partitions` and through the API (CTL-10, CTL-11). Bad input loses nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from protocol.errors import ErrorCode
from protocol.rpc.messages import StopReplicaRequest
from protocol.types import Assignment, TopicPartition
from protocol.zk.znodes import ReassignPartitionsZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster
from tests.support.moving_replicas import (
    Steps,
    ask,
    assignment_of,
    catch_up,
    check_finished,
    moved_to,
    moving,
    request,
    requested,
    with_topic_t,
)
from tests.support.refusals import refused

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[MemoryCluster]:
    return with_topic_t()


# -- /admin/reassign_partitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("t", 0, [1, 2])], "already has the replicas [1, 2]"),
        ([("t", 0, [3, 9])], "not alive: [9]"),
        ([("t", 7, [3])], "does not exist"),
        ([("t", 0, [3]), ("t", 0, [4])], "named more than once"),
    ],
)
async def test_a_refused_row_is_logged_and_removed(
    cluster: MemoryCluster, rows: list[tuple[str, int, list[int]]], reason: str
) -> None:
    """The valid row beside it is carried out. The node is removed with its last row."""
    await cluster.create_topic("good", {0: (1,)})
    good = TopicPartition("good", 0)
    text = ",".join(
        f'{{"topic":"{topic}","partition":{partition},"replicas":{replicas}}}'
        for topic, partition, replicas in [("good", 0, [2]), *rows]
    )
    cluster.server.ensure(ReassignPartitionsZNode.PATH, f'{{"version":1,"partitions":[{text}]}}'.encode())
    await cluster.settle()
    assert requested(cluster) == [(good, (2,))]
    assert assignment_of(cluster, TP) == Assignment((1, 2))
    (told,) = cluster.events.of("reassignment_refused")
    assert reason in told["reason"]
    await catch_up(cluster)
    check_finished(cluster, {good: (2,), TP: (1, 2)})
    request(cluster, {TP: (3, 2)})
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 2)})


async def test_a_request_through_the_api_replaces_one_in_the_node(cluster: MemoryCluster) -> None:
    """The older request is removed from the node, so it does not come back."""
    request(cluster, {TP: (3, 2)})
    await cluster.settle()
    await moved_to(cluster, (4, 2))
    assert requested(cluster) is None
    await catch_up(cluster)
    check_finished(cluster, {TP: (4, 2)})


async def test_a_new_controller_handles_a_request_that_nobody_has_read(cluster: MemoryCluster) -> None:
    """CTL-2."""
    cluster.crash(1)
    request(cluster, {TP: (3, 2), TopicPartition("nosuch", 0): (3,)})
    await cluster.settle()
    assert requested(cluster) == [(TP, (3, 2))]
    await catch_up(cluster)
    await cluster.start(1)
    check_finished(cluster, {TP: (3, 2)})


@pytest.mark.parametrize(
    ("written", "complete"),
    [
        (Assignment((1, 2), (9,), ()), True),  # adds what is no replica
        (Assignment((1, 2), (), (9,)), True),  # removes what is none
        (Assignment((1, 2), (1,), ()), True),
        (Assignment((1, 2), (), (1, 2)), False),  # removes all: there is no target, and nothing is deleted
    ],
)
async def test_moves_written_into_the_topics_node_by_hand(
    cluster: MemoryCluster, written: Assignment, complete: bool
) -> None:
    """A new controller finds them. Nothing is lost, and an admin can cancel them."""
    cluster.crash(1)
    cluster.server.ensure(TopicZNode.path("t"), TopicZNode.encode(None, {0: written}))
    await cluster.settle()
    await cluster.start(1)
    await catch_up(cluster)
    if not complete:
        assert moving(cluster) == {TP: written}
        assert await ask(cluster, {TP: None}) == {TP: ErrorCode.NONE}
        await cluster.settle()
    check_finished(cluster, {TP: (1, 2)})


# -- the API ----------------------------------------------------------------------------------------------------------


async def test_only_the_controller_answers(cluster: MemoryCluster) -> None:
    with refused(ErrorCode.NOT_CONTROLLER):
        await cluster.controllers[2].alter_reassignments({TP: (3,)})
    with refused(ErrorCode.NOT_CONTROLLER):
        cluster.controllers[2].reassignments()


async def test_each_partition_gets_its_own_answer(cluster: MemoryCluster) -> None:
    nosuch = TopicPartition("nosuch", 0)
    empty, dead, other = (TopicPartition("t", partition) for partition in (1, 2, 3))
    cluster.put_topic("t", {0: (1, 2), 1: (1,), 2: (1,), 3: (1,)})
    await cluster.settle()
    assert await ask(cluster, {TP: (3, 2), nosuch: (1,), empty: (), dead: (9,), other: None}) == {
        TP: ErrorCode.NONE,
        nosuch: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        empty: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        dead: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        other: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert await ask(cluster, {}) == {}
    assert moving(cluster).keys() == {TP}
    await catch_up(cluster)


async def test_many_partitions_move_in_few_writes(cluster: MemoryCluster) -> None:
    """100 partitions of one topic: at most 4 writes of the node, 4 multis of states, and 2 StopReplicas to a broker."""
    await cluster.create_topic("many", dict.fromkeys(range(100), (1, 2)))
    targets = {TopicPartition("many", partition): (3, 4) for partition in range(100)}
    steps = Steps(cluster)
    assert set((await ask(cluster, targets)).values()) == {ErrorCode.NONE}
    await cluster.settle()
    for tp in targets:
        cluster.leader_writes_isr(tp.topic, tp.partition, (1, 2, 3, 4))
    await cluster.settle()
    check_finished(cluster, targets)
    assert steps.multis.count("topic") <= 4
    assert steps.multis.count("state") <= 4
    stops = [r for r in cluster.running[1].requests if isinstance(r, StopReplicaRequest)]
    assert sum(len(r.partitions) for r in stops) == 100
    assert len(stops) <= 2
