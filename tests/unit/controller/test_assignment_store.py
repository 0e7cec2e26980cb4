"""Writes of topics' assignments and of `/admin/reassign_partitions`: fenced (INV-9), and correct if others write meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controller.assignment_store import remove_requested_moves, requested_moves, write_assignments, write_topic_ids
from controller.cluster_store import ClusterStore, ControllerMoved
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import CheckOp, MultiFailed, Op, RequestTooLarge, WatchCallback, ZkError
from protocol.zk.znodes import ControllerEpochZNode, ReassignPartitionsZNode, TopicZNode
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MOVING = Assignment((3, 2, 1), (3,), (1,))
STAYING = Assignment((1, 2))
PATH = ReassignPartitionsZNode.PATH


class World:
    """Epoch 1, and two topics with the replicas 1 and 2."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.server.ensure(ControllerEpochZNode.PATH, b"1")
        self.server.ensure("/admin")
        for topic in ("t", "u"):
            self.put(topic, {0: STAYING, 1: STAYING})
            self.server.ensure(f"{TopicZNode.path(topic)}/partitions")
        self.zk = MemorySession(self.server)
        self.store = ClusterStore(self.zk, 0)  # type: ignore[arg-type]

    def put(self, topic: str, assignment: dict[int, Assignment], topic_id: str = ID_1) -> None:
        self.server.ensure(TopicZNode.path(topic), TopicZNode.encode(topic_id, assignment))

    def found(self, topic: str) -> dict[int, Assignment]:
        return TopicZNode.decode(self.server.nodes[TopicZNode.path(topic)].data)[1]

    def delete(self, topic: str) -> None:
        self.server.remove(TopicZNode.path(topic))

    def once(self, act: Callable[[], None]) -> None:
        """Runs `act` just before the next write is applied."""

        def before(_: Sequence[Op]) -> None:
            self.zk.before_multi = lambda ops: None
            act()

        self.zk.before_multi = before

    async def write(self, assignments: dict[TopicPartition, Assignment]) -> dict[str, str]:
        return await write_assignments(self.store, assignments, {"t": ID_1, "u": ID_1})


@pytest.fixture
def world() -> World:
    return World()


async def test_all_partitions_of_a_topic_are_one_fenced_write(world: World) -> None:
    assert await world.write({T0: MOVING, T1: MOVING, U0: MOVING}) == {}
    assert world.found("t") == {0: MOVING, 1: MOVING}
    assert world.found("u") == {0: MOVING, 1: STAYING}
    assert len(world.server.writes) == 2
    assert all(ops[0] == CheckOp(ControllerEpochZNode.PATH, 0) for _, ops in world.server.writes)


async def test_an_assignment_that_zookeeper_already_has_is_not_written(world: World) -> None:
    assert await world.write({T0: STAYING}) == {}
    assert world.server.writes == []


async def test_partitions_added_by_another_write_are_kept(world: World) -> None:
    """CTL-8."""
    world.once(lambda: world.put("t", {0: STAYING, 1: STAYING, 2: STAYING}))
    assert await world.write({T0: MOVING}) == {}
    assert world.found("t") == {0: MOVING, 1: STAYING, 2: STAYING}


async def test_a_write_whose_answer_is_lost_is_not_repeated(world: World) -> None:
    """BUG-5."""
    world.zk.lose_answers = 1
    assert await world.write({T0: MOVING, U0: MOVING}) == {}
    assert world.found("t")[0] == MOVING
    assert len(world.server.writes) == 2


@pytest.mark.parametrize("made_again", [False, True])
async def test_a_topic_removed_just_before_the_write_is_not_written(world: World, made_again: bool) -> None:
    """FLT-36: if the topic is created again, its node has the same version, but no node below it."""

    def act() -> None:
        world.delete("t")
        if made_again:
            world.put("t", {0: Assignment((2, 1))}, ID_2)

    world.once(act)
    failed = await world.write({T0: MOVING, U0: MOVING})
    assert failed.keys() == {"t"}
    assert ("created again" in failed["t"]) == made_again
    assert world.found("u")[0] == MOVING
    if made_again:
        assert world.found("t") == {0: Assignment((2, 1))}


async def test_a_topic_that_never_had_a_leader_is_written_without_nodes_below_it(world: World) -> None:
    world.server.remove(f"{TopicZNode.path('t')}/partitions")
    assert await world.write({T0: MOVING}) == {}
    assert world.found("t")[0] == MOVING


async def test_an_unreadable_node_is_not_written(world: World) -> None:
    world.server.ensure(TopicZNode.path("t"), b"rubbish")
    failed = await world.write({T0: MOVING})
    assert "not readable" in failed["t"]
    assert world.server.nodes[TopicZNode.path("t")].data == b"rubbish"


@pytest.mark.parametrize("error", [ZkError("NoAuth"), RequestTooLarge("1100000 bytes")])
async def test_a_write_that_zookeeper_refuses_does_not_end_the_term(world: World, error: ZkError) -> None:
    """The node's access rights forbid it, or a node of a megabyte would become larger. Other topics are written."""
    world.server.ensure(TopicZNode.path("t"), TopicZNode.encode(None, {0: STAYING}))
    world.server.ensure(TopicZNode.path("u"), TopicZNode.encode(None, {0: STAYING}))

    def refuse(ops: Sequence[Op]) -> None:
        if any(op.path == TopicZNode.path("t") for op in ops):
            raise error if isinstance(error, RequestTooLarge) else MultiFailed(1, error)

    world.zk.before_multi = refuse
    found = await write_topic_ids(world.store, ["t", "u"], lambda topic, has_states: ID_2, lambda topic: {})
    assert found == {"t": (None, {0: STAYING}), "u": (ID_2, {0: STAYING})}
    failed = await write_assignments(world.store, {T0: MOVING, U0: MOVING}, {"t": ID_1, "u": ID_2})
    assert failed == {"t": f"ZooKeeper refuses the write: {error}"}
    assert world.found("u") == {0: MOVING}


async def test_a_topic_whose_states_cannot_be_read_is_not_a_new_one(world: World) -> None:
    """The access rights of the node above the partitions forbid to read it, which does not prevent to learn that it exists."""
    world.server.ensure(TopicZNode.path("t"), TopicZNode.encode(None, {0: STAYING}))
    above, get_many = f"{TopicZNode.path('t')}/partitions", world.zk.get_many

    async def get_many_readable(paths: Sequence[str], watch: WatchCallback | None = None) -> Any:
        if above in paths:
            raise ZkError("NoAuth")
        return await get_many(paths, watch)

    world.zk.get_many = get_many_readable  # type: ignore[method-assign]
    asked: list[tuple[str, bool]] = []
    found = await write_topic_ids(world.store, ["t"], lambda *about: asked.append(about), lambda topic: {})
    assert (asked, found) == ([("t", True)], {"t": (None, {0: STAYING})})


async def test_a_deposed_controller_writes_nothing(world: World) -> None:
    """INV-9."""
    world.server.ensure(PATH, ReassignPartitionsZNode.encode({T0: (3,)}))
    world.server.ensure(ControllerEpochZNode.PATH, b"2")
    with pytest.raises(ControllerMoved):
        await world.write({T0: MOVING})
    with pytest.raises(ControllerMoved):
        await remove_requested_moves(world.store, lambda tp, target: True)
    assert world.found("t")[0] == STAYING
    assert PATH in world.server.nodes


async def test_requested_moves_are_removed_one_by_one_and_the_node_with_the_last(world: World) -> None:
    assert await requested_moves(world.store) is None
    await remove_requested_moves(world.store, lambda tp, target: True)
    world.server.ensure(PATH, ReassignPartitionsZNode.encode({T0: (3,), T1: (3,), U0: (3,)}))
    await remove_requested_moves(world.store, lambda tp, target: target == (4,))
    assert world.server.writes == []
    await remove_requested_moves(world.store, lambda tp, target: tp.topic == "t")
    assert ReassignPartitionsZNode.decode(world.server.nodes[PATH].data) == {U0: (3,)}
    await remove_requested_moves(world.store, lambda tp, target: tp == U0)
    assert PATH not in world.server.nodes


@pytest.mark.parametrize("written", [{T1: (3,)}, None])
async def test_a_request_written_meanwhile_is_kept(
    world: World, written: dict[TopicPartition, tuple[int, ...]] | None
) -> None:
    """Only the finished moves are removed from the content at the time of the write."""
    world.server.ensure(PATH, ReassignPartitionsZNode.encode({T0: (3,)}))

    def act() -> None:
        if written is None:
            world.server.remove(PATH)
        else:
            world.server.ensure(PATH, ReassignPartitionsZNode.encode(written))

    world.once(act)
    await remove_requested_moves(world.store, lambda tp, target: (tp, target) == (T0, (3,)))
    node = world.server.nodes.get(PATH)
    assert (None if node is None else ReassignPartitionsZNode.decode(node.data)) == written
