"""A ZooKeeper of one process for the controller's unit tests: the tree of `ottla sim`, watches, sessions, lost answers.

`MemoryZooKeeper` is the server; each `MemorySession` stands in for a `ZooKeeperSession`. Every operation takes one turn of the
loop. What `lose_answers` is set for is applied, and then fails with ConnectionLoss (FLT-19).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from protocol.zk.session import (
    REPETITIONS_MAX,
    BadVersion,
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
from tools.sim.world.zookeeper_tree import (
    BAD_VERSION,
    CHANGED,
    CHILD,
    CHILDREN,
    CREATED,
    DATA,
    DELETED,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    MultiRefused,
    ZooKeeperTree,
    parent_of,
)

Result = TypeVar("Result")

ERRORS: dict[int, type[ZkError]] = {
    NO_NODE: NoNode,
    BAD_VERSION: BadVersion,
    NODE_EXISTS: NodeExists,
    NOT_EMPTY: NotEmpty,
}
WATCHES = {
    CREATED: ((DATA, WatchKind.CREATED),),
    CHANGED: ((DATA, WatchKind.CHANGED),),
    DELETED: ((DATA, WatchKind.DELETED), (CHILDREN, WatchKind.DELETED)),
    CHILD: ((CHILDREN, WatchKind.CHILDREN),),
}
"""What happened to a node -> the watches that fire, and what they tell."""


class MemoryZooKeeper(ZooKeeperTree):
    """The tree, and who watches what."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, self._fire)
        self.watches: dict[tuple[str, str], list[tuple[MemorySession, WatchCallback]]] = {}
        self.session_ids = itertools.count(1)
        self.writes: list[tuple[int, Sequence[Op]]] = []
        """(session id, operations) of every multi that was applied."""

    def children(self, path: str) -> list[str]:
        return list(self.get(path).children)

    def ensure(self, path: str, data: bytes = b"") -> None:
        """Like an admin tool: makes the node and its parents, or overwrites it."""
        if parent_of(path) not in self.nodes:
            self.ensure(parent_of(path))
        self.apply(CreateOp(path, data) if path not in self.nodes else SetOp(path, data), 0)

    def remove(self, path: str) -> None:
        """Removes the node and all below it, if it is there."""
        for node in sorted((n for n in self.nodes if n == path or n.startswith(f"{path}/")), reverse=True):
            self.apply(DeleteOp(node), 0)

    def apply(self, op: Op, session_id: int) -> Op:
        """Every change of a multi, of a leader or of an admin comes here. Raises Refused."""
        return super()._apply(op, session_id)

    def _apply(self, operation: Op, session_id: int) -> Op:
        return self.apply(operation, session_id)

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:  # type: ignore[override]
        """All or nothing."""
        try:
            done = super().multi(ops, session_id)
        except MultiRefused as refused:
            raise MultiFailed(refused.index, ERRORS[refused.code](ops[refused.index].path)) from None
        self.writes.append((session_id, ops))
        return [self._result(op) for op in done]

    def _result(self, op: Op) -> OpResult:
        if isinstance(op, CreateOp):
            return op.path
        return self.nodes[op.path].version if isinstance(op, SetOp) else None

    def watch(self, kind: str, path: str, session: MemorySession, callback: WatchCallback | None) -> None:
        if callback is not None:
            watchers = self.watches.setdefault((kind, path), [])
            if (session, callback) not in watchers:
                watchers.append((session, callback))

    def _fire(self, change: str, path: str) -> None:
        for kind, event in WATCHES[change]:
            for session, callback in self.watches.pop((kind, path), []):
                if session.state is not SessionState.EXPIRED:
                    callback(WatchEvent(event, path))


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

    async def repeated(self, step: Callable[[], Awaitable[Result]], timeout_s: float) -> Result:
        for _ in range(REPETITIONS_MAX if timeout_s > 0 else 0):
            try:
                return await step()
            except ConnectionLoss:
                continue
        return await step()

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
        self.server.watch(DATA, path, self, watch)
        return node.data, node.stat()

    async def exists(self, path: str, watch: WatchCallback | None = None) -> Stat | None:
        await self._turn()
        self.server.watch(DATA, path, self, watch)
        node = self.server.nodes.get(path)
        return None if node is None else node.stat()

    async def children(self, path: str, watch: WatchCallback | None = None) -> list[str]:
        await self._turn()
        if path not in self.server.nodes:
            raise NoNode(path)
        self.server.watch(CHILDREN, path, self, watch)
        return self.server.children(path)

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return [await self.children(path) if path in self.server.nodes else None for path in paths]

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
                self.server.watch(DATA, path, self, watch)
        return [None if node is None else (node.data, node.stat()) for node in nodes]

    async def ensure_path(self, path: str) -> None:
        await self._turn()
        if path not in self.server.nodes:
            self.server.ensure(path)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        if make_parents:
            await self.ensure_path(parent_of(path))
        created = await self._one(CreateOp(path, data, ephemeral, sequence))
        assert isinstance(created, str)
        return created, self.server.nodes[created].stat()

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        await self._one(SetOp(path, data, version))
        return self.server.nodes[path].stat()

    async def delete(self, path: str, version: int = -1) -> None:
        await self._one(DeleteOp(path, version))

    async def _one(self, op: Op) -> OpResult:
        try:
            return (await self.multi([op]))[0]
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
