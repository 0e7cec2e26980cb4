"""Whatever happens to brokers, leaders, sessions and answers, in any order: the cluster ends sound (INV-4, 7, 8, 9, 27)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller import announcements, cluster_state, cluster_store, term
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.session import CheckOp, CreateOp, SetOp
from protocol.zk.znodes import ControllerEpochZNode, ControllerZNode, PartitionStateZNode
from tests.support.memory_cluster import MemoryCluster

BROKERS = (1, 2, 3)
ASSIGNMENTS = ((1, 2, 3), (2, 3, 1), (3, 1), (2,), (1, 3))

step = st.one_of(
    st.tuples(st.just("crash"), st.sampled_from(BROKERS)),
    st.tuples(st.just("start"), st.sampled_from(BROKERS)),
    st.tuples(st.just("bounce"), st.sampled_from(BROKERS)),
    st.tuples(st.just("expire"), st.sampled_from(BROKERS)),
    st.tuples(st.just("stop cleanly"), st.sampled_from(BROKERS)),
    st.tuples(st.just("depose"), st.just(0)),
    st.tuples(st.just("lose answers"), st.integers(1, 3)),
    st.tuples(st.just("shrink"), st.integers(0, len(ASSIGNMENTS) - 1)),
    st.tuples(st.just("expand"), st.integers(0, len(ASSIGNMENTS) - 1)),
    st.tuples(st.just("turns"), st.integers(1, 40)),
    st.tuples(st.just("new topic"), st.integers(0, 5)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=14))
def test_any_history_ends_sound(steps: Sequence[tuple[str, int]]) -> None:
    asyncio.run(play(steps))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, max_size=14))
def test_any_history_ends_sound_though_others_have_their_turn_after_each_partition(
    steps: Sequence[tuple[str, int]],
) -> None:
    """NET-4: what a controller does for ten thousand partitions it does in slices, here of one."""
    with (
        patch.multiple(term, ITEMS_AT_ONCE=1, DECISIONS_AT_ONCE=1, SLICES_WRITTEN_AT_ONCE=3),
        patch.multiple(cluster_store, STATES_IN_A_SLICE=2, STATES_AT_ONCE=1),
        patch.object(announcements, "ROWS_AT_ONCE", 1),
        patch.object(cluster_state, "LOOKS_AT_ONCE", 1),
    ):
        asyncio.run(play(steps))


async def play(steps: Sequence[tuple[str, int]]) -> None:
    cluster = MemoryCluster()
    try:
        await cluster.start(*BROKERS)
        await cluster.create_topic("t", dict(enumerate(ASSIGNMENTS)))
        for what, which in steps:
            await take(cluster, what, which)
        for session in cluster.sessions.values():
            session.lose_answers = 0
        await asyncio.sleep(0.12 if any(what == "lose answers" for what, _ in steps) else 0)
        for broker_id in BROKERS:
            if broker_id not in cluster.running:
                await cluster.start(broker_id)
        await cluster.settle()
        cluster.check()
        assert all(state.leader != -1 for state in cluster.states().values()), "every broker lives: all are led"
        check_writes(cluster)
    finally:
        await cluster.close()


async def take(cluster: MemoryCluster, what: str, which: int) -> None:
    match what:
        case "crash" if which in cluster.running and len(cluster.running) > 1:
            cluster.crash(which)
        case "start" if which not in cluster.running:
            await cluster.start(which)
        case "bounce" if which in cluster.running:
            await cluster.bounce(which)
        case "expire" if which in cluster.running:
            cluster.expire(which)
        case "stop cleanly" if which in cluster.running and len(cluster.running) > 1:
            await cluster.controllers[which].stop()
            cluster.crash(which)
        case "depose" if ControllerZNode.PATH in cluster.server.nodes:
            cluster.delete_tree(ControllerZNode.PATH)
        case "lose answers":
            for session in cluster.sessions.values():
                session.lose_answers = which
        case "shrink" | "expand":
            leader_acts(cluster, which, what)
        case "turns":
            for _ in range(which):
                await asyncio.sleep(0)
        case "new topic":
            cluster.put_topic(f"u{which}", {0: ASSIGNMENTS[which % len(ASSIGNMENTS)]})


def leader_acts(cluster: MemoryCluster, partition: int, what: str) -> None:
    """A leader that knows the newest state, as its conditional write makes sure, changes its ISR."""
    tp = TopicPartition("t", partition)
    state = cluster.state("t", partition)
    leader = cluster.running.get(state.leader)
    if leader is None or tp not in leader.replicas or leader.replicas[tp].leader_epoch != state.leader_epoch:
        return
    if what == "shrink":
        isr: tuple[int, ...] = (state.leader,)
    else:
        isr = (*state.isr, *(r for r in ASSIGNMENTS[partition] if r not in state.isr and r in cluster.running))
    if isr != state.isr:
        cluster.leader_writes_isr("t", partition, isr)


def check_writes(cluster: MemoryCluster) -> None:
    """Every write of a state by a controller was fenced; leader epochs rise by one with it, and have one leader each."""
    leaders: dict[tuple[str, int], int] = {}
    epochs: dict[str, int] = {}
    for _, operations in cluster.server.writes:
        for operation in operations:
            if isinstance(operation, CreateOp | SetOp) and operation.path.endswith("/state"):
                assert isinstance(operations[0], CheckOp)
                assert operations[0].path == ControllerEpochZNode.PATH
                state: LeaderAndIsr = PartitionStateZNode.decode(operation.data, 0)
                assert state.leader_epoch == epochs.get(operation.path, -1) + 1
                epochs[operation.path] = state.leader_epoch
                assert leaders.setdefault((operation.path, state.leader_epoch), state.leader) == state.leader
