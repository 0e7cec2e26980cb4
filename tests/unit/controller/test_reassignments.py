"""CTL-10 step by step, other targets, cancellations, and what a move waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from protocol.errors import ErrorCode
from protocol.network_client import Disconnected
from protocol.rpc.messages import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import Op, SetOp
from protocol.zk.znodes import DeleteTopicZNode, PartitionStateZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster
from tests.support.moving_replicas import (
    Steps,
    ask,
    assignment_of,
    catch_up,
    check_finished,
    let_in,
    moved_to,
    moving,
    on_topic_t,
    request,
    requested,
    with_topic_t,
)

TP = TopicPartition("t", 0)
ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[MemoryCluster]:
    return with_topic_t()


def steps_of(cluster: MemoryCluster, tp: TopicPartition = TP) -> list[int]:
    return [row["step"] for row in cluster.events.of("reassignment_step") if row["partition"] == str(tp)]


# -- the numbered steps -----------------------------------------------------------------------------------------------


async def test_step_1_the_node_has_the_target_first_then_the_replicas_to_remove(cluster: MemoryCluster) -> None:
    """CTL-10, as Kafka shows it while a partition moves."""
    steps = Steps(cluster)
    await moved_to(cluster, (3, 2))
    assert assignment_of(cluster, TP) == Assignment((3, 2, 1), (3,), (1,))
    assert moving(cluster) == {TP: Assignment((3, 2, 1), (3,), (1,))}
    assert steps.multis[0] == "topic"
    assert steps_of(cluster) == [1, 2, 3]
    await catch_up(cluster)


async def test_steps_2_and_3_all_replicas_get_a_new_epoch_and_the_added_one_is_marked_as_new(
    cluster: MemoryCluster,
) -> None:
    before = cluster.state("t")
    seen = {broker: len(stand_in.requests) for broker, stand_in in cluster.running.items()}
    await moved_to(cluster, (3, 2))
    state = cluster.state("t")
    assert (state.leader, state.isr) == (before.leader, before.isr)
    assert state.leader_epoch == before.leader_epoch + 1
    for broker in (1, 2, 3):
        new = [r for r in cluster.running[broker].requests[seen[broker] :] if isinstance(r, LeaderAndIsrRequest)]
        ((told,),) = [r.partitions for r in new]
        assert (told.replicas, told.adding, told.removing) == ((3, 2, 1), (3,), (1,))
        assert told.is_new == (broker == 3)
    assert not any(isinstance(r, LeaderAndIsrRequest) for r in cluster.running[4].requests[seen[4] :])
    assert cluster.running[4].metadata[TP].adding == (3,)
    await catch_up(cluster)


async def test_steps_5_to_9_the_leader_moves_the_isr_shrinks_and_then_logs_are_deleted(cluster: MemoryCluster) -> None:
    """INV-25: in this order; one write of the state, one LeaderAndIsr, then StopReplica(delete) with the newest epoch."""
    await moved_to(cluster, (3, 2))
    steps = Steps(cluster)
    await catch_up(cluster)
    assert steps.multis == ["state", "topic"]
    state = cluster.state("t")
    assert (state.leader, set(state.isr)) == (3, {2, 3})
    ((broker, stop),) = steps.stops
    assert broker == 1
    assert [(s.leader_epoch, s.delete) for s in stop.partitions] == [(state.leader_epoch, True)]
    assert steps_of(cluster) == [1, 2, 3, 5, 6, 7, 8, 9, 9, 10, 11, 12]


async def test_step_9_a_replica_stays_in_zookeeper_until_it_is_deleted(cluster: MemoryCluster) -> None:
    """Step 10 waits for the answer of a live broker, without a time limit."""
    await moved_to(cluster, (3, 2))
    steps = Steps(cluster)
    waited: list[Assignment] = []

    def at_stop(_: int, moment: str) -> None:
        waited.append(assignment_of(cluster, TP))
        assert moving(cluster) == {TP: Assignment((3, 2, 1), (3,), (1,))}

    steps.at_stop = at_stop
    await catch_up(cluster)
    assert waited == [Assignment((3, 2, 1), (3,), (1,))] * 2
    check_finished(cluster, {TP: (3, 2)})


@pytest.mark.parametrize("removed", ["dead", "dies", "cannot"])
async def test_step_9_does_not_wait_for_a_broker_that_is_dead_or_cannot_delete(
    cluster: MemoryCluster, removed: str
) -> None:
    """A dead broker deletes its log when it is back, because its full LeaderAndIsr does not name the log (LAI-6)."""
    await moved_to(cluster, (3, 1))
    steps = Steps(cluster)
    if removed == "dead":
        cluster.crash(2)
    elif removed == "dies":
        steps.at_stop = lambda index, moment: cluster.crash(2) if moment == "before" else None
    else:
        cluster.running[2].failing.add(TP)
    await catch_up(cluster)
    assert assignment_of(cluster, TP) == Assignment((3, 1))
    assert moving(cluster) == {}
    if removed == "cannot":
        told = [row["what"] for row in cluster.events.of("reassignment_step") if row["step"] == 9]
        assert told[-1] == "2 answered KAFKA_STORAGE_ERROR"
        cluster.running[2].failing.clear()
        cluster.crash(2)
    await cluster.start(2)
    check_finished(cluster, {TP: (3, 1)})


async def test_steps_10_to_12_the_node_the_request_and_the_metadata_of_all_brokers(cluster: MemoryCluster) -> None:
    request(cluster, {TP: (3, 2)})
    await cluster.settle()
    assert requested(cluster) == [(TP, (3, 2))]
    steps = Steps(cluster)
    await catch_up(cluster)
    assert steps.multis == ["state", "topic", "request"]
    assert requested(cluster) is None
    last = cluster.running[4].requests[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert [(row.replicas, row.adding, row.removing) for row in last.partitions] == [((3, 2), (), ())]


@pytest.mark.parametrize("end", ["complete", "cancelled"])
async def test_step_13_a_waiting_deletion_continues(cluster: MemoryCluster, end: str) -> None:
    """CTL-9: the topic is ineligible while it moves. After the request to delete it, no move of it can start or change."""
    await moved_to(cluster, (3, 2))
    if end == "cancelled":
        request(cluster, {TP: (3, 2)})
        await cluster.settle()
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert TP in moving(cluster)
    assert TopicZNode.path("t") in cluster.server.nodes
    assert await ask(cluster, {TP: (4, 2)}) == {TP: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await catch_up(cluster)
    assert TopicZNode.path("t") not in cluster.server.nodes
    assert requested(cluster) is None
    assert all(TP not in broker.replicas for broker in cluster.running.values())


# -- other targets and cancellations ----------------------------------------------------------------------------------


async def test_a_cancellation_restores_the_replicas_and_deletes_the_new_ones(cluster: MemoryCluster) -> None:
    await moved_to(cluster, (3, 4))
    let_in(cluster, but=(4,))
    await cluster.settle()
    steps = Steps(cluster)
    assert await ask(cluster, {TP: None}) == {TP: ErrorCode.NONE}
    await cluster.settle()
    assert steps.multis == ["state", "topic"], "out of the ISR before anybody forgets them"
    check_finished(cluster, {TP: (1, 2)})
    assert sorted(broker for broker, _ in steps.stops) == [3, 4]
    assert await ask(cluster, {TP: None}) == {TP: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}


@on_topic_t(2, 1, 3, 4)
async def test_a_cancellation_returns_the_leadership(cluster: MemoryCluster) -> None:
    """The added replica leads already when the move is cancelled."""
    await moved_to(cluster, (3, 4))
    let_in(cluster, but=(4,))
    await cluster.settle()
    await cluster.kill(1)
    assert cluster.state("t").leader == 3, "the first of AR that lives and is in sync"
    assert await ask(cluster, {TP: None}) == {TP: ErrorCode.NONE}
    assert cluster.state("t").leader == 2
    await cluster.start(1)
    await catch_up(cluster)
    check_finished(cluster, {TP: (1, 2)})


@pytest.mark.parametrize("target", [None, (4, 2)])
@on_topic_t(2, 1, 3, 4)
async def test_a_change_that_would_drop_the_only_replica_in_sync_is_refused(
    cluster: MemoryCluster, target: tuple[int, ...] | None
) -> None:
    """INV-4, INV-18: as in KRaft."""
    await moved_to(cluster, (3, 1))
    let_in(cluster)
    await cluster.settle()
    check_finished(cluster, {TP: (3, 1)})
    await moved_to(cluster, (4, 2))
    let_in(cluster, but=(2,))
    await cluster.settle()
    cluster.crash(1)
    await cluster.kill(3)
    assert cluster.state("t").leader == 4
    assert cluster.state("t").isr == (4,)
    before = cluster.server.nodes[TopicZNode.path("t")].data
    wanted = None if target is None else (2, 1)
    assert await ask(cluster, {TP: wanted}) == {TP: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert cluster.server.nodes[TopicZNode.path("t")].data == before
    assert cluster.state("t").leader == 4
    await cluster.start(1)
    await cluster.start(3)
    await catch_up(cluster)
    check_finished(cluster, {TP: (4, 2)})


async def test_a_cancellation_during_the_deletions(cluster: MemoryCluster) -> None:
    """Between steps 9 and 10 the target is in sync and the old replicas may be deleted, so the move cannot be cancelled."""
    await moved_to(cluster, (3, 2))
    handle, tried = cluster.running[1].handle, []

    def away(sent: ControlRequest) -> ControlResponse:
        if isinstance(sent, StopReplicaRequest):
            tried.append(sent)
            raise Disconnected("it does not answer")
        return handle(sent)

    cluster.running[1].handle = away  # type: ignore[method-assign]
    let_in(cluster)
    await cluster.until(lambda: tried)
    assert moving(cluster) == {TP: Assignment((3, 2, 1), (3,), (1,))}
    assert await ask(cluster, {TP: None}) == {TP: ErrorCode.NONE}
    cluster.running[1].handle = handle  # type: ignore[method-assign]
    await cluster.until(lambda: TP not in cluster.running[3].replicas)
    await asyncio.sleep(0.1)  # broker 1 is asked again
    await catch_up(cluster)
    check_finished(cluster, {TP: (2, 1)})


# -- what waits, and for whom -----------------------------------------------------------------------------------------


@on_topic_t(3, 4, 1, 2)
async def test_a_partition_without_a_live_leader_is_moved_when_it_has_one_again(cluster: MemoryCluster) -> None:
    """A move from brokers 1 and 2, which are dead, to 3 and 4 waits for one of the dead, so nothing is lost (INV-18)."""
    cluster.crash(1)
    await cluster.kill(2)
    state = cluster.state("t")
    assert state.leader == -1
    await moved_to(cluster, (3, 4))
    assert cluster.state("t").leader == -1
    assert set(cluster.state("t").isr) == set(state.isr)
    assert TP in moving(cluster)
    await cluster.start(*state.isr)
    await catch_up(cluster)
    await cluster.start(*({1, 2} - set(state.isr)))
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 4)})


async def test_a_partition_that_never_had_a_leader_gets_its_first_one(cluster: MemoryCluster) -> None:
    await cluster.kill(4)
    await cluster.create_topic("never", {0: (4,)})
    never = TopicPartition("never", 0)
    assert PartitionStateZNode.path(never) not in cluster.server.nodes
    assert await ask(cluster, {never: (3, 2)}) == {never: ErrorCode.NONE}
    await catch_up(cluster)
    check_finished(cluster, {never: (3, 2)})


async def test_the_isr_shrinks_just_before_the_hand_over_is_written(cluster: MemoryCluster) -> None:
    """The decision is made again, and the move waits (INV-25)."""
    await moved_to(cluster, (3, 2))
    steps = Steps(cluster)

    def at_multi(index: int, moment: str) -> None:
        if (index, moment) == (0, "before"):
            cluster.leader_writes_isr("t", 0, (1, 2))

    steps.at_multi = at_multi
    cluster.leader_writes_isr("t", 0, (1, 2, 3))
    await cluster.settle()
    assert TP in moving(cluster)
    assert steps.stops == []
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 2)})


async def test_a_move_is_not_written_to_a_new_topic_of_the_same_name(cluster: MemoryCluster) -> None:
    """FLT-36: the topic is deleted and created again just before its node is written."""
    cluster.put_topic("u", {0: (1, 2)}, ID_1)
    await cluster.settle()
    tp = TopicPartition("u", 0)

    def meanwhile(ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetOp) and op.path == TopicZNode.path("u") for op in ops):
            session.before_multi = lambda ops: None
            cluster.server.remove(TopicZNode.path("u"))
            cluster.put_topic("u", {0: (2, 1)}, ID_2)

    session = cluster.sessions[1]
    session.before_multi = meanwhile
    assert await ask(cluster, {tp: (3, 2)}) == {tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await cluster.settle()
    assert assignment_of(cluster, tp) == Assignment((2, 1))
    assert cluster.state("u").leader == 2


async def test_a_topic_removed_during_its_move_is_forgotten(cluster: MemoryCluster) -> None:
    request(cluster, {TP: (3, 2)})
    await cluster.settle()
    cluster.server.remove(TopicZNode.path("t"))
    await cluster.settle()
    assert moving(cluster) == {}
    assert requested(cluster) is None, "the next admin is not blocked"
