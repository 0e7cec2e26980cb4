"""CTL-16: what follows when a process is found dead. `tests/unit/protocol/failure_detection` tests how it is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from protocol.types import LeaderAndIsr
from protocol.zk.session import CheckOp, CreateOp, DeleteOp, Op, SessionState, SetOp
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, ControllerZNode
from tests.support.memory_cluster import MemoryCluster, on_cluster, running


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[MemoryCluster]:
    return running(fast_failure_detection=True)


def registered(cluster: MemoryCluster) -> set[int]:
    return {int(name) for name in cluster.server.children(BrokerIdZNode.PARENT)}


def watch_counts(cluster: MemoryCluster) -> dict[int, int]:
    """Broker -> the number of brokers that watch it."""
    return {broker: len(watches) for broker, watches in cluster.watches.of.items() if watches}


def deletions(cluster: MemoryCluster) -> list[list[Op]]:
    """The multis that deleted a registration or `/controller`."""
    paths = (BrokerIdZNode.PARENT + "/", ControllerZNode.PATH)
    return [
        list(ops)
        for _, ops in cluster.server.writes
        if any(isinstance(op, DeleteOp) and op.path.startswith(paths) for op in ops)
    ]


async def test_a_dead_broker_is_unregistered_while_its_session_lives(cluster: MemoryCluster) -> None:
    """CTL-5 follows from the watch, and the deletion is fenced (INV-9) and conditional on the version."""
    await cluster.create_topic("t", {0: (2, 3, 1)})
    session = await cluster.end_process(2)
    cluster.watches.refuse(2)
    await cluster.settle()
    assert registered(cluster) == {1, 3}
    assert cluster.state("t") == LeaderAndIsr(3, 1, (3, 1), 1, 1)
    assert session.state is SessionState.CONNECTED
    ((fence, deletion),) = deletions(cluster)
    assert isinstance(fence, CheckOp)
    assert fence.path == ControllerEpochZNode.PATH
    assert deletion == DeleteOp(BrokerIdZNode.path(2), 0)
    assert [row["broker"] for row in cluster.events.of("broker_found_dead")] == [2]
    session.expire()  # much later: nothing of it is left
    await cluster.settle()
    assert cluster.controller_epoch == 1


async def test_a_report_about_an_earlier_life_is_ignored(cluster: MemoryCluster) -> None:
    """STA-3, BUG-16: the broker started again before the controller looked."""
    (watch,) = (w for w in cluster.watches.of[2] if w is cluster.watches.of[2][0])
    found_dead = watch.found_dead
    session = await cluster.end_process(2)
    session.expire()
    await cluster.launch(2)  # its new node is not seen yet
    found_dead()
    await cluster.settle()
    found_dead()
    await cluster.settle()
    assert registered(cluster) == {1, 2, 3}
    assert deletions(cluster) == []


async def test_a_deposed_controller_unregisters_nobody(cluster: MemoryCluster) -> None:
    """INV-9, BUG-8: its epoch is checked in the same multi."""

    def depose(ops: Sequence[Op]) -> None:
        if any(isinstance(op, DeleteOp) and op.path == BrokerIdZNode.path(2) for op in ops):
            cluster.sessions[1].before_multi = lambda _: None
            cluster.server.remove(ControllerZNode.PATH)
            cluster.server.apply(SetOp(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(7)), 0)

    cluster.sessions[1].before_multi = depose
    cluster.watches.refuse(2)
    await cluster.settle()
    assert registered(cluster) == {1, 2, 3}
    assert cluster.controller_epoch == 8


async def test_a_broker_that_was_wrongly_judged_dead_is_not_judged_again(cluster: MemoryCluster) -> None:
    """A firewall refuses connections to a live broker. It registers again in its session, so only the end of the session counts."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.watches.refuse(2)
    await cluster.settle()
    assert registered(cluster) == {1, 3}
    cluster.register(2)
    await cluster.settle()
    assert cluster.state("t").leader == 3
    for _ in range(3):
        cluster.watches.refuse(2)
        await cluster.settle()
    assert registered(cluster) == {1, 2, 3}
    assert len(deletions(cluster)) == 1
    # Its next life is another matter.
    await cluster.bounce(2)
    await cluster.end_process(2)
    cluster.watches.refuse(2)
    await cluster.settle()
    assert registered(cluster) == {1, 3}


async def test_a_lost_answer_to_the_deletion_does_no_harm(cluster: MemoryCluster) -> None:
    """FLT-19, BUG-5."""
    await cluster.end_process(2)
    cluster.sessions[1].lose_answers = 1
    cluster.watches.refuse(2)
    await cluster.settle()
    cluster.watches.refuse(2)
    await cluster.settle()
    assert registered(cluster) == {1, 3}


async def test_a_dead_controller_is_found_by_the_others(cluster: MemoryCluster) -> None:
    """One multi deletes `/controller` and its registration. Of the brokers that try, one succeeds, and one election follows."""
    await cluster.create_topic("t", {0: (1, 2, 3)})
    await cluster.end_process(1)
    cluster.watches.refuse(1)
    await cluster.settle()
    assert cluster.controller in (2, 3)
    assert cluster.controller_epoch == 2
    assert registered(cluster) == {2, 3}
    assert cluster.state("t").leader == 2
    (ops,) = deletions(cluster)
    fence, office, registration = ops
    assert isinstance(fence, CheckOp)
    assert fence.path == ControllerEpochZNode.PATH
    assert (office, registration) == (DeleteOp(ControllerZNode.PATH), DeleteOp(BrokerIdZNode.path(1), 0))
    assert [row["broker"] for row in cluster.events.of("controller_found_dead")] == [1]


async def test_a_controller_elected_meanwhile_is_not_removed(cluster: MemoryCluster) -> None:
    """The delete of `/controller` is conditional on the epoch that was read before."""
    await cluster.end_process(1)

    def another_is_elected(ops: Sequence[Op]) -> None:
        for session in (cluster.sessions[2], cluster.sessions[3]):
            session.before_multi = lambda _: None
        cluster.server.remove(ControllerZNode.PATH)
        session_id = cluster.sessions[3].session_id
        cluster.server.apply(CreateOp(ControllerZNode.PATH, ControllerZNode.encode(3, 0), ephemeral=True), session_id)
        cluster.server.apply(SetOp(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(2)), 0)

    for session in (cluster.sessions[2], cluster.sessions[3]):
        session.before_multi = another_is_elected
    before = len(cluster.server.writes)
    cluster.watches.refuse(1)
    for _ in range(40):
        await asyncio.sleep(0)
    assert not any(
        isinstance(op, DeleteOp) and op.path == ControllerZNode.PATH and isinstance(ops[0], CheckOp)
        for _, ops in cluster.server.writes[before:]
        for op in ops
    )
    # Broker 1's session ends at last, and the controller of the story steps down.
    cluster.server.end_session(1)
    cluster.server.remove(ControllerZNode.PATH)


async def test_a_controller_that_registered_again_meanwhile_is_not_removed(cluster: MemoryCluster) -> None:
    """The refusals came before the new registration."""
    found_dead = [watch.found_dead for watch in cluster.watches.of[1]]
    cluster.server.remove(BrokerIdZNode.path(1))
    cluster.register(1)
    for report in found_dead:
        report()
    await cluster.settle()
    assert cluster.controller == 1
    assert cluster.controller_epoch == 1
    assert cluster.watches.of[1] == [], "two registrations in one session: only the end of the session counts now"


async def test_a_controller_that_was_wrongly_judged_dead_is_fenced_and_not_judged_again(cluster: MemoryCluster) -> None:
    """It notices that `/controller` is gone, and its writes are fenced (INV-9)."""
    await cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.watches.refuse(1)
    await cluster.settle()
    assert cluster.controller_epoch == 2
    assert registered(cluster) == {2, 3}
    cluster.register(1)
    await cluster.settle()
    for _ in range(3):
        cluster.watches.refuse(1)
        await cluster.settle()
    assert registered(cluster) == {1, 2, 3}
    assert cluster.controller_epoch == 2


async def test_the_controller_watches_all_others_and_they_watch_it(cluster: MemoryCluster) -> None:
    assert watch_counts(cluster) == {1: 2, 2: 1, 3: 1}


@on_cluster()
async def test_nobody_is_watched_when_it_is_switched_off(cluster: MemoryCluster) -> None:
    assert watch_counts(cluster) == {}


async def test_nothing_is_watched_without_a_session(cluster: MemoryCluster) -> None:
    """STA-4: a controller whose session expired stops its watches at once."""
    cluster.sessions[1].expire()
    cluster.controllers[1].on_session_expired()
    assert cluster.watches.of[2] == []
    assert cluster.watches.of[3] == []
    await cluster.settle()
    cluster.sessions[1].renew()
    cluster.register(1)
    cluster.controllers[1].on_session_restored()
    await cluster.settle()
    assert watch_counts(cluster) == {broker: 2 if broker == cluster.controller else 1 for broker in (1, 2, 3)}
