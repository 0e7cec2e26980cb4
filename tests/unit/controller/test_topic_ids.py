"""Topics without an id, as tools before Kafka 2.8 create them, and topics whose id such a tool removes (KIP-516, CTL-6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from controller import broker_channels
from protocol.errors import ErrorCode
from protocol.rpc.messages import LeaderAndIsrRequest
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import ConnectionLoss, DeleteOp, Op, SetOp
from protocol.zk.znodes import DeleteTopicZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster, on_cluster, running, scenario
from tests.support.moving_replicas import ask, assignment_of, catch_up, check_finished, moving, on_topic_t
from tests.support.persisted_steps import (
    MOMENTS,
    PersistedSteps,
    at_multi,
    depose_controller,
    kill_controller,
    lose_answers,
)


@pytest.fixture(autouse=True)
def controllers_retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_channels, "RETRY_S", 0)


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[MemoryCluster]:
    """The controller is broker 4, which has no replica."""
    return running(4, 1, 2, 3)


TP = TopicPartition("t", 0)
ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"
NODE = TopicZNode.path("t")


def rewrite(cluster: MemoryCluster, assignment: Mapping[int, Assignment] | None = None) -> None:
    """Writes the node as Kafka 2.4 to 2.7 do: version 2, without the id. By default with the assignment that the node has."""
    found = TopicZNode.decode(cluster.server.nodes[NODE].data)[1] if NODE in cluster.server.nodes else {}
    cluster.server.ensure(NODE, TopicZNode.encode(None, found | dict(assignment or {})))


def written(cluster: MemoryCluster) -> list[str]:
    """Where each id that was written came from."""
    return [row["source"] for row in cluster.events.of("topic_id_written") if row["topic"] == "t"]


def forget_ids(cluster: MemoryCluster) -> None:
    """No log and no broker has ever had an id, as in a cluster of Kafka 2.7."""
    for broker in cluster.disks.values():
        broker.topic_ids.clear()
        broker.known_topic_ids.clear()


# -- a topic that never had one ---------------------------------------------------------------------------------------


@on_cluster()
async def test_a_new_topic_gets_its_id_before_its_partitions_get_leaders(cluster: MemoryCluster) -> None:
    rewrite(cluster, {0: Assignment((2, 3))})
    await cluster.settle()
    topic_id = cluster.topic_id("t")
    assert topic_id is not None
    led = [r for r in cluster.running[3].requests if isinstance(r, LeaderAndIsrRequest) and r.partitions]
    assert [r.topic_ids for r in led] == [{"t": topic_id}]
    assert cluster.state("t").leader_epoch == 0
    assert written(cluster) == ["new topic"]


@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("disturb", [kill_controller, depose_controller, lose_answers])
@on_cluster()
async def test_a_new_topic_has_one_id_whenever_the_controller_dies(
    cluster: MemoryCluster, step: int, moment: str, disturb: Callable[[MemoryCluster], None]
) -> None:
    """The multis: the id, two nodes above the state, the state."""
    steps = TopicWrites(cluster)
    at_multi(step, moment, disturb)(cluster, steps)
    rewrite(cluster, {0: Assignment((2, 3))})
    await cluster.settle()
    assert len(steps.multis) > step
    assert ids_written(cluster) == {cluster.topic_id("t")}


def ids_written(cluster: MemoryCluster) -> set[str | None]:
    """Every id that topic t has ever had in ZooKeeper."""
    writes = [op for _, ops in cluster.server.writes for op in ops if isinstance(op, SetOp) and op.path == NODE]
    return {TopicZNode.decode(op.data)[0] for op in writes}


class TopicWrites(PersistedSteps):
    """Counts all multis that write at or below the node of a topic."""

    def kind_of(self, ops: Sequence[Op]) -> str | None:
        paths = [op.path for op in ops[1:] if op.path.startswith(f"{TopicZNode.PARENT}/")]
        return paths[0] if paths else None


# -- the controller knows the id --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@on_topic_t()
async def test_a_tool_that_adds_partitions_does_not_cost_the_id(cluster: MemoryCluster, version: int) -> None:
    """CTL-8."""
    topic_id = cluster.topic_id("t")
    cluster.server.ensure(NODE, json.dumps({"version": version, "partitions": {"0": [1, 2], "1": [3, 4]}}).encode())
    await cluster.settle()
    assert cluster.topic_id("t") == topic_id
    assert cluster.state("t", 1).isr == (3, 4)
    assert written(cluster) == ["new topic", "known to the controller"]


@pytest.mark.parametrize("is_stale", [True, False])
@on_topic_t()
async def test_a_tool_that_writes_during_a_move_costs_neither_id_nor_move(
    cluster: MemoryCluster, is_stale: bool
) -> None:
    """CTL-10: the node has the only record of the move. A stale tool writes what it read before the move."""
    topic_id = cluster.topic_id("t")
    assert await ask(cluster, {TP: (3, 4)}) == {TP: ErrorCode.NONE}
    await cluster.settle()
    under_way = assignment_of(cluster, TP)
    replicas = (1, 2) if is_stale else under_way.replicas
    cluster.server.ensure(NODE, TopicZNode.encode(None, {0: Assignment(replicas)}))
    await cluster.settle()
    assert cluster.topic_id("t") == topic_id
    assert assignment_of(cluster, TP) == under_way
    cluster.crash(cluster.controller)
    await cluster.settle()
    assert moving(cluster) == {TP: under_way}
    await cluster.start(1)
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 4)})


@on_topic_t()
async def test_a_move_that_meets_a_node_without_an_id_is_written_with_the_id(cluster: MemoryCluster) -> None:
    """CTL-10: the tool writes just before the controller does."""
    topic_id = cluster.topic_id("t")
    session = cluster.sessions[cluster.controller]

    def once(_: Sequence[Op]) -> None:
        session.before_multi = lambda ops: None
        rewrite(cluster)

    session.before_multi = once
    assert await ask(cluster, {TP: (3, 4)}) == {TP: ErrorCode.NONE}
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 4)})
    assert cluster.topic_id("t") == topic_id


@on_topic_t()
async def test_a_tool_that_writes_again_and_again_loses(cluster: MemoryCluster) -> None:
    """Each write of the id is conditional on the node that was read: no partition of the tool's is lost."""
    topic_id = cluster.topic_id("t")
    session = cluster.sessions[cluster.controller]
    rounds = iter(range(1, 4))

    def again(ops: Sequence[Op]) -> None:
        if any(isinstance(op, SetOp) and op.path == NODE for op in ops):
            partition = next(rounds, None)
            if partition is not None:
                rewrite(cluster, {partition: Assignment((2, 3))})

    session.before_multi = again
    rewrite(cluster)
    await cluster.settle()
    assert cluster.topic_id("t") == topic_id
    assert {tp.partition for tp in cluster.states()} == {0, 1, 2, 3}


@pytest.mark.parametrize("is_known", [True, False])
@on_topic_t(5, 1, 2, 3, 4)
async def test_a_topic_created_again_without_an_id_is_another_topic(cluster: MemoryCluster, is_known: bool) -> None:
    """FLT-36: nothing exists below its node. It does not get the id of the topic whose node was removed by hand.

    The controller knew the id of that topic, or was waiting for the answer of a broker.
    """
    topic_id = cluster.topic_id("t")
    if not is_known:
        forget_ids(cluster)
        await lost_and_answered_by_1(cluster)
    cluster.server.remove(NODE)
    rewrite(cluster, {0: Assignment((4, 3))})
    await cluster.until(lambda: NODE in cluster.server.nodes and cluster.topic_id("t"))
    await reached_again(cluster)
    assert cluster.topic_id("t") != topic_id
    assert cluster.state("t").leader_epoch == 0
    assert TP in cluster.running[1].stopped
    assert TP in cluster.running[2].stopped
    assert written(cluster) == ["new topic", "new topic"]


@on_topic_t()
async def test_a_topic_created_again_during_the_write_is_another_topic(cluster: MemoryCluster) -> None:
    """FLT-36: its node has the same version as the one that was read."""
    topic_id = cluster.topic_id("t")
    session = cluster.sessions[cluster.controller]

    def once(_: Sequence[Op]) -> None:
        session.before_multi = lambda ops: None
        version = cluster.server.nodes[NODE].version
        cluster.server.remove(NODE)
        while NODE not in cluster.server.nodes or cluster.server.nodes[NODE].version < version:
            rewrite(cluster, {0: Assignment((4, 3))})

    session.before_multi = once
    rewrite(cluster)
    await cluster.settle()
    assert cluster.topic_id("t") not in (None, topic_id)
    assert assignment_of(cluster, TP).replicas == (4, 3)


# -- the controller does not know it ----------------------------------------------------------------------------------


async def lost_before_the_term(cluster: MemoryCluster, *, crashing: Sequence[int] = ()) -> None:
    """The controller dies, with these brokers, and the tool writes before the next one is elected."""
    for broker_id in (cluster.controller, *crashing):
        cluster.crash(broker_id)
    rewrite(cluster)
    await cluster.settle()


async def lost_and_answered_by_1(cluster: MemoryCluster) -> None:
    """Like `lost_before_the_term`, but the next controller reaches broker 1 and not broker 2."""
    cluster.network.rejected.add(2)
    cluster.crash(cluster.controller)
    rewrite(cluster)
    await cluster.until(lambda: len(cluster.events.of("controller_in_office")) == 2 and answers(cluster) == {1})


def answers(cluster: MemoryCluster) -> set[int] | None:
    """The brokers that have answered for topic t, while the controller waits for others. None: it waits for nobody."""
    (state,) = [controller.cluster for controller in cluster.controllers.values() if controller.cluster is not None]
    return set(state.without_id["t"]) if "t" in state.without_id else None


async def reached_again(cluster: MemoryCluster) -> None:
    cluster.network.rejected.clear()
    await cluster.until(lambda: not cluster.controllers[cluster.controller].queued_requests.get(2))
    await cluster.settle()


async def test_an_id_lost_between_two_terms_comes_from_the_brokers(cluster: MemoryCluster) -> None:
    """Broker 1 has restarted since: its metadata has no id, its log has one."""
    await cluster.create_topic("t", {0: (1, 2), 1: (3, 1)})
    topic_id, before = cluster.topic_id("t"), cluster.states()
    await lost_before_the_term(cluster)
    assert cluster.topic_id("t") == topic_id
    assert cluster.states() == before, "no epoch was raised for it"
    assert len(written(cluster)) == 2
    assert written(cluster)[1].startswith("known to broker")


async def test_a_topic_that_no_broker_knows_by_an_id_gets_a_new_one(cluster: MemoryCluster) -> None:
    """A cluster that was upgraded from Kafka 2.7: each replica accepts the id in its leader epoch."""
    await cluster.create_topic("t", {0: (1, 2), 1: (3, 1)})
    before = cluster.states()
    forget_ids(cluster)
    await lost_before_the_term(cluster)
    assert written(cluster)[1:] == ["no log has one"]
    assert cluster.states() == before
    assert cluster.running[2].topic_ids == {TP: cluster.topic_id("t")}
    refused = [row["partitions"] for row in cluster.events.of("control_request_refused")]
    assert refused == []


async def test_no_id_is_made_before_every_in_sync_broker_has_answered(cluster: MemoryCluster) -> None:
    """A second id would make the logs with the first one useless."""
    await cluster.create_topic("t", {0: (1, 2)})
    topic_id = cluster.topic_id("t")
    cluster.disks[1].topic_ids.clear()
    cluster.disks[1].known_topic_ids.clear()
    await lost_and_answered_by_1(cluster)
    assert cluster.topic_id("t") is None
    await reached_again(cluster)
    assert cluster.topic_id("t") == topic_id


async def test_a_broker_that_dies_instead_of_answering_is_not_waited_for(cluster: MemoryCluster) -> None:
    """Its partitions are offline. When it is back, its log has another id and is set aside or refused, as any other topic's."""
    await cluster.create_topic("t", {0: (1,), 1: (2,)})
    forget_ids(cluster)
    await lost_and_answered_by_1(cluster)
    assert cluster.topic_id("t") is None
    cluster.crash(2)
    await cluster.settle()
    assert cluster.topic_id("t") is not None


async def test_a_broker_that_leaves_the_isr_instead_of_answering_is_not_waited_for(cluster: MemoryCluster) -> None:
    """FLT-11: nothing is copied without an id, so a leader takes such a broker out of the ISR before long."""
    await cluster.create_topic("t", {0: (1, 2)})
    forget_ids(cluster)
    await lost_and_answered_by_1(cluster)
    cluster.leader_writes_isr("t", 0, (1,))
    await cluster.until(lambda: cluster.topic_id("t"))
    await reached_again(cluster)
    assert written(cluster)[1:] == ["no log has one"]


async def test_the_log_of_an_earlier_topic_does_not_count(cluster: MemoryCluster) -> None:
    """FLT-36: broker 2 was down when the topic was deleted and created again, and is not in the ISR."""
    cluster.put_topic("t", {0: (1, 2)}, ID_2)
    await cluster.settle()
    cluster.leader_writes_isr("t", 0, (1,))
    await cluster.settle()
    forget_ids(cluster)
    cluster.disks[2].topic_ids[TP] = ID_1
    cluster.disks[1].topic_ids[TP] = ID_2
    await lost_before_the_term(cluster)
    assert cluster.topic_id("t") == ID_2
    assert cluster.running[2].topic_ids[TP] == ID_2


async def test_an_id_that_a_person_writes_back_is_adopted(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (1, 2)})
    forget_ids(cluster)
    await lost_and_answered_by_1(cluster)
    cluster.server.ensure(NODE, TopicZNode.encode(ID_1, {0: Assignment((1, 2))}))
    await cluster.until(lambda: cluster.running[1].topic_ids.get(TP) == ID_1)
    await reached_again(cluster)
    assert cluster.topic_id("t") == ID_1


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("disturb", [kill_controller, depose_controller, lose_answers])
@on_cluster(5, 4, 1, 2, 3)
async def test_a_lost_id_comes_back_whenever_the_next_controller_dies(
    cluster: MemoryCluster, has_ids: bool, moment: str, disturb: Callable[[MemoryCluster], None]
) -> None:
    """There is one multi, which writes the id. If it is written and was not announced, the next controller announces it."""
    await cluster.create_topic("t", {0: (1, 2), 1: (3, 1)})
    topic_id = cluster.topic_id("t")
    if not has_ids:
        forget_ids(cluster)
    steps = IdWrites(cluster)
    at_multi(0, moment, disturb)(cluster, steps)
    await lost_before_the_term(cluster)
    assert steps.multis
    assert ids_written(cluster) == {topic_id} | {cluster.topic_id("t")}
    assert not has_ids or cluster.topic_id("t") == topic_id


class IdWrites(PersistedSteps):
    """Counts the multis that write the node of the topic."""

    def kind_of(self, ops: Sequence[Op]) -> str | None:
        return NODE if any(isinstance(op, SetOp) and op.path == NODE for op in ops) else None


@on_topic_t(5, 1, 2, 3, 4)
async def test_a_move_continues_after_the_id_was_lost_between_two_terms(cluster: MemoryCluster) -> None:
    """CTL-10, CTL-2. The tool keeps what it read of the move, as Kafka 2.4 to 2.7 do."""
    topic_id = cluster.topic_id("t")
    assert await ask(cluster, {TP: (3, 4)}) == {TP: ErrorCode.NONE}
    await cluster.settle()
    await lost_before_the_term(cluster)
    await catch_up(cluster)
    check_finished(cluster, {TP: (3, 4)})
    assert cluster.topic_id("t") == topic_id


# -- deletions --------------------------------------------------------------------------------------------------------


def deleted_after(step: int, moment: str, disturb: Callable[[MemoryCluster], None]) -> None:
    """The id is lost just before step `step` of the deletion, and something else happens at it."""

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
        steps = TopicWrites(cluster)

        def act(living: MemoryCluster) -> None:
            if NODE in living.server.nodes:
                rewrite(living)
            disturb(living)

        at_multi(step, moment, act)(cluster, steps)
        cluster.server.ensure(DeleteTopicZNode.path("t"))
        await cluster.settle()
        for broker_id in (1, 2, 3, 4):
            if broker_id not in cluster.running:
                await cluster.start(broker_id)
        assert len(steps.multis) > step
        assert NODE not in cluster.server.nodes
        assert DeleteTopicZNode.path("t") not in cluster.server.nodes
        assert all(not broker.replicas for broker in cluster.disks.values())

    scenario(play, 4, 1, 2, 3)


def nothing(_: MemoryCluster) -> None:
    """Only the id is lost."""


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("disturb", [nothing, kill_controller, lose_answers])
def test_a_deletion_ends_whenever_the_id_is_lost(
    step: int, moment: str, disturb: Callable[[MemoryCluster], None]
) -> None:
    """CTL-9, INV-26. Every write of the tool needs the node, so it cannot come after the last step."""
    deleted_after(step, moment, disturb)


async def test_a_deletion_that_waits_is_continued_without_an_id(cluster: MemoryCluster) -> None:
    """CTL-9: broker 3 is down with a replica while the controller changes, and the node has no id."""
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.kill(3)
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert NODE in cluster.server.nodes
    await lost_before_the_term(cluster)
    assert answers(cluster) is None
    await cluster.start(3)
    assert NODE not in cluster.server.nodes
    assert not cluster.running[3].replicas


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_last_step_without_an_answer_is_done_again_if_it_was_not_done(
    cluster: MemoryCluster, is_applied: bool
) -> None:
    """BUG-5: the node without an id is the topic's own as long as the request to delete exists. Otherwise it is another topic's."""
    await cluster.create_topic("t", {0: (2, 3)}, {})
    topic_id = cluster.topic_id("t")
    session = cluster.sessions[cluster.controller]

    def lose(ops: Sequence[Op]) -> None:
        if not any(isinstance(op, DeleteOp) and op.path == NODE for op in ops):
            return
        session.before_multi = lambda ops: None
        if is_applied:
            cluster.server.multi(ops, session.session_id)
        rewrite(cluster, {0: Assignment((3, 2))})
        raise ConnectionLoss("the answer was lost")

    session.before_multi = lose
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert DeleteTopicZNode.path("t") not in cluster.server.nodes
    assert (NODE in cluster.server.nodes) == is_applied
    if is_applied:
        assert cluster.topic_id("t") not in (None, topic_id)
        assert cluster.state("t").leader == 3
