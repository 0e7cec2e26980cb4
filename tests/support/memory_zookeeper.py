"""A ZooKeeper of one process for the controller's unit tests: nodes, versions, czxids, multis, watches, sessions, lost answers.

`MemoryZooKeeper` is the server; each `MemorySession` stands in for a `ZooKeeperSession`. Every operation takes one turn of the
loop. What `lose_answers` is set for is applied, and then fails with ConnectionLoss (FLT-19).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    SessionExpired,
    SessionState,
    SetOp,
    Stat,
    WatchCallback,
    WatchEvent,
    WatchKind,
    ZkError,
)


@dataclass
class Node:
    data: bytes
    czxid: int
    mzxid: int
    version: int = 0
    owner: int = 0

    def stat(self) -> Stat:
        return Stat(self.czxid, self.mzxid, 0, 0, self.version, 0, 0, self.owner, len(self.data), 0, self.mzxid)


class MemoryZooKeeper:
    """The tree, and who watches what."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"": Node(b"", 0, 0)}
        self.zxid = 0
        self.watches: dict[tuple[str, str], list[tuple[MemorySession, WatchCallback]]] = {}
        self.session_ids = itertools.count(1)
        self.sequence = itertools.count()
        self.writes: list[tuple[int, Sequence[Op]]] = []
        """(session id, operations) of every multi that was applied."""

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        begin = len(prefix)
        return [p[begin:] for p in self.nodes if p.startswith(prefix) and p.find("/", begin) < 0]

    def ensure(self, path: str, data: bytes = b"") -> None:
        """Like an admin tool: makes the node and its parents, or overwrites it."""
        parent = path.rpartition("/")[0]
        if parent not in self.nodes:
            self.ensure(parent)
        self.zxid += 1
        self.apply(CreateOp(path, data) if path not in self.nodes else SetOp(path, data), 0)

    def apply(self, op: Op, session_id: int) -> OpResult:
        node = self.nodes.get(op.path)
        if isinstance(op, CreateOp):
            parent = op.path.rpartition("/")[0]
            if node is not None:
                raise NodeExists(op.path)
            if parent not in self.nodes:
                raise NoNode(op.path)
            self.nodes[op.path] = Node(op.data, self.zxid, self.zxid, owner=session_id if op.ephemeral else 0)
            self._fire("data", op.path, WatchKind.CREATED)
            self._fire("children", parent, WatchKind.CHILDREN)
            return op.path
        if node is None:
            raise NoNode(op.path)
        if op.version not in (-1, node.version):
            raise BadVersion(op.path)
        if isinstance(op, CheckOp):
            return None
        if isinstance(op, SetOp):
            node.data, node.version, node.mzxid = op.data, node.version + 1, self.zxid
            self._fire("data", op.path, WatchKind.CHANGED)
            return node.version
        if self.children(op.path):
            raise NotEmpty(op.path)
        del self.nodes[op.path]
        self._fire("data", op.path, WatchKind.DELETED)
        self._fire("children", op.path, WatchKind.DELETED)
        self._fire("children", op.path.rpartition("/")[0], WatchKind.CHILDREN)
        return None

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        """All or nothing."""
        self._rehearse(ops)
        self.zxid += 1
        self.writes.append((session_id, ops))
        return [self.apply(op, session_id) for op in ops]

    def _rehearse(self, ops: Sequence[Op]) -> None:
        """Applies them, fires no watch, and undoes them. Raises MultiFailed."""
        before = {op.path: self.nodes.get(op.path) for op in ops}
        before = {path: node and replace(node) for path, node in before.items()}
        watches, self.watches = self.watches, {}
        try:
            for index, op in enumerate(ops):
                try:
                    self.apply(op, 0)
                except ZkError as error:
                    raise MultiFailed(index, error) from None
        finally:
            self.watches = watches
            for path, node in before.items():
                if node is not None:
                    self.nodes[path] = node
                else:
                    self.nodes.pop(path, None)

    def watch(self, kind: str, path: str, session: MemorySession, callback: WatchCallback | None) -> None:
        if callback is not None:
            watchers = self.watches.setdefault((kind, path), [])
            if (session, callback) not in watchers:
                watchers.append((session, callback))

    def _fire(self, kind: str, path: str, event: WatchKind) -> None:
        for session, callback in self.watches.pop((kind, path), []):
            if session.state is not SessionState.EXPIRED:
                callback(WatchEvent(event, path))

    def end_session(self, session_id: int) -> None:
        """Removes its ephemeral nodes."""
        self.zxid += 1
        for path in [path for path, node in self.nodes.items() if node.owner == session_id]:
            self.apply(DeleteOp(path), 0)


class MemorySession:
    """What the controller uses of a ZooKeeperSession."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        self.server = server
        self.session_id = next(server.session_ids)
        self.state = SessionState.CONNECTED
        self.lose_answers = 0
        """How many of the next multis are applied without an answer."""
        self.before_multi: Callable[[Sequence[Op]], None] = lambda ops: None
        """Called before each multi is applied: the moment for another writer."""
        self._listeners: list[Callable[[SessionState], None]] = []

    @property
    def last_zxid(self) -> int:
        return self.server.zxid

    async def until_connected(self, timeout_s: float) -> None:
        """A session in memory has no connection that breaks."""

    def add_listener(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.append(callback)

    def remove_listener(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.remove(callback)

    def change_state(self, state: SessionState) -> None:
        self.state = state
        for listener in tuple(self._listeners):
            listener(state)

    def expire(self) -> None:
        """The session ends; `renew` begins another one."""
        ended, self.session_id = self.session_id, 0
        for watchers in self.server.watches.values():
            watchers[:] = [(session, callback) for session, callback in watchers if session is not self]
        self.change_state(SessionState.EXPIRED)
        self.server.end_session(ended)

    def renew(self) -> None:
        self.session_id = next(self.server.session_ids)
        self.change_state(SessionState.CONNECTED)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        self._check_connection()

    def _check_connection(self) -> None:
        if self.state is SessionState.EXPIRED:
            raise SessionExpired("expired")
        if self.state is not SessionState.CONNECTED:
            raise ConnectionLoss("not connected")

    async def heartbeat(self) -> None:
        await self._turn()

    async def get(self, path: str, watch: WatchCallback | None = None) -> tuple[bytes, Stat]:
        await self._turn()
        node = self.server.nodes.get(path)
        if node is None:
            raise NoNode(path)
        self.server.watch("data", path, self, watch)
        return node.data, node.stat()

    async def exists(self, path: str, watch: WatchCallback | None = None) -> Stat | None:
        await self._turn()
        self.server.watch("data", path, self, watch)
        node = self.server.nodes.get(path)
        return None if node is None else node.stat()

    async def children(self, path: str, watch: WatchCallback | None = None) -> list[str]:
        await self._turn()
        if path not in self.server.nodes:
            raise NoNode(path)
        self.server.watch("children", path, self, watch)
        return self.server.children(path)

    async def get_versions(self, paths: Sequence[str]) -> list[tuple[bytes, int, int] | None]:
        nodes = await self.get_many(paths)
        return [None if node is None else (node[0], node[1].version, node[1].mzxid) for node in nodes]

    async def get_many(
        self, paths: Sequence[str], watch: WatchCallback | None = None
    ) -> list[tuple[bytes, Stat] | None]:
        await self._turn()
        nodes = [self.server.nodes.get(path) for path in paths]
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                self.server.watch("data", path, self, watch)
        return [None if node is None else (node.data, node.stat()) for node in nodes]

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> tuple[str, Stat]:
        if sequence:
            path += f"{next(self.server.sequence):010d}"
        await self._one(CreateOp(path, data, ephemeral))
        return path, self.server.nodes[path].stat()

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        await self._one(SetOp(path, data, version))
        return self.server.nodes[path].stat()

    async def delete(self, path: str, version: int = -1) -> None:
        await self._one(DeleteOp(path, version))

    async def _one(self, op: Op) -> None:
        try:
            await self.multi([op])
        except MultiFailed as failure:
            raise failure.error from None

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        session_id = self.session_id
        await self._turn()
        self.before_multi(ops)
        self._check_connection()
        if self.session_id != session_id:
            raise SessionExpired("sent in an earlier session")
        results = self.server.multi(ops, self.session_id)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionLoss("the answer was lost")
        return results
