"""The controller's reads and writes in ZooKeeper. Every write is fenced (INV-9).

A write is a multi that starts with a check of the version of `/controller_epoch`. Once another controller is elected, no write of
this controller succeeds, however late it arrives (BUG-8). Writes of state znodes are also conditional on their own version. After a
lost connection the nodes are read again: writes that were applied are adopted with their versions, the others are retried (BUG-5).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeVar

from controller.event_log import EventLog, NoEventLog
from protocol.topic_names import INT_MAX, is_valid_topic_name, shown
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
    NotEmpty,
    Op,
    OpResult,
    RequestTooLarge,
    SessionExpired,
    SessionState,
    SetOp,
    Stat,
    WatchCallback,
    ZkError,
    ZooKeeperSession,
    each_readable,
)
from protocol.zk.znodes import (
    BrokerIdZNode,
    ConfigZNode,
    ControllerEpochZNode,
    DeleteTopicZNode,
    IsrChangeZNode,
    LogDirEventZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    TopicZNode,
)

log = logging.getLogger(__name__)

BATCH = 500
"""Writes in one multi, in addition to the fence. ZooKeeper needs less time for each write of a larger multi, up to about a thousand."""
BATCH_BYTES = 500_000
"""Paths and data of one multi: half of the largest request that ZooKeeper accepts (`jute.maxbuffer`)."""
OPERATION_BYTES = 40
"""What an operation takes in addition to its path and data, with a chroot of usual length."""
WRITES_IN_FLIGHT = 32
READS_IN_FLIGHT = 256
STATES_IN_A_SLICE = 2048
SLICES_READ_AT_ONCE = 8
STATES_AT_ONCE = 1000
"""States, or partitions of topics, to decode before other tasks of the process get a turn."""

LEADER_EPOCH_MAX = INT_MAX - 1_000_000
"""A state with a higher leader epoch is invalid: each election raises the epoch, and it must fit into 32 bits."""
NO_VERSIONS: Mapping[str, int] = MappingProxyType({})
NAMES_IN_A_LINE = 3
OPERATIONS_IN_AN_EVENT = 5
"""Operations of a multi that its event names."""

Value = TypeVar("Value")
Row = tuple[TopicPartition, LeaderAndIsr]
Operations = Callable[[Sequence[Row]], list[Op]]
"""The write of each row."""


class ControllerMoved(Exception):
    """Another controller was elected, or the session has ended. The term must stop at once and change nothing more."""


@dataclass(slots=True)
class Written:
    """`done` has the written states as they are in ZooKeeper. `conflicts` has the states found instead (None: missing or unreadable).

    A state that ZooKeeper refuses for another reason, such as missing rights, is logged and in neither.
    """

    done: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    conflicts: dict[TopicPartition, LeaderAndIsr | None] = field(default_factory=dict)


class ClusterStore:
    """The store of one term: bound to the session and to the version of `/controller_epoch` that won the election.

    Calls wait while the connection is lost. They raise ControllerMoved once the term is over, and after `close`.
    """

    def __init__(self, zk: ZooKeeperSession, epoch_version: int, events: EventLog | None = None) -> None:
        self._zk = zk
        self._events = events or NoEventLog()
        self._fence = CheckOp(ControllerEpochZNode.PATH, epoch_version)
        self._session_id = zk.session_id
        self._is_closed = False
        self._state_changed = asyncio.Event()
        self.states_written = 0
        self.writing_s = 0.0
        self._counted_until = 0.0
        self._logged_names: set[str] = set()
        zk.add_listener(self._on_state)

    def close(self) -> None:
        """Ends the term: a reaction in progress ends at its next call here."""
        if not self._is_closed:
            self._is_closed = True
            self._zk.remove_listener(self._on_state)
            self._state_changed.set()

    def _on_state(self, state: SessionState) -> None:
        self._state_changed.set()

    def _check_term(self) -> None:
        if self._is_closed:
            raise ControllerMoved("resigned")
        if self._zk.session_id != self._session_id:
            raise ControllerMoved("the ZooKeeper session is over")

    async def reconnected(self) -> None:
        """Waits until this same session works again."""
        while True:
            self._check_term()
            if self._zk.state is SessionState.CONNECTED:
                return
            self._state_changed.clear()
            await self._state_changed.wait()

    async def others_turn(self) -> None:
        """Pauses a long computation, so that the broker in which this controller runs gets a turn. Raises ControllerMoved."""
        await asyncio.sleep(0)
        self._check_term()

    # -- reading --------------------------------------------------------------------------------------------------

    async def _patiently(self, read: Callable[[], Awaitable[Value]]) -> Value:
        """The result of `read`, which is retried after each lost connection."""
        while True:
            self._check_term()
            try:
                value = await read()
            except ConnectionLoss:
                await self.reconnected()
            except SessionExpired as error:
                raise ControllerMoved(str(error)) from error
            else:
                self._check_term()
                return value

    async def get_many(
        self, paths: Sequence[str], watch: WatchCallback | None = None
    ) -> list[tuple[bytes, Stat] | None]:
        """(content, stat) of each node; None for a node that does not exist or that ZooKeeper does not let us read."""
        return await self._each_readable(paths, lambda some: self._zk.get_many(some, watch))

    async def _each_readable(
        self, paths: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Value | None]]]
    ) -> list[Value | None]:
        """The results of `read` for all paths. A node whose access rights forbid reading it is logged, and its result is None."""
        found = await each_readable(paths, lambda some: self._patiently(lambda: read(some)))
        for at, node in enumerate(found):
            if isinstance(node, ZkError):
                log.error("%s is not readable and is ignored: %s", shown(paths[at]), shown(str(node)))
        return [None if isinstance(node, ZkError) else node for node in found]

    async def exists(self, path: str, watch: WatchCallback | None = None) -> bool:
        """Whether the node exists; the watch fires when it is created, removed or written."""
        return await self._patiently(lambda: self._zk.exists(path, watch)) is not None

    async def each_exists(self, paths: Sequence[str]) -> list[bool]:
        """Whether each node exists, even if ZooKeeper does not let us read it."""
        found: list[bool] = []
        for at in range(0, len(paths), READS_IN_FLIGHT):
            found += await asyncio.gather(*(self.exists(path) for path in paths[at : at + READS_IN_FLIGHT]))
        return found

    async def children(self, path: str, watch: WatchCallback | None = None) -> list[str]:
        """The names below `path`; none if the node does not exist."""

        async def read() -> list[str]:
            try:
                return await self._zk.children(path, watch)
            except NoNode:
                return []

        return await self._patiently(read)

    async def brokers(self, watch: WatchCallback) -> dict[int, BrokerInfo]:
        """The live brokers with their epochs; the watch fires at the next change. Invalid nodes are logged and left out."""
        names = await self.children(BrokerIdZNode.PARENT, watch)
        ids = BrokerIdZNode.broker_ids(names)
        self._log_ignored_names(BrokerIdZNode.PARENT, set(names).difference(map(str, ids)), "the id of a broker")
        paths = [BrokerIdZNode.path(broker) for broker in ids]
        brokers = {}
        for broker, path, node in zip(ids, paths, await self.get_many(paths), strict=True):
            if node is not None:
                info = _decoded(path, BrokerIdZNode.decode, broker, node[0], node[1].czxid)
                if info is not None:
                    brokers[broker] = info
        return brokers

    async def topic_names(self, watch: WatchCallback) -> list[str]:
        """The names below `/brokers/topics`, with a watch for changes. An illegal topic name is logged once and left out."""
        return self.valid_names(TopicZNode.PARENT, await self.children(TopicZNode.PARENT, watch))

    def valid_names(self, parent: str, names: Iterable[str]) -> list[str]:
        """The legal topic names. Illegal ones are logged, each once in a term."""
        valid = {name: is_valid_topic_name(name) for name in names}
        self._log_ignored_names(
            parent, (name for name, is_valid in valid.items() if not is_valid), "the name of a topic"
        )
        return [name for name, is_valid in valid.items() if is_valid]

    def _log_ignored_names(self, parent: str, names: Iterable[str], what: str) -> None:
        new = sorted({f"{parent}/{name}" for name in names} - self._logged_names)
        if new:
            self._logged_names.update(new)
            named = ", ".join(shown(path.rpartition("/")[2]) for path in new[:NAMES_IN_A_LINE])
            log.error("%d nodes below %s are ignored, because none is %s: %s", len(new), parent, what, named)

    async def topics(
        self, names: Sequence[str], watch: WatchCallback
    ) -> dict[str, tuple[str | None, dict[int, Assignment]]]:
        """topic -> (id, assignment), with a watch on each. Missing and unreadable topics are left out."""
        paths = [TopicZNode.path(name) for name in names]
        nodes = await self.get_many(paths, watch)
        topics = {}
        decoded = 0
        for name, path, node in zip(names, paths, nodes, strict=True):
            topic = _decoded(path, decode_topic, node[0]) if node is not None else None
            if topic is not None:
                topics[name] = topic
                decoded += len(topic[1])
            if decoded >= STATES_AT_ONCE:
                decoded = 0
                await self.others_turn()
        return topics

    async def states_in_slices(
        self, partitions: Sequence[TopicPartition], before_zxid: int
    ) -> AsyncIterator[tuple[dict[TopicPartition, LeaderAndIsr], dict[TopicPartition, int]]]:
        """Yields (states, mzxids of the states last written before `before_zxid`) of each slice of the partitions.

        While the caller processes one slice, ZooKeeper reads the next.
        """
        reads: deque[asyncio.Task[tuple[dict[TopicPartition, LeaderAndIsr], dict[TopicPartition, int]]]] = deque()
        try:
            for at in range(0, len(partitions), STATES_IN_A_SLICE):
                some = partitions[at : at + STATES_IN_A_SLICE]
                reads.append(asyncio.get_running_loop().create_task(self._states(some, before_zxid)))
                if len(reads) == SLICES_READ_AT_ONCE:
                    yield await reads.popleft()
            while reads:
                yield await reads.popleft()
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        """The state znodes of these partitions; missing and unreadable ones are left out."""
        return (await self._states(partitions, 0))[0]

    async def _states(
        self, partitions: Sequence[TopicPartition], before_zxid: int
    ) -> tuple[dict[TopicPartition, LeaderAndIsr], dict[TopicPartition, int]]:
        paths = list(map(PartitionStateZNode.path, partitions))
        nodes = await self._each_readable(paths, self._zk.get_versions)
        states: dict[TopicPartition, LeaderAndIsr] = {}
        old: dict[TopicPartition, int] = {}
        decode = PartitionStateZNode.decode
        for at, (tp, node) in enumerate(zip(partitions, nodes, strict=True), 1):
            if node is not None:
                data, version, mzxid = node
                try:
                    state = decode(data, version)
                    if state[1] > LEADER_EPOCH_MAX:
                        raise ValueError(f"leader_epoch is {state[1]}")
                except ValueError as error:
                    log.error("%s is not readable and is ignored: %s", PartitionStateZNode.path(tp), error)
                else:
                    states[tp] = state
                    if mzxid < before_zxid:
                        old[tp] = mzxid
            if at % STATES_AT_ONCE == 0:
                await self.others_turn()
        return states, old

    async def topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The overrides of these topics; empty for a topic without any, or with invalid ones."""
        names = list(topics)
        paths = [ConfigZNode.path("topics", name) for name in names]
        configs = {}
        for name, path, node in zip(names, paths, await self.get_many(paths), strict=True):
            config = _decoded(path, ConfigZNode.decode, node[0]) if node is not None else None
            configs[name] = config or {}
        return configs

    async def isr_changes(self, watch: WatchCallback) -> tuple[list[str], list[TopicPartition]]:
        """(paths of the notifications, partitions named in them), with a watch for the next notification."""
        names = sorted(await self.children(IsrChangeZNode.PARENT, watch))
        paths = [f"{IsrChangeZNode.PARENT}/{name}" for name in names]
        partitions: dict[TopicPartition, None] = {}
        for path, node in zip(paths, await self.get_many(paths), strict=True):
            if node is not None:
                partitions.update(dict.fromkeys(_decoded(path, IsrChangeZNode.decode, node[0]) or ()))
        return paths, list(partitions)

    async def log_dir_events(self, watch: WatchCallback) -> tuple[list[str], set[int]]:
        """(paths of the notifications, brokers with a failed log directory), with a watch for the next notification (LOG-6)."""
        names = sorted(await self.children(LogDirEventZNode.PARENT, watch))
        paths = [f"{LogDirEventZNode.PARENT}/{name}" for name in names]
        brokers = set()
        for path, node in zip(paths, await self.get_many(paths), strict=True):
            broker = _decoded(path, LogDirEventZNode.decode, node[0]) if node is not None else None
            if broker is not None:
                brokers.add(broker)
        return paths, brokers

    async def preferred_election(self, watch: WatchCallback) -> list[TopicPartition] | None:
        """The partitions in `/admin/preferred_replica_election`; None if the node does not exist, empty if it is invalid."""

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
        return list(_decoded(PreferredElectionZNode.PATH, PreferredElectionZNode.decode, data) or ())

    # -- writing --------------------------------------------------------------------------------------------------

    async def write_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> Written:
        """Writes each state, conditional on its `zk_version`."""
        return await self._write(states, _set_states)

    async def create_states(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> Written:
        """Creates the state znodes of new partitions, with the nodes above them."""
        above = [PartitionStateZNode.parents(tp) for tp in states]
        # If a topic was deleted meanwhile, nothing can be created below its node, and its states are conflicts. The node above all
        # partitions is created separately, because it may exist already: partitions were added to the topic.
        for parents in (dict.fromkeys(of_topic for of_topic, _ in above), [of_partition for _, of_partition in above]):
            await self._each([CreateOp(path) for path in parents], (NodeExists, NoNode))
        return await self._write(states, _create_states)

    async def delete(self, paths: Sequence[str], versions: Mapping[str, int] = NO_VERSIONS) -> None:
        """Removes nodes and everything below them. Missing nodes are ignored, and so are those of `versions` that have another one.

        A node that ZooKeeper does not let us remove is logged and stays.
        """
        refused = await self._each([DeleteOp(path, versions.get(path, -1)) for path in paths], (ZkError,))
        for path, error in refused.items():
            if isinstance(error, NotEmpty):
                await self.delete_below(path)
                error = (await self._each([DeleteOp(path)], (ZkError,))).get(path, NoNode())
            if not isinstance(error, NoNode | BadVersion):
                log.error("%s cannot be removed and stays: %s", shown(path), shown(str(error)))

    async def delete_below(self, path: str) -> None:
        """Removes everything below a node, as far as ZooKeeper allows it."""
        await self._each([DeleteOp(found) for found in await self._below(path)], (ZkError,))

    async def remove_topics(self, topics: Mapping[str, Collection[int]], topic_ids: Mapping[str, str]) -> None:
        """CTL-9: removes topics (name -> partitions) whose replicas are all deleted.

        First it removes everything below `/brokers/topics/<topic>`, in bounded multis. Then it removes that node, the topic's settings and
        the request to delete it in one multi: anyone who creates the topic again finds all three or none.
        """
        below = []
        for topic, partitions in topics.items():
            states = [PartitionStateZNode.path(TopicPartition(topic, partition)) for partition in partitions]
            parents = [PartitionStateZNode.parents(TopicPartition(topic, partition)) for partition in partitions]
            below += [*states, *(path for _, path in parents), *dict.fromkeys(path for path, _ in parents)]
        await self._each([DeleteOp(path) for path in below], (NoNode, NotEmpty))
        remaining = {topic: _nodes_of_topic(topic) for topic in topics}
        while remaining:
            was_lost = False
            not_empty = []
            batches = [[DeleteOp(path) for path in paths] for paths in remaining.values()]
            for topic, result in zip(list(remaining), await self.fenced(batches), strict=True):
                if isinstance(result, ConnectionLoss):
                    was_lost = True
                elif not isinstance(result, MultiFailed):
                    del remaining[topic]
                elif isinstance(result.error, NoNode):
                    del remaining[topic][result.index - 1]
                elif isinstance(result.error, NotEmpty):
                    not_empty.append(topic)
                else:
                    log.error("the nodes of topic %s cannot be removed and stay: %s", topic, shown(str(result.error)))
                    del remaining[topic]
            for topic in not_empty:
                # Somebody else created nodes below them.
                for path in remaining[topic]:
                    await self.delete_below(path)
            if was_lost:
                await self.reconnected()
                for topic in await self._gone_or_another(list(remaining), topic_ids):
                    del remaining[topic]
            remaining = {topic: paths for topic, paths in remaining.items() if paths}

    async def _below(self, path: str) -> list[str]:
        """All nodes below `path`, each after the nodes below it."""
        found: list[str] = []
        unseen = [path]
        while unseen:
            parent = unseen.pop()
            below = [f"{parent}/{name}" for name in await self.children(parent)]
            found += below
            unseen += below
        return found[::-1]

    async def _gone_or_another(self, topics: Sequence[str], topic_ids: Mapping[str, str]) -> list[str]:
        """After a lost answer: the topics that were removed, including those that were created again since then.

        A node without an id is another topic's if the request to delete is gone, which is removed in the same multi. Otherwise the topic
        has lost its id.
        """
        paths = [TopicZNode.path(topic) for topic in topics]
        exist = await self.each_exists(paths)
        nodes = await self.get_many(paths)
        requested = await self.each_exists([DeleteTopicZNode.path(topic) for topic in topics])
        gone = []
        for topic, exists, node, is_requested in zip(topics, exist, nodes, requested, strict=True):
            found = None if node is None else _decoded(TopicZNode.path(topic), TopicZNode.decode, node[0])
            is_another = found is not None and found[0] not in (None, topic_ids.get(topic))
            if not exists or is_another or (found is not None and found[0] is None and not is_requested):
                gone.append(topic)
        return gone

    async def delete_preferred_election(self) -> None:
        await self.delete([PreferredElectionZNode.PATH])

    async def fenced(self, batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed | ConnectionLoss]:
        """Writes each batch as one multi that starts with the fence, in order and pipelined. The fence has no result.

        The session's own `multi_many` would continue in a later session; here no write starts after the end of the term (BUG-7).
        """
        window = asyncio.Semaphore(WRITES_IN_FLIGHT)

        async def attempt(batch: Sequence[Op]) -> list[OpResult] | ZkError:
            async with window:
                self._check_term()
                try:
                    result: list[OpResult] | ZkError = await self._zk.multi([self._fence, *batch])
                except ZkError as error:
                    result = error
                self._write_event(batch, result)
                return result

        results: list[list[OpResult] | MultiFailed | ConnectionLoss] = []
        for answer in await asyncio.gather(*map(attempt, batches)):
            match answer:
                case MultiFailed(index=0):
                    raise ControllerMoved(f"the controller epoch has changed: {answer.error}")
                case SessionExpired():
                    raise ControllerMoved(str(answer))
                case MultiFailed() | ConnectionLoss():
                    results.append(answer)
                case RequestTooLarge():
                    results.append(MultiFailed(1, answer))
                case ZkError():
                    raise answer
                case _:
                    results.append(answer[1:])
        return results

    def _write_event(self, batch: Sequence[Op], result: list[OpResult] | ZkError) -> None:
        match result:
            case MultiFailed(index=0):
                outcome = f"refused: another controller was elected ({type(result.error).__name__})"
            case MultiFailed(index=index):
                outcome = f"refused: {type(result.error).__name__} at {batch[index - 1].path}"
            case ZkError():
                outcome = f"unknown: {type(result).__name__}"
            case _:
                outcome = "written"
        self._events.write(
            "zookeeper_write",
            epoch_version=self._fence.version,
            operations=len(batch),
            first=[_operation_row(operation) for operation in batch[:OPERATIONS_IN_AN_EVENT]],
            outcome=outcome,
        )

    async def _each(self, operations: Sequence[Op], accepted: tuple[type[ZkError], ...]) -> dict[str, ZkError]:
        """Applies every operation independently. Returns path -> error of those that failed with an accepted error; raises others.

        After a lost connection only deletions that were not applied are repeated: the node may have been made again.
        """
        refused: dict[str, ZkError] = {}
        since_zxid = self._zk.last_zxid
        batches = [operations[begin:end] for begin, end in _batches(operations)]
        while batches:
            again: list[Sequence[Op]] = []
            lost: list[Sequence[Op]] = []
            for batch, result in zip(batches, await self.fenced(batches), strict=True):
                if isinstance(result, ConnectionLoss):
                    lost.append(batch)
                elif isinstance(result, MultiFailed):
                    if not isinstance(result.error, accepted):
                        raise result
                    if len(batch) > 1:
                        again += [[operation] for operation in batch]
                    else:
                        refused[batch[0].path] = result.error
            if lost:
                await self.reconnected()
                again += await self._to_repeat(lost, since_zxid)
            batches = again
        return refused

    async def _to_repeat(self, batches: Sequence[Sequence[Op]], since_zxid: int) -> list[Sequence[Op]]:
        """The batches without deletions of nodes that are gone, or that are newer than `since_zxid`, when nodes were to be deleted."""
        paths = [operation.path for batch in batches for operation in batch if isinstance(operation, DeleteOp)]
        await self._patiently(self._zk.heartbeat)  # the server of the new connection may lag behind
        nodes = await each_readable(paths, lambda some: self._patiently(lambda: self._zk.get_many(some)))
        gone = {
            path
            for path, node in zip(paths, nodes, strict=True)
            if node is None or (not isinstance(node, ZkError) and node[1].czxid > since_zxid)
        }
        remaining = [[operation for operation in batch if operation.path not in gone] for batch in batches]
        return [batch for batch in remaining if batch]

    async def _write(self, states: Mapping[TopicPartition, LeaderAndIsr], encode: Operations) -> Written:
        begin = asyncio.get_running_loop().time()
        written = await self._write_all(states, encode)
        now = asyncio.get_running_loop().time()
        self.writing_s += now - max(begin, self._counted_until)  # writes overlap
        self._counted_until = now
        self.states_written += len(written.done)
        return written

    async def _write_all(self, states: Mapping[TopicPartition, LeaderAndIsr], encode: Operations) -> Written:
        written = Written()
        rows = list(states.items())
        is_one_by_one = False
        while rows:
            unwritten: list[Row] = []
            culprits: list[Row] = []
            was_lost = False
            operations = encode(rows)
            batches = [(at, at + 1) for at in range(len(rows))] if is_one_by_one else _batches(operations)
            results = await self.fenced([operations[begin:end] for begin, end in batches])
            for (begin, end), result in zip(batches, results, strict=True):
                batch = rows[begin:end]
                if isinstance(result, ConnectionLoss):
                    was_lost = True
                    unwritten += batch
                elif isinstance(result, MultiFailed):
                    culprit = batch[result.index - 1]
                    unwritten += [row for row in batch if row is not culprit]
                    if isinstance(result.error, BadVersion | NodeExists | NoNode):
                        culprits.append(culprit)
                    else:
                        log.error("a state cannot be written: %s", shown(str(result.error)))
                        is_one_by_one = True  # its neighbours are probably refused as well
                else:
                    written.done |= {
                        tp: _state_of((leader, leader_epoch, isr, controller_epoch, _version(node)))
                        for (tp, (leader, leader_epoch, isr, controller_epoch, _)), node in zip(
                            batch, result, strict=True
                        )
                    }
            if was_lost:
                await self.reconnected()
            rows = await self._sort_out(unwritten, culprits, written)
        return written

    async def _sort_out(self, unwritten: Sequence[Row], culprits: Sequence[Row], written: Written) -> list[Row]:
        """Reads the states of these rows again (BUG-5). `culprits` are the rows at which a multi failed.

        Returns the rows to retry: they were not written, because of another row in their multi or a lost connection. Adds all others to
        `written`.
        """
        if not unwritten and not culprits:
            return []
        found = await self.states([tp for tp, _ in (*unwritten, *culprits)])
        refused = {tp for tp, _ in culprits}
        again = []
        for tp, wanted in (*unwritten, *culprits):
            state = found.get(tp)
            version = -1 if state is None else state.zk_version
            if state is not None and state._replace(zk_version=wanted.zk_version) == wanted:
                written.done[tp] = state
            elif version == wanted.zk_version and tp not in refused:
                again.append((tp, wanted))
            else:
                written.conflicts[tp] = state
        return again


def _decoded(path: str, decode: Callable[..., Value], *arguments: Any) -> Value | None:
    """The decoded value. Logs and returns None for invalid content, which a person or a broken tool may have written."""
    try:
        return decode(*arguments)
    except ValueError as error:
        log.error("%s is not readable and is ignored: %s", shown(path), error)
        return None


def decode_topic(data: bytes) -> tuple[str | None, dict[int, Assignment]]:
    """(id, assignment) from a topic's node. Raises ValueError, also if no controller could work with the assignment."""
    topic_id, assignment = TopicZNode.decode(data)
    for replicas in {assigned.replicas for assigned in assignment.values()}:
        if not replicas or len(set(replicas)) != len(replicas):
            raise ValueError(f"a partition has the replicas {list(replicas)}")
    return topic_id, assignment


def _operation_row(operation: Op) -> list[object]:
    """[create, set, delete or check; path; the version that the node must have, -1 or None: any]"""
    name = type(operation).__name__.removesuffix("Op").lower()
    return [name, operation.path, getattr(operation, "version", None)]


def _nodes_of_topic(topic: str) -> list[str]:
    return [TopicZNode.path(topic), ConfigZNode.path("topics", topic), DeleteTopicZNode.path(topic)]


_state_of = partial(tuple.__new__, LeaderAndIsr)
_set_of = partial(tuple.__new__, SetOp)
"""Made from their fields in half of the time that their constructors take."""


def _version(result: OpResult) -> int:
    """The version of a node after our write: the result of a set is the version, that of a creation the path."""
    return result if isinstance(result, int) else 0


def _set_states(rows: Sequence[Row]) -> list[Op]:
    paths = PartitionStateZNode.paths(tp for tp, _ in rows)
    data = PartitionStateZNode.encode_each(state for _, state in rows)
    return list(map(_set_of, zip(paths, data, (state[4] for _, state in rows), strict=True)))


def _create_states(rows: Sequence[Row]) -> list[Op]:
    return [CreateOp(PartitionStateZNode.path(tp), PartitionStateZNode.encode(state)) for tp, state in rows]


def _batches(operations: Sequence[Op]) -> list[tuple[int, int]]:
    """(begin, end) of each multi, which has at most BATCH operations, and BATCH_BYTES if they are more than one."""
    sizes = [len(each.path) + len(getattr(each, "data", b"")) + OPERATION_BYTES for each in operations]
    totals = list(accumulate(sizes, initial=0))
    batches: list[tuple[int, int]] = []
    begin = 0
    while begin < len(operations):
        fitting = bisect_right(totals, totals[begin] + BATCH_BYTES) - 1
        end = min(max(fitting, begin + 1), begin + BATCH)
        batches.append((begin, end))
        begin = end
    return batches
