"""The async gateway to ZooKeeper for one asyncio loop: the only importer of kazoo.

kazoo works in threads of its own; their results, watches and state changes are handed to the loop here, in order. Nothing
is retried and nothing is queued while there is no connection, so no operation of an old session can run in a new one
(BUG-7). After ConnectionLoss nobody knows whether a write was applied: the caller reads again (BUG-5).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

log = logging.getLogger(__name__)
logging.getLogger("kazoo").setLevel(logging.ERROR)

WINDOW = 32
"""Transactions under way at once in `multi_many`."""
READ_WINDOW = 1000
"""Reads under way at once in `get_many` and `children_many`."""

Result = TypeVar("Result")


class ZkError(Exception):
    """Any answer of ZooKeeper, or of the way to it, that is not the result."""


class NoNode(ZkError):
    """The node, or the parent of one to create, is not there."""


class NodeExists(ZkError):
    """The node to create is there."""


class BadVersion(ZkError):
    """The node's version is not the one that the write was conditional on."""


class NotEmpty(ZkError):
    """The node to delete has children."""


class ConnectionLoss(ZkError):
    """No connection, or it broke while the operation was under way: a write may or may not have been applied."""


class SessionExpired(ZkError):
    """The session ended before the operation did."""


class ZooKeeperUnavailable(ZkError):
    """No ZooKeeper answers at the configured address."""


class MultiFailed(ZkError):
    """Nothing of the transaction was applied: the operation at `index` failed with `error`."""

    def __init__(self, index: int, error: ZkError) -> None:
        super().__init__(f"operation {index}: {error!r}")
        self.index = index
        self.error = error


_ERRORS: tuple[tuple[type[Exception], type[ZkError]], ...] = (
    (kazoo_errors.NoNodeError, NoNode),
    (kazoo_errors.NodeExistsError, NodeExists),
    (kazoo_errors.BadVersionError, BadVersion),
    (kazoo_errors.NotEmptyError, NotEmpty),
    (kazoo_errors.SessionExpiredError, SessionExpired),
    (kazoo_errors.ConnectionLoss, ConnectionLoss),
    (kazoo_errors.ConnectionClosedError, ConnectionLoss),
    (kazoo_errors.OperationTimeoutError, ConnectionLoss),
)


def _mapped(error: Exception, path: str = "") -> ZkError:
    kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), ZkError)
    return kind(f"{path}: {error!r}" if path else repr(error))


class SessionState(Enum):
    """EXPIRED is told once; a new session follows by itself, with CONNECTED and another session id."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class Stat(NamedTuple):
    """What ZooKeeper knows of a node beside its data; czxid is the transaction that made it."""

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int
    num_children: int = 0


class WatchEvent(NamedTuple):
    """`kind` is CREATED, DELETED, CHANGED or CHILD."""

    kind: str
    path: str


WatchCallback = Callable[[WatchEvent], None]
StateCallback = Callable[[SessionState], None]


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    path: str
    version: int


Op = CreateOp | SetOp | DeleteOp | CheckOp
OpResult = Stat | str | None
"""Of a SetOp the new Stat, of a CreateOp the path, of the others None."""


def _stat(found: Any) -> Stat:
    return Stat(found.version, found.czxid, found.mzxid, found.ephemeralOwner, found.numChildren)


class ZooKeeperSession:
    """One session at a time; a new one after each expiry until `close`. All methods belong to the loop that called `start`."""

    def __init__(self, hosts: str, *, session_timeout_ms: int) -> None:
        self.hosts = hosts
        self.session_timeout_ms = session_timeout_ms
        self.state = SessionState.CLOSED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[StateCallback] = []
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._inbox_lock = threading.Lock()
        self._is_drain_scheduled = False
        self._is_closing = False
        self._client = KazooClient(
            hosts,
            timeout=session_timeout_ms / 1000,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.1),
            randomize_hosts=True,
        )

    @property
    def session_id(self) -> int:
        """The id of the current session, as `ephemeral_owner` of its nodes has it; 0 without one."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def add_listener(self, listener: StateCallback) -> None:
        """`listener` is called on the loop for every change of `state`."""
        self._listeners.append(listener)

    async def start(self, timeout_s: float) -> None:
        """Connects, and makes the chroot if there is one. Raises ZooKeeperUnavailable after `timeout_s`."""
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(lambda state: self._post(self._on_kazoo_state, state))
        try:
            await self._loop.run_in_executor(None, lambda: self._connect(timeout_s))
        except (KazooTimeoutError, kazoo_errors.KazooException) as error:
            raise ZooKeeperUnavailable(
                f"no ZooKeeper answers at {self.hosts} within {timeout_s:g} s ({error}); is it running?"
            ) from None
        # The CONNECTED event is in the inbox, posted before `start` of kazoo returned.
        await asyncio.sleep(0)
        self._drain()

    def _connect(self, timeout_s: float) -> None:
        """Blocking; in a thread."""
        servers, slash, chroot = self.hosts.partition("/")
        if slash and chroot:
            maker = KazooClient(servers, timeout=self.session_timeout_ms / 1000)
            try:
                maker.start(timeout=timeout_s)
                maker.ensure_path(f"/{chroot}")
            finally:
                maker.stop()
                maker.close()
        self._client.start(timeout=timeout_s)

    async def close(self) -> None:
        """Ends the session: its ephemeral nodes go at once."""
        if self._loop is None or self._is_closing:
            return
        self._is_closing = True
        await self._loop.run_in_executor(None, self._stop)
        self._set_state(SessionState.CLOSED)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # What kazoo's threads hand over.

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        """From any thread: runs on the loop, in the order of the posts."""
        assert self._loop is not None
        with self._inbox_lock:
            self._inbox.append((callback, arguments))
            if self._is_drain_scheduled:
                return
            self._is_drain_scheduled = True
        # A closed loop refuses: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """One wake-up of the loop serves all that came meanwhile."""
        with self._inbox_lock:
            handed_over, self._inbox = self._inbox, []
            self._is_drain_scheduled = False
        for callback, arguments in handed_over:
            callback(*arguments)

    def _on_kazoo_state(self, state: str) -> None:
        if self._is_closing:
            return
        if state == KazooState.CONNECTED:
            self._set_state(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._set_state(SessionState.SUSPENDED)
        elif self.state is not SessionState.CLOSED:
            self._set_state(SessionState.EXPIRED)

    def _set_state(self, state: SessionState) -> None:
        if state is self.state:
            return
        self.state = state
        log.info("ZooKeeper session 0x%x is %s", self.session_id, state.value)
        for listener in self._listeners:
            listener(state)

    def _watcher(self, callback: WatchCallback | None) -> Callable[[Any], None] | None:
        if callback is None:
            return None

        def on_event(event: Any) -> None:
            if event.type != "NONE":  # NONE: the session's own events, which listeners get
                self._post(callback, WatchEvent(event.type, event.path))

        return on_event

    async def _result(self, start: Callable[[], Any], path: str) -> Any:
        """Starts a kazoo operation and awaits it. Raises the gateway's errors."""
        if self.state is not SessionState.CONNECTED:
            raise ConnectionLoss(f"{path}: ZooKeeper session is {self.state.value}")
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()

        def finish(result: Any) -> None:
            if future.done():
                return
            if result.exception is not None:
                future.set_exception(_mapped(result.exception, path))
            else:
                future.set_result(result.value)

        try:
            start().rawlink(lambda result: self._post(finish, result))
        except kazoo_errors.KazooException as error:
            raise _mapped(error, path) from None
        return await future

    # Reading.

    async def get(self, path: str, watch: WatchCallback | None = None) -> tuple[bytes, Stat]:
        """Data and Stat. Raises NoNode (then no watch is set)."""
        data, stat = await self._result(lambda: self._client.get_async(path, self._watcher(watch)), path)
        return data, _stat(stat)

    async def exists(self, path: str, watch: WatchCallback | None = None) -> Stat | None:
        """The Stat or None; the watch is set in either case."""
        found = await self._result(lambda: self._client.exists_async(path, self._watcher(watch)), path)
        return None if found is None else _stat(found)

    async def children(self, path: str, watch: WatchCallback | None = None) -> list[str]:
        """Names of the children. Raises NoNode."""
        names = await self._result(lambda: self._client.get_children_async(path, self._watcher(watch)), path)
        return list(names)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """What `get` gives for each path, None where there is no node; pipelined."""
        return await self._many([lambda path=path: self.get(path) for path in paths])  # type: ignore[misc]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """What `children` gives for each path, None where there is no node; pipelined."""
        return await self._many([lambda path=path: self.children(path) for path in paths])  # type: ignore[misc]

    async def _many(self, reads: Sequence[Callable[[], Awaitable[Result]]]) -> list[Result | None]:
        async def one(read: Callable[[], Awaitable[Result]]) -> Result | None:
            try:
                return await read()
            except NoNode:
                return None

        found: list[Result | None] = []
        for at in range(0, len(reads), READ_WINDOW):
            found += await asyncio.gather(*(one(read) for read in reads[at : at + READ_WINDOW]))
        return found

    async def heartbeat(self) -> None:
        """One round trip to the server in this session. Raises ConnectionLoss or SessionExpired."""
        await self.exists("/")

    # Writing.

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Raises NoNode, BadVersion."""
        return _stat(await self._result(lambda: self._client.set_async(path, data, version), path))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """The path that was made (with its number for `sequence`) and its Stat. Raises NodeExists, NoNode."""
        made, stat = await self._result(
            lambda: self._client.create_async(
                path, data, ephemeral=ephemeral, sequence=sequence, makepath=make_parents, include_data=True
            ),
            path,
        )
        return made, _stat(stat)

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""
        await self._result(lambda: self._client.delete_async(path, version), path)

    async def ensure_path(self, path: str) -> None:
        """Makes the node and its parents where they are missing."""
        await self._result(lambda: self._client.ensure_path_async(path), path)

    async def multi(self, operations: Sequence[Op]) -> list[OpResult]:
        """All or nothing. Raises MultiFailed for the operation that failed; ConnectionLoss when nobody knows."""
        answers = await self._result(lambda: self._transaction(operations).commit_async(), "multi")
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception) and not isinstance(
                answer, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
            ):
                raise MultiFailed(index, _mapped(answer, operations[index].path))
        return [
            _stat(answer) if isinstance(operation, SetOp) else answer if isinstance(operation, CreateOp) else None
            for operation, answer in zip(operations, answers, strict=True)
        ]

    def _transaction(self, operations: Iterable[Op]) -> Any:
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case CreateOp(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case SetOp(path, data, version):
                    transaction.set_data(path, data, version)
                case DeleteOp(path, version):
                    transaction.delete(path, version)
                case CheckOp(path, version):
                    transaction.check(path, version)
        return transaction

    async def multi_many(self, transactions: Sequence[Sequence[Op]]) -> list[list[OpResult] | ZkError]:
        """Each transaction's result, or its error as a value; sent in order, some under way at once."""

        async def one(operations: Sequence[Op]) -> list[OpResult] | ZkError:
            try:
                return await self.multi(operations)
            except ZkError as error:
                return error

        done: list[list[OpResult] | ZkError] = []
        for at in range(0, len(transactions), WINDOW):
            done += await asyncio.gather(*(one(operations) for operations in transactions[at : at + WINDOW]))
        return done
