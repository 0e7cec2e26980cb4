"""Fenced writes (INV-9), conflicts, lost answers (BUG-5), the end of a term; on a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from controller.cluster_store import BATCH, ClusterStore, ControllerMoved
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.many_operations import encode_multi
from protocol.zk.session import (
    REQUEST_BYTES_MAX,
    CheckOp,
    ConnectionLoss,
    DeleteOp,
    MultiFailed,
    Op,
    OpResult,
    SessionState,
    ZkError,
)
from protocol.zk.znodes import ControllerEpochZNode, PartitionStateZNode
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TPS = [TopicPartition("t", p) for p in range(2 * BATCH + 10)]


def state(epoch: int, version: int = -1, isr: tuple[int, ...] = (1, 2)) -> LeaderAndIsr:
    return LeaderAndIsr(1, epoch, isr, 1, version)


class World:
    """A term with epoch 1, and a topic whose partitions have no states yet."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.server.ensure(ControllerEpochZNode.PATH, b"1")
        self.server.ensure("/brokers/topics/t")
        self.zk = MemorySession(self.server)
        self.store = ClusterStore(self.zk, 0)  # type: ignore[arg-type]

    def put(self, tp: TopicPartition, new: LeaderAndIsr) -> None:
        """Writes a state, as a leader does."""
        self.server.ensure(PartitionStateZNode.path(tp), PartitionStateZNode.encode(new))

    def get(self, tp: TopicPartition) -> LeaderAndIsr:
        node = self.server.nodes[PartitionStateZNode.path(tp)]
        return PartitionStateZNode.decode(node.data, node.version)


@pytest.fixture
def world() -> World:
    return World()


async def test_states_are_created_and_written_in_fenced_batches(world: World) -> None:
    made = await world.store.create_states({tp: state(0) for tp in TPS})
    assert made.done == {tp: state(0, 0) for tp in TPS}
    world.server.writes.clear()
    written = await world.store.write_states({tp: state(1, 0) for tp in TPS})
    assert written.done == {tp: state(1, 1) for tp in TPS}
    assert written.conflicts == {}
    assert [len(ops) for _, ops in world.server.writes] == [BATCH + 1, BATCH + 1, 11]
    assert all(ops[0] == CheckOp(ControllerEpochZNode.PATH, 0) for _, ops in world.server.writes)


async def test_a_multi_is_smaller_than_zookeepers_limit_whatever_the_states_are(world: World) -> None:
    """An ISR may have a thousand members."""
    isr = tuple(range(1_000_000, 1_001_000))
    wanted = {tp: state(0, isr=isr) for tp in TPS[:300]}
    assert (await world.store.create_states(wanted)).done == {
        tp: new._replace(zk_version=0) for tp, new in wanted.items()
    }
    sizes = [len(encode_multi(ops, "/chroot")) for _, ops in world.server.writes]
    assert max(sizes) < REQUEST_BYTES_MAX
    assert sum(sizes) > 2 * REQUEST_BYTES_MAX


async def test_conflicts_are_returned_and_the_other_states_are_written(world: World) -> None:
    await world.store.create_states({tp: state(0) for tp in TPS})
    world.put(TPS[3], state(0, isr=(1,)))
    world.put(TPS[BATCH + 1], state(0, isr=(1,)))
    world.put(TPS[BATCH + 2], state(0, isr=(1,)))
    world.server.apply(DeleteOp(PartitionStateZNode.path(TPS[7])), 0)
    world.server.ensure(PartitionStateZNode.path(TPS[9]), b"rubbish")
    written = await world.store.write_states({tp: state(1, 0) for tp in TPS})
    conflicting = state(0, 1, (1,))
    assert written.conflicts == {
        TPS[3]: conflicting,
        TPS[7]: None,
        TPS[9]: None,
        TPS[BATCH + 1]: conflicting,
        TPS[BATCH + 2]: conflicting,
    }
    assert written.done.keys() == set(TPS) - written.conflicts.keys()
    assert world.get(TPS[BATCH + 3]) == state(1, 1)


async def test_states_that_others_protect_stay_and_are_tried_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict is decided again: a controller that takes a refusal for one would try for ever, and do nothing else."""
    await world.store.create_states({tp: state(0) for tp in TPS})
    protected = {PartitionStateZNode.path(tp) for tp in TPS[5:BATCH]}
    attempts: Counter[str] = Counter()
    apply = world.server.multi

    def multi(ops: Sequence[Op], session_id: int) -> list[OpResult]:
        for index, op in enumerate(ops):
            if op.path in protected:
                attempts[op.path] += 1
                raise MultiFailed(index, ZkError(f"{op.path}: ZooKeeper allows this to another user only"))
        return apply(ops, session_id)

    monkeypatch.setattr(world.server, "multi", multi)
    written = await world.store.write_states({tp: state(1, 0) for tp in TPS})
    assert written.conflicts == {}
    assert written.done == {tp: state(1, 1) for tp in TPS if PartitionStateZNode.path(tp) not in protected}
    assert attempts == dict.fromkeys(protected, 1)


async def test_states_that_exist_already_are_conflicts(world: World) -> None:
    world.put(TPS[1], state(5))
    world.server.ensure(PartitionStateZNode.path(TPS[2]), b"rubbish")
    made = await world.store.create_states({tp: state(0) for tp in TPS[:4]})
    assert made.done.keys() == {TPS[0], TPS[3]}
    assert made.conflicts == {TPS[1]: state(5, 0), TPS[2]: None}


async def test_states_of_a_topic_deleted_meanwhile_are_conflicts(world: World) -> None:
    gone = TopicPartition("gone", 0)
    made = await world.store.create_states({gone: state(0), TPS[0]: state(0)})
    assert made.conflicts == {gone: None}
    assert made.done == {TPS[0]: state(0, 0)}


@pytest.mark.parametrize("lost", range(1, 6))
async def test_after_lost_answers_the_states_are_read_again(world: World, lost: int) -> None:
    world.zk.lose_answers = lost
    made = await world.store.create_states({tp: state(0) for tp in TPS})
    assert made.done == {tp: state(0, 0) for tp in TPS}
    world.zk.lose_answers = lost
    written = await world.store.write_states({tp: state(1, 0) for tp in TPS})
    assert written.done == {tp: state(1, 1) for tp in TPS}
    assert {world.get(tp) for tp in TPS} == {state(1, 1)}
    world.zk.lose_answers = lost
    await world.store.delete([PartitionStateZNode.path(tp) for tp in TPS])
    assert not any(path.endswith("/state") for path in world.server.nodes)


async def test_a_write_that_was_not_applied_is_retried_after_the_reconnect(world: World) -> None:
    await world.store.create_states({TPS[0]: state(0)})
    world.zk.change_state(SessionState.SUSPENDED)
    writing = asyncio.create_task(world.store.write_states({TPS[0]: state(1, 0)}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not writing.done()
    world.zk.change_state(SessionState.CONNECTED)
    assert (await writing).done == {TPS[0]: state(1, 1)}


@pytest.mark.parametrize("made_again", [True, False])
async def test_a_node_that_is_made_again_after_its_deletion_stays(world: World, made_again: bool) -> None:
    """BUG-5: the answer to the deletion is lost. A deletion that was not applied is repeated."""
    path, other = (f"/admin/delete_topics/{topic}" for topic in "tu")
    world.server.ensure(path, b"old")
    world.server.ensure(other, b"old")
    apply = world.server.multi

    def multi(ops: Sequence[Op], session_id: int) -> list[OpResult]:
        world.server.multi = apply  # type: ignore[method-assign]
        if not made_again:
            raise ConnectionLoss("not applied")
        results = apply(ops, session_id)
        world.server.ensure(path, b"new")
        return results

    world.server.multi = multi  # type: ignore[method-assign]
    world.zk.lose_answers = made_again
    await world.store.delete([path, other])
    assert (path in world.server.nodes) is made_again
    assert other not in world.server.nodes


def _depose(world: World) -> None:
    world.server.ensure(ControllerEpochZNode.PATH, b"2")


def _expire(world: World) -> None:
    world.zk.expire()


def _expire_and_renew(world: World) -> None:
    world.zk.expire()
    world.zk.renew()


def _close(world: World) -> None:
    world.store.close()


@pytest.mark.parametrize("end", [_depose, _expire, _expire_and_renew, _close])
@pytest.mark.parametrize("moment", ["before", "while it is sent", "while it waits for the connection"])
async def test_nothing_is_written_after_the_term(world: World, end: Callable[[World], None], moment: str) -> None:
    await world.store.create_states({tp: state(0) for tp in TPS})
    batches = 0

    def second_batch(ops: Sequence[Op]) -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            end(world)

    if moment == "before":
        end(world)
    elif moment == "while it is sent":
        world.zk.before_multi = second_batch
    else:
        world.zk.change_state(SessionState.SUSPENDED)
    writing = asyncio.create_task(world.store.write_states({tp: state(1, 0) for tp in TPS}))
    for _ in range(3):
        await asyncio.sleep(0)
    if moment == "while it waits for the connection":
        end(world)
        if world.zk.state is SessionState.SUSPENDED:
            world.zk.change_state(SessionState.CONNECTED)
    if end is _close and moment == "while it is sent":
        assert (await writing).done, "a write that was sent before a voluntary resignation may still be applied"
    else:
        with pytest.raises(ControllerMoved):
            await writing
    written = [tp for tp in TPS if world.get(tp).leader_epoch == 1]
    if end is not _close:
        assert len(written) == (BATCH if moment == "while it is sent" else 0)
    with pytest.raises(ControllerMoved):
        await world.store.write_states({TPS[0]: state(9, 0)})


@pytest.mark.parametrize("end", [_expire, _expire_and_renew, _close])
async def test_nothing_is_read_after_the_term(world: World, end: Callable[[World], None]) -> None:
    end(world)
    with pytest.raises(ControllerMoved):
        await world.store.states(TPS)
    world.store.close()
