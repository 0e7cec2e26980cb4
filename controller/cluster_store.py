"""What the controller reads from and writes to ZooKeeper. Every write is fenced (INV-9).

A write is a multi that begins with a check of `/controller_epoch`'s version: once another controller is elected, nothing of
this one's can be applied, however late it wakes up (BUG-8). State znodes are written conditional on their version too.
After a lost connection the nodes are read again: what is mine is adopted with its version, the rest is tried again (BUG-5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from protocol.types import Assignment, BrokerInfo, LeaderAndIsr, TopicPartition
from protocol.zk.session import (
    BadVersion,
    CheckOp,
    ConnectionLoss,
    CreateOp,
    DeleteOp,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    SessionExpired,
    SessionState,
    SetOp,
    WatchCallback,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import (
    BrokerIdZNode,
    ConfigZNode,
    ControllerEpochZNode,
    IsrChangeZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    TopicZNode,
)

log = logging.getLogger(__name__)

BATCH = 100
READS_AT_ONCE = 500

Value = TypeVar("Value")


class ControllerMoved(Exception):
    """Another controller was elected, or this session is over: stop at once, and change nothing more."""


@dataclass(slots=True)
class Written:
    """`done` has what ZooKeeper now holds of what was to be written; `conflicts` what it holds instead (None: no node)."""

    done: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    conflicts: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)


class ClusterStore:
    """For one term: bound to the session and to the version of `/controller_epoch` with which the election was won."""

    def __init__(self, zk: ZooKeeperSession, epoch_version: int) -> None:
        self._zk = zk
        self._fence = CheckOp(ControllerEpochZNode.PATH, epoch_version)
        self._session_id = zk.session_id
        self._state_changed = asyncio.Event()
        zk.add_listener(self._on_state)

    def close(self) -> None:
        self._zk.remove_listener(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        self._state_changed.set()

    async def reconnected(self) -> None:
        """Waits until the session works again. Raises ControllerMoved when it is another one."""
        while True:
            if self._zk.state in (SessionState.EXPIRED, SessionState.CLOSED):
                raise ControllerMoved("the ZooKeeper session is over")
            if self._zk.state is SessionState.CONNECTED:
                if self._zk.session_id != self._session_id:
                    raise ControllerMoved("the ZooKeeper session is another one")
                return
            self._state_changed.clear()
            await self._state_changed.wait()

    async def _patiently(self, read: Callable[[], Awaitable[Value]]) -> Value:
        """A read, begun again after each lost connection. Raises ControllerMoved."""
        while True:
            try:
                return await read()
            except ConnectionLoss:
                await self.reconnected()
            except SessionExpired as error:
                raise ControllerMoved(str(error)) from error

    # -- reading --------------------------------------------------------------------------------------------------

    async def brokers(self, watch: WatchCallback | None) -> dict[int, BrokerInfo]:
        """The live brokers with their epochs; the watch fires at the next change. Rubbish is left out, and told."""

        async def read() -> dict[int, BrokerInfo]:
            names = [name for name in await self._zk.children(BrokerIdZNode.PARENT, watch) if name.isdigit()]
            found = await self._zk.get_many([BrokerIdZNode.path(int(name)) for name in names])
            brokers = {}
            for name, node in zip(names, found, strict=True):
                if node is not None:
                    try:
                        brokers[int(name)] = BrokerIdZNode.decode(int(name), node[0], node[1].czxid)
                    except ValueError as error:
                        log.error("%s is not readable: %s", BrokerIdZNode.path(int(name)), error)
            return brokers

        return await self._patiently(read)

    async def children(self, path: str, watch: WatchCallback | None) -> list[str]:
        """Names below `path`; none when it is not there."""

        async def read() -> list[str]:
            try:
                return await self._zk.children(path, watch)
            except NoNode:
                return []

        return await self._patiently(read)

    async def topics(
        self, names: Sequence[str], watch: WatchCallback
    ) -> dict[str, tuple[str | None, dict[int, Assignment]]]:
        """topic -> (id, assignment), with a watch on each. Topics that are gone or unreadable are left out."""

        async def read_one(name: str) -> tuple[str, bytes] | None:
            try:
                return name, (await self._zk.get(TopicZNode.path(name), watch))[0]
            except NoNode:
                return None

        async def read() -> dict[str, tuple[str | None, dict[int, Assignment]]]:
            topics = {}
            for at in range(0, len(names), READS_AT_ONCE):
                for node in await asyncio.gather(*map(read_one, names[at : at + READS_AT_ONCE])):
                    if node is not None:
                        try:
                            topics[node[0]] = TopicZNode.decode(node[1])
                        except ValueError as error:
                            log.error("%s is not readable: %s", TopicZNode.path(node[0]), error)
            return topics

        return await self._patiently(read)

    async def states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        """The state znodes of these partitions; those that are missing or unreadable are left out."""
        nodes = await self._patiently(lambda: self._zk.get_many([PartitionStateZNode.path(tp) for tp in partitions]))
        states = {}
        for tp, node in zip(partitions, nodes, strict=True):
            if node is not None:
                try:
                    states[tp] = PartitionStateZNode.decode(node[0], node[1].version)
                except ValueError as error:
                    log.error("%s is not readable: %s", PartitionStateZNode.path(tp), error)
        return states

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The overrides of these topics; none for one that has none or rubbish."""
        names = list(topics)
        nodes = await self._patiently(lambda: self._zk.get_many([ConfigZNode.path("topics", name) for name in names]))
        configs = {}
        for name, node in zip(names, nodes, strict=True):
            try:
                configs[name] = ConfigZNode.decode(node[0]) if node is not None else {}
            except ValueError as error:
                log.error("%s is not readable: %s", ConfigZNode.path("topics", name), error)
                configs[name] = {}
        return configs

    async def isr_changes(self, watch: WatchCallback) -> tuple[list[str], list[TopicPartition]]:
        """(paths of the notifications, partitions named in them), with a watch for the next."""
        names = sorted(await self.children(IsrChangeZNode.PARENT, watch))
        paths = [f"{IsrChangeZNode.PARENT}/{name}" for name in names]
        nodes = await self._patiently(lambda: self._zk.get_many(paths))
        partitions: dict[TopicPartition, None] = {}
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                try:
                    partitions.update(dict.fromkeys(IsrChangeZNode.decode(node[0])))
                except ValueError as error:
                    log.error("%s is not readable: %s", path, error)
        return paths, list(partitions)

    async def preferred_election(self, watch: WatchCallback) -> list[TopicPartition] | None:
        """What `/admin/preferred_replica_election` asks for; None when it is not there. Rubbish asks for nothing."""

        async def read() -> bytes | None:
            if await self._zk.exists(PreferredElectionZNode.PATH, watch) is None:
                return None
            try:
                return (await self._zk.get(PreferredElectionZNode.PATH))[0]
            except NoNode:
                return None

        data = await self._patiently(read)
        if data is None:
            return None
        try:
            return list(PreferredElectionZNode.decode(data))
        except ValueError as error:
            log.error("%s is not readable, and is removed: %s", PreferredElectionZNode.PATH, error)
            return []

    # -- writing --------------------------------------------------------------------------------------------------

    async def write_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> Written:
        """Writes each state over the version it carries. Raises ControllerMoved."""
        return await self._write(
            states,
            lambda tp, state: [
                SetOp(PartitionStateZNode.path(tp), PartitionStateZNode.encode(state), state.zk_version)
            ],
        )

    async def create_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> Written:
        """Makes the state znodes of new partitions, with the nodes above them. Raises ControllerMoved."""
        parents: dict[str, None] = {}
        for tp in states:
            parents[PartitionStateZNode.parents(tp)[0]] = None
        await self._make_all(list(parents))
        await self._make_all([PartitionStateZNode.parents(tp)[1] for tp in states])
        return await self._write(
            states, lambda tp, state: [CreateOp(PartitionStateZNode.path(tp), PartitionStateZNode.encode(state))]
        )

    async def delete(self, paths: Sequence[str]) -> None:
        """Removes nodes; one that is gone already is fine. Raises ControllerMoved."""
        for path in paths:
            await self._fenced_until_known([DeleteOp(path)], accepted=NoNode)

    async def _make_all(self, paths: Sequence[str]) -> None:
        """Makes plain nodes; there already is fine."""
        for at in range(0, len(paths), BATCH):
            batch = paths[at : at + BATCH]
            if not await self._fenced_until_known([CreateOp(path) for path in batch], accepted=NodeExists):
                for path in batch:
                    await self._fenced_until_known([CreateOp(path)], accepted=NodeExists)

    async def _fenced_until_known(self, operations: Sequence[Op], *, accepted: type[ZkError]) -> bool:
        """One fenced multi, again after each lost connection; False when it failed with the accepted error."""
        while True:
            try:
                await self._zk.multi([self._fence, *operations])
            except MultiFailed as failure:
                if failure.index == 0:
                    raise ControllerMoved(f"the controller epoch changed: {failure.error}") from failure
                if not isinstance(failure.error, accepted):
                    raise
                return False
            except ConnectionLoss:
                await self.reconnected()
            except SessionExpired as error:
                raise ControllerMoved(str(error)) from error
            else:
                return True

    async def _write(
        self,
        states: Mapping[TopicPartition, LeaderAndIsr],
        operations: Callable[[TopicPartition, LeaderAndIsr], list[Op]],
    ) -> Written:
        written = Written()
        rows = list(states.items())
        batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
        while batches:
            results = await self._zk.multi_many(
                [[self._fence, *(op for tp, state in batch for op in operations(tp, state))] for batch in batches]
            )
            again: list[list[tuple[TopicPartition, LeaderAndIsr]]] = []
            unknown: list[tuple[TopicPartition, LeaderAndIsr]] = []
            conflicting: list[tuple[TopicPartition, LeaderAndIsr]] = []
            for batch, result in zip(batches, results, strict=True):
                if isinstance(result, MultiFailed):
                    if result.index == 0:
                        raise ControllerMoved(f"the controller epoch changed: {result.error}")
                    if not isinstance(result.error, BadVersion | NodeExists | NoNode):
                        raise result
                    if len(batch) == 1:
                        conflicting += batch
                    else:
                        again += [[row] for row in batch]  # one of them stands in the others' way
                elif isinstance(result, SessionExpired):
                    raise ControllerMoved(str(result))
                elif isinstance(result, ZkError):
                    unknown += batch
                else:
                    for (tp, state), stat in zip(batch, result[1:], strict=True):
                        version = 0 if isinstance(stat, str) or stat is None else stat.version
                        written.done[tp] = replace(state, zk_version=version)
            if unknown:
                await self.reconnected()
                again += [[row] for row in await self._adopt(unknown, written)]
            if conflicting:
                found = await self.states([tp for tp, _ in conflicting])
                written.conflicts.update({tp: found.get(tp) for tp, _ in conflicting})
            batches = again
        return written

    async def _adopt(
        self, rows: Sequence[tuple[TopicPartition, LeaderAndIsr]], written: Written
    ) -> list[tuple[TopicPartition, LeaderAndIsr]]:
        """After a lost connection (BUG-5). Returns the rows that were not applied and may be tried again."""
        found = await self.states([tp for tp, _ in rows])
        again = []
        for tp, wanted in rows:
            state = found.get(tp)
            if state is not None and replace(state, zk_version=wanted.zk_version) == wanted:
                written.done[tp] = state
            elif state is None or state.zk_version == wanted.zk_version:
                again.append((tp, wanted))
            else:
                written.conflicts[tp] = state
        return again
