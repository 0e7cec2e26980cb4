"""Conditional ISR writes: REP-3, BUG-2, BUG-5, BUG-6, BUG-23, INV-14."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from broker.process.event_log import EventLog
from broker.replication.isr_updates import (
    FINISHED_IN_A_SLICE,
    ROUND_SIZE_MAX,
    IsrOutcome,
    IsrProposal,
    IsrResult,
    IsrUpdates,
)
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.session import (
    BadVersion,
    CheckOp,
    ConnectionLoss,
    MultiFailed,
    NoNode,
    Op,
    OpResult,
    SetOp,
    Stat,
    ZkError,
)
from protocol.zk.znodes import BrokerIdZNode, IsrChangeZNode, PartitionStateZNode
from tests.support.fake_time import FakeTime

TP = TopicPartition("t", 0)
OLD = LeaderAndIsr(1, 4, (1, 2), 7, 10)
LOST_BEFORE, LOST_AFTER = "lost before it was applied", "applied, the answer lost"
OF_ANOTHER_USER = "the node is another user's"


@dataclass
class FakeZooKeeper:
    """Partition states and brokers (id -> czxid). Each multi has the next of `faults`."""

    states: dict[str, LeaderAndIsr]
    brokers: dict[int, int]
    faults: list[str] = field(default_factory=list)
    announced: list[tuple[TopicPartition, ...]] = field(default_factory=list)
    writes: int = 0
    reads_fail: int = 0

    async def exists(self, path: str) -> Stat | None:
        czxid = {BrokerIdZNode.path(broker): czxid for broker, czxid in self.brokers.items()}.get(path)
        return None if czxid is None else _stat(0, czxid)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        if self.reads_fail:
            self.reads_fail -= 1
            raise ConnectionLoss("test")
        return [
            (PartitionStateZNode.encode(self.states[path]), _stat(self.states[path].zk_version))
            if path in self.states
            else None
            for path in paths
        ]

    async def create(self, path: str, data: bytes = b"", *, sequence: bool = False) -> tuple[str, Stat]:
        assert sequence
        assert path == IsrChangeZNode.PATH_PREFIX
        self.announced.append(IsrChangeZNode.decode(data))
        return path + "0000000000", _stat(0)

    async def multi_many(self, batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | ZkError]:
        return [self._multi(batch) for batch in batches]

    def _multi(self, batch: Sequence[Op]) -> list[OpResult] | ZkError:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == LOST_BEFORE:
            return ConnectionLoss("test")
        if fault == OF_ANOTHER_USER:
            return MultiFailed(len(batch) - 1, ZkError("another user's"))
        results: list[OpResult] = []
        for index, operation in enumerate(batch):
            if isinstance(operation, CheckOp):
                if operation.path not in map(BrokerIdZNode.path, self.brokers):
                    return MultiFailed(index, NoNode("test"))
                results.append(None)
                continue
            assert isinstance(operation, SetOp)
            state = self.states.get(operation.path)
            if state is None:
                return MultiFailed(index, NoNode("test"))
            if state.zk_version != operation.version:
                return MultiFailed(index, BadVersion("test"))
            self.states[operation.path] = PartitionStateZNode.decode(operation.data, state.zk_version + 1)
            self.writes += 1
            results.append(state.zk_version + 1)
        return ConnectionLoss("test") if fault == LOST_AFTER else results


def _stat(version: int, czxid: int = 1) -> Stat:
    return Stat(**{**dict.fromkeys(Stat._fields, 0), "version": version, "czxid": czxid})


async def propose(
    zk: FakeZooKeeper, isr: tuple[int, ...], newcomers: dict[int, int] | None = None, *, wanted: bool = True
) -> list[IsrResult]:
    """Proposes once, and waits until the change is written and announced."""
    updates = IsrUpdates(zk, EventLog(None, FakeTime()), retry_s=0, announce_after_s=0)
    results: list[IsrResult] = []
    proposed = OLD._replace(isr=isr)
    updates.propose(IsrProposal(TP, proposed, newcomers or {}, lambda: wanted and not results, results.append))
    await updates.drain()
    return results


def zookeeper(**changes: object) -> FakeZooKeeper:
    given = {"brokers": {1: 101, 2: 102, 3: 103}, **changes}
    return FakeZooKeeper({PartitionStateZNode.path(TP): OLD}, **given)  # type: ignore[arg-type]


async def test_a_write_commits_and_is_announced() -> None:
    zk = zookeeper()
    (result,) = await propose(zk, (1,))
    assert result == IsrResult(IsrOutcome.COMMITTED, OLD._replace(isr=(1,), zk_version=11))
    assert zk.announced == [(TP,)]


async def test_very_many_changes_are_announced_in_several_nodes() -> None:
    """A single znode could be larger than ZooKeeper accepts, and its creation would be retried forever."""
    partitions = [TopicPartition("t" * 249, number) for number in range(4000)]
    zk = FakeZooKeeper({PartitionStateZNode.path(tp): OLD for tp in partitions}, {1: 101, 2: 102})

    updates = IsrUpdates(zk, EventLog(None, FakeTime()), retry_s=0, announce_after_s=0.05)
    for tp in partitions:
        updates.propose(IsrProposal(tp, OLD._replace(isr=(1,)), {}, lambda: True, lambda _: None))
    await updates.drain()
    assert sorted(tp for announced in zk.announced for tp in announced) == partitions
    assert max(len(IsrChangeZNode.encode(announced)) for announced in zk.announced) < 2**19


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({}, IsrOutcome.CONFLICT), ({"brokers": {}}, IsrOutcome.REFUSED)],
    ids=["the controller was faster", "the newcomer is gone"],
)
async def test_very_many_failures_are_delivered_in_slices(changes: dict[str, object], outcome: IsrOutcome) -> None:
    """NET-4: after the death of a broker, the proposals of thousands of partitions fail together. Each has an event and a log line."""
    turns: Counter[int] = Counter()
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def delivered(result: IsrResult) -> None:
        assert result.outcome is outcome
        turns[turn] += 1

    zk = zookeeper(**{"brokers": {2: 102}, **changes})
    zk.states.pop(PartitionStateZNode.path(TP), None)
    updates = IsrUpdates(zk, EventLog(None, FakeTime()), retry_s=0, announce_after_s=0)
    for number in range(ROUND_SIZE_MAX):
        tp = TopicPartition("t", number)
        updates.propose(IsrProposal(tp, OLD._replace(isr=(1, 2)), {2: 102}, lambda: True, delivered))
    counting = asyncio.create_task(count_turns())
    await updates.drain()
    counting.cancel()
    assert turns.total() == ROUND_SIZE_MAX
    assert max(turns.values()) <= FINISHED_IN_A_SLICE


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
@pytest.mark.parametrize("reads_fail", [0, 3])
async def test_a_lost_connection_is_resolved_by_reading_again(fault: str, reads_fail: int) -> None:
    """BUG-5, FLT-19: in either case the write is applied once, and its version is known."""
    zk = zookeeper(faults=[fault], reads_fail=reads_fail)
    (result,) = await propose(zk, (1,))
    assert result == IsrResult(IsrOutcome.COMMITTED, OLD._replace(isr=(1,), zk_version=11))
    assert zk.writes == 1


async def test_why_a_change_is_not_written_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The leader has another password for ZooKeeper than the broker that made the node: it tries for as long as it leads."""
    zk = zookeeper(faults=[OF_ANOTHER_USER] * 5)
    (result,) = await propose(zk, (1,))
    assert result.outcome is IsrOutcome.COMMITTED
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("t-0: the ISR is not written yet:")
    assert "another user's" in said


ALL = {1: 101, 2: 102, 3: 103}
NEWER = OLD._replace(leader=2, leader_epoch=5, isr=(2,), zk_version=11)
MINE = OLD._replace(isr=(1,), zk_version=11)


@pytest.mark.parametrize(
    ("found", "brokers", "outcome"),
    [
        pytest.param(NEWER, ALL, IsrOutcome.CONFLICT, id="BUG-6: a newer leader epoch"),
        pytest.param(None, ALL, IsrOutcome.CONFLICT, id="the topic is deleted"),
        pytest.param(MINE, ALL, IsrOutcome.COMMITTED, id="an earlier write of this leader"),
        pytest.param(OLD, {1: 101, 2: 102}, IsrOutcome.REFUSED, id="INV-14: a newcomer that died"),
        pytest.param(OLD, {**ALL, 3: 999}, IsrOutcome.REFUSED, id="BUG-23: a newcomer that bounced"),
    ],
)
async def test_the_state_in_zookeeper_is_not_replaced(
    found: LeaderAndIsr | None, brokers: dict[int, int], outcome: IsrOutcome
) -> None:
    zk = zookeeper(brokers=brokers)
    path = PartitionStateZNode.path(TP)
    zk.states = {path: found} if found is not None else {}
    (result,) = await propose(zk, (1, 2, 3), {3: 103})
    assert result.outcome is outcome
    assert result.state == found or outcome is not IsrOutcome.COMMITTED
    assert (zk.states.get(path), zk.writes) == (found, 0)
    assert bool(zk.announced) is (outcome is IsrOutcome.COMMITTED)


@pytest.mark.parametrize("fault", ["", LOST_BEFORE, LOST_AFTER])
async def test_a_newcomer_that_bounces_during_the_write_is_reported(fault: str) -> None:
    zk = zookeeper(faults=[fault])
    write = zk.multi_many

    async def write_then_bounce(batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | ZkError]:
        results = await write(batches)
        if zk.writes:
            zk.brokers[3] = 999
        return results

    zk.multi_many = write_then_bounce  # type: ignore[method-assign]
    (result,) = await propose(zk, (1, 2, 3), {3: 103})
    assert (result.outcome, result.doubtful) == (IsrOutcome.COMMITTED, (3,))


async def test_a_proposal_that_is_no_longer_wanted_is_not_written() -> None:
    zk = zookeeper()
    assert await propose(zk, (1,), wanted=False) == []
    assert zk.writes == 0
