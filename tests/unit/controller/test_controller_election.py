"""CTL-1, INV-9: one broker wins, and each win raises the epoch by one, even if answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller.controller_election import Lost, Won, elect
from protocol.zk.session import ConnectionLoss, CreateOp, Op, SetOp, WatchEvent
from protocol.zk.znodes import ControllerEpochZNode, ControllerZNode
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper


def no_watch(_: WatchEvent) -> None:
    """Nobody listens."""


@pytest.fixture
def server() -> MemoryZooKeeper:
    return MemoryZooKeeper()


async def run_for(session: MemorySession, broker_id: int) -> Won | Lost:
    return await elect(session, broker_id, lambda: 0, no_watch)  # type: ignore[arg-type]


async def test_the_first_broker_wins_and_the_others_learn_it(server: MemoryZooKeeper) -> None:
    sessions = [MemorySession(server) for _ in range(3)]
    outcomes = await asyncio.gather(*(run_for(s, broker_id) for broker_id, s in enumerate(sessions, 1)))
    (won,) = (outcome for outcome in outcomes if isinstance(outcome, Won))
    assert won == Won(1, server.nodes[ControllerEpochZNode.PATH].version)
    winner = ControllerZNode.decode(server.nodes[ControllerZNode.PATH].data)
    assert outcomes.count(Lost(winner)) == 2
    assert ControllerEpochZNode.decode(server.nodes[ControllerEpochZNode.PATH].data) == 1
    assert await run_for(sessions[winner - 1], winner) == won, "looking again changes nothing"


async def test_a_win_whose_answer_was_lost_is_recognised(server: MemoryZooKeeper) -> None:
    """BUG-5, BUG-17."""
    server.ensure(ControllerEpochZNode.PATH, b"7")
    session = MemorySession(server)
    session.lose_answers = 1
    with pytest.raises(ConnectionLoss):
        await run_for(session, 1)
    assert await run_for(session, 1) == Won(8, 1)


async def test_a_node_of_an_earlier_term_is_not_a_win(server: MemoryZooKeeper) -> None:
    """The epoch was raised since then, so the node is obsolete."""
    session = MemorySession(server)
    await run_for(session, 1)
    server.ensure(ControllerEpochZNode.PATH, b"5")
    assert await run_for(session, 1) == Won(6, server.nodes[ControllerEpochZNode.PATH].version)


async def test_the_node_of_a_killed_earlier_life_is_replaced(server: MemoryZooKeeper) -> None:
    """Without waiting for the earlier session to expire. The epoch rises, so the earlier life is fenced."""
    earlier, later, other = (MemorySession(server) for _ in range(3))
    assert isinstance(await run_for(earlier, 1), Won)
    assert await run_for(other, 2) == Lost(1)
    won = await run_for(later, 1)
    assert won == Won(2, server.nodes[ControllerEpochZNode.PATH].version)
    assert server.nodes[ControllerZNode.PATH].owner == later.session_id
    assert await run_for(later, 1) == won
    assert await run_for(other, 2) == Lost(1)


async def test_a_node_that_another_broker_created_meanwhile_is_not_replaced(server: MemoryZooKeeper) -> None:
    earlier, later, other = (MemorySession(server) for _ in range(3))
    await run_for(earlier, 1)
    pending = iter([True])

    def overtake(_: Sequence[Op]) -> None:
        if next(pending, False):
            server.end_session(earlier.session_id)
            epoch = server.nodes[ControllerEpochZNode.PATH]
            server.multi(
                [
                    CreateOp(ControllerZNode.PATH, ControllerZNode.encode(2, 0), ephemeral=True),
                    SetOp(ControllerEpochZNode.PATH, b"2", epoch.version),
                ],
                other.session_id,
            )

    later.before_multi = overtake
    assert await run_for(later, 1) == Lost(2)
    assert server.nodes[ControllerZNode.PATH].owner == other.session_id


async def test_an_unreadable_controller_node_is_a_loss(server: MemoryZooKeeper) -> None:
    server.ensure(ControllerZNode.PATH, b"rubbish")
    assert await run_for(MemorySession(server), 1) == Lost(None)


async def test_an_unreadable_epoch_is_an_error(server: MemoryZooKeeper) -> None:
    """INV-7: a guessed epoch could be lower than the last one."""
    server.ensure(ControllerEpochZNode.PATH, b"rubbish")
    with pytest.raises(ValueError, match="rubbish"):
        await run_for(MemorySession(server), 1)
    assert ControllerZNode.PATH not in server.nodes
