"""The leader's writes of the ISR to ZooKeeper (REP-3, INV-10, BUG-2, BUG-5, BUG-6, INV-14).

A proposal is a conditional write of the partition's state znode. Its answer is one of `IsrOutcome`. Until the answer arrives,
the leader counts both the old and the proposed members as in sync. A leader has at most one proposal per partition under way.

1. Proposals that arrive during a round form the next round: many partitions in few round trips.
2. Before an expansion the znode of each newcomer is read. Its czxid must be the broker epoch that fetched, or else the broker
   has died or restarted since then, perhaps with an empty disk (BUG-23). The write is a multi that checks that znode too.
3. After a lost connection it is unknown if the write was applied, so the znode is read again (BUG-5). If it has this
   leader's write, its version is adopted. If it is unchanged, the write is repeated. If it has another leader epoch, the
   controller has decided otherwise: conflict.
4. After an expansion the newcomer's znode is read again. If the newcomer bounced since it fetched, the result names it in
   `doubtful`, and the leader proposes to remove it.
5. Written changes are announced in `/isr_change_notification`, several partitions in one node (CTL-13).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Protocol

from broker.process.event_log import EventLog
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

log = logging.getLogger(__name__)

ROUND_SIZE_MAX = 500
ANNOUNCE_AFTER_S = 0.05
ANNOUNCED_AT_ONCE = 1000
"""Partitions in one znode: 0.3 MB with the longest topic names. ZooKeeper refuses more than `jute.maxbuffer`, 1 MB."""
FINISHED_IN_A_SLICE = 50
"""Results delivered in one turn of the loop, each with its event and log line."""
RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0


class IsrOutcome(Enum):
    """How a proposal ended."""

    COMMITTED = "ZooKeeper has the state in the result"
    REFUSED = "nothing was written: a newcomer is not the live broker that fetched"
    CONFLICT = "another process wrote: no more ISR changes until the next LeaderAndIsr"


@dataclass(frozen=True, slots=True)
class IsrResult:
    """`state` and its version are ZooKeeper's if COMMITTED, else the proposal's. `doubtful`: newcomers that may have bounced."""

    outcome: IsrOutcome
    state: LeaderAndIsr
    doubtful: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """Write `state` if the znode's version is `state.zk_version`. `newcomers`: broker id -> broker epoch that fetched.

    `is_wanted()` is called before every attempt. It is False once the generation that proposed has ended.
    """

    topic_partition: TopicPartition
    state: LeaderAndIsr
    newcomers: dict[int, int]
    is_wanted: Callable[[], bool]
    on_result: Callable[[IsrResult], None]
    isr_before: tuple[int, ...] = ()


class IsrWriter(Protocol):
    """Takes the proposals of partitions. Calls a proposal's `on_result` later on the loop, never inside `propose`."""

    def propose(self, proposal: IsrProposal) -> None: ...


class IsrZooKeeper(Protocol):
    """The part of the ZooKeeper session that is used here."""

    async def exists(self, path: str) -> Stat | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]: ...

    async def create(self, path: str, data: bytes = b"", *, sequence: bool = False) -> tuple[str, Stat]: ...

    async def multi_many(self, batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | ZkError]: ...


class IsrUpdates:
    """The IsrWriter that writes to ZooKeeper, in one task that ends when there is nothing to write."""

    def __init__(
        self,
        zk: IsrZooKeeper,
        event_log: EventLog,
        *,
        retry_s: float = RETRY_S_MIN,
        announce_after_s: float = ANNOUNCE_AFTER_S,
    ) -> None:
        self._zk = zk
        self._events = event_log
        self._retry_s = retry_s
        self._announce_after_s = announce_after_s
        self._waiting: list[IsrProposal] = []
        self._writer: asyncio.Task[None] | None = None
        self._unannounced: dict[TopicPartition, None] = {}
        self._announcer: asyncio.Task[None] | None = None

    def propose(self, proposal: IsrProposal) -> None:
        self._waiting.append(proposal)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def drain(self) -> None:
        """Waits until everything is written and announced."""
        while tasks := [task for task in (self._writer, self._announcer) if task is not None]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancels writes and announcements that are under way."""
        tasks = [task for task in (self._writer, self._announcer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_all(self) -> None:
        retry_s = self._retry_s
        is_said = False
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:ROUND_SIZE_MAX], self._waiting[ROUND_SIZE_MAX:]
                try:
                    failed = await self._write_round([p for p in batch if p.is_wanted()])
                except ZkError as error:
                    log.info("ISR changes wait for ZooKeeper: %s", error)
                    uncertain = batch
                else:
                    uncertain = [proposal for proposal, _ in failed]
                    if failed and not is_said:
                        proposal, problem = failed[0]
                        level = logging.INFO if isinstance(problem, ConnectionLoss) else logging.WARNING
                        log.log(level, "%s: the ISR is not written yet: %s", proposal.topic_partition, problem)
                        is_said = True
                if uncertain:
                    self._waiting = uncertain + self._waiting
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_S_MAX)
                    await self._resolve_front(len(uncertain))
                else:
                    retry_s = self._retry_s
        finally:
            self._writer = None

    async def _write_round(self, batch: Sequence[IsrProposal]) -> list[tuple[IsrProposal, ZkError]]:
        """Tries to write each proposal once. Returns those to be tried again, and why: it may be unknown whether they were applied."""
        stats = await self._broker_stats(batch)
        writable: list[tuple[IsrProposal, list[Op]]] = []
        refused: list[IsrProposal] = []
        for proposal in batch:
            operations = self._operations(proposal, stats)
            if operations is None:
                refused.append(proposal)
            else:
                writable.append((proposal, operations))
        await self._finish_unwritten(refused, IsrOutcome.REFUSED)
        results = await self._zk.multi_many([operations for _, operations in writable])
        failed: list[tuple[IsrProposal, ZkError]] = []
        committed: list[tuple[IsrProposal, LeaderAndIsr]] = []
        conflicting: list[IsrProposal] = []
        refused = []
        for (proposal, operations), result in zip(writable, results, strict=True):
            if isinstance(result, MultiFailed):
                if result.index < len(operations) - 1:
                    refused.append(proposal)
                elif isinstance(result.error, BadVersion | NoNode):
                    conflicting.append(proposal)
                else:
                    failed.append((proposal, result))
            elif isinstance(result, ZkError):
                failed.append((proposal, result))
            else:
                version = result[-1]
                assert isinstance(version, int)
                committed.append((proposal, _with_version(proposal.state, version)))
        await self._finish_committed(committed)
        await self._finish_unwritten(refused, IsrOutcome.REFUSED)
        await self._read_again(conflicting, keep_untouched=False)
        return failed

    async def _broker_stats(self, batch: Iterable[IsrProposal]) -> dict[int, Stat | None]:
        """Each newcomer's znode, read once."""
        ids = sorted({broker_id for proposal in batch for broker_id in proposal.newcomers})
        stats = await asyncio.gather(*(self._zk.exists(BrokerIdZNode.path(broker_id)) for broker_id in ids))
        return dict(zip(ids, stats, strict=True))

    def _operations(self, proposal: IsrProposal, stats: dict[int, Stat | None]) -> list[Op] | None:
        """The multi of one proposal; None if a newcomer has died or bounced since it fetched."""
        operations: list[Op] = []
        for broker_id, epoch in proposal.newcomers.items():
            stat = stats.get(broker_id)
            if stat is None or stat.czxid != epoch:
                return None
            operations.append(CheckOp(BrokerIdZNode.path(broker_id), stat.version))
        path = PartitionStateZNode.path(proposal.topic_partition)
        operations.append(SetOp(path, PartitionStateZNode.encode(proposal.state), proposal.state.zk_version))
        return operations

    async def _finish_committed(self, committed: Sequence[tuple[IsrProposal, LeaderAndIsr]]) -> None:
        try:
            stats = await self._broker_stats([proposal for proposal, _ in committed])
        except ZkError:
            stats = {}
        for at, (proposal, state) in enumerate(committed, 1):
            if at % FINISHED_IN_A_SLICE == 0:
                await asyncio.sleep(0)
            doubtful = tuple(
                broker_id
                for broker_id, epoch in proposal.newcomers.items()
                if (stat := stats.get(broker_id)) is None or stat.czxid != epoch
            )
            self._finish(proposal, IsrOutcome.COMMITTED, state, doubtful)

    async def _finish_unwritten(self, proposals: Sequence[IsrProposal], outcome: IsrOutcome) -> None:
        for at, proposal in enumerate(proposals, 1):
            if at % FINISHED_IN_A_SLICE == 0:
                await asyncio.sleep(0)
            self._finish(proposal, outcome, proposal.state)

    async def _resolve_front(self, count: int) -> None:
        """After a lost connection: finishes those of the first `count` waiting proposals that were applied or conflict."""
        front, rest = self._waiting[:count], self._waiting[count:]
        try:
            untouched = await self._read_again([p for p in front if p.is_wanted()], keep_untouched=True)
        except ZkError:
            return
        # During the await, `propose` may have added proposals at the end.
        self._waiting = untouched + rest + self._waiting[count + len(rest) :]

    async def _read_again(self, proposals: Sequence[IsrProposal], *, keep_untouched: bool) -> list[IsrProposal]:
        """Step 3 of the module. With `keep_untouched`, returns the proposals whose znode is as it was before the write."""
        if not proposals:
            return []
        untouched: list[IsrProposal] = []
        overtaken: list[IsrProposal] = []
        committed: list[tuple[IsrProposal, LeaderAndIsr]] = []
        found = await self._zk.get_many([PartitionStateZNode.path(p.topic_partition) for p in proposals])
        for proposal, node in zip(proposals, found, strict=True):
            state = _decoded(node)
            mine = proposal.state
            if state is None or (state.leader, state.leader_epoch) != (mine.leader, mine.leader_epoch):
                overtaken.append(proposal)
            elif keep_untouched and state.zk_version == mine.zk_version:
                untouched.append(proposal)
            else:
                # Only the leader of this epoch writes without raising the epoch, so this is our own write.
                committed.append((proposal, state))
        await self._finish_committed(committed)
        await self._finish_unwritten(overtaken, IsrOutcome.CONFLICT)
        return untouched

    def _finish(
        self, proposal: IsrProposal, outcome: IsrOutcome, state: LeaderAndIsr, doubtful: tuple[int, ...] = ()
    ) -> None:
        tp = proposal.topic_partition
        self._events.write(
            "isr_change",
            partition=str(tp),
            outcome=outcome.name,
            isr=list(state.isr),
            isr_before=list(proposal.isr_before),
            leader_epoch=state.leader_epoch,
            path=PartitionStateZNode.path(tp),
            expected_version=proposal.state.zk_version,
            zk_version=state.zk_version,
        )
        if outcome is IsrOutcome.COMMITTED:
            self._unannounced[tp] = None
            if self._announcer is None:
                self._announcer = asyncio.get_running_loop().create_task(self._announce())
        elif outcome is IsrOutcome.CONFLICT:
            log.warning("%s: the ISR was not written: the controller has changed the partition's state", tp)
        if proposal.is_wanted():
            proposal.on_result(IsrResult(outcome, state, doubtful))

    async def _announce(self) -> None:
        retry_s = self._announce_after_s
        try:
            while self._unannounced:
                await asyncio.sleep(retry_s)
                partitions = list(islice(self._unannounced, ANNOUNCED_AT_ONCE))
                for tp in partitions:
                    del self._unannounced[tp]
                try:
                    await self._zk.create(IsrChangeZNode.PATH_PREFIX, IsrChangeZNode.encode(partitions), sequence=True)
                    retry_s = 0 if self._unannounced else self._announce_after_s
                except ZkError as error:
                    log.info("ISR changes are not announced yet: %s", error)
                    self._unannounced = {**dict.fromkeys(partitions), **self._unannounced}
                    retry_s = min(max(retry_s, self._announce_after_s) * 2, RETRY_S_MAX)
        finally:
            self._announcer = None


def _with_version(state: LeaderAndIsr, version: int) -> LeaderAndIsr:
    return LeaderAndIsr(state.leader, state.leader_epoch, state.isr, state.controller_epoch, version)


def _decoded(node: tuple[bytes, Stat] | None) -> LeaderAndIsr | None:
    """The znode's state. None if there is no znode or it is unreadable; both count as a conflict."""
    if node is None:
        return None
    data, stat = node
    try:
        return PartitionStateZNode.decode(data, stat.version)
    except ValueError as error:
        log.error("a partition's state znode is not readable: %s", error)
        return None
