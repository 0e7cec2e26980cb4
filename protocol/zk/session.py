"""The ZooKeeper client for one asyncio loop.

A session goes through `SessionState`: CONNECTED -> SUSPENDED (the connection broke, the session may be alive) -> CONNECTED
again, or -> EXPIRED (the session has ended with its ephemeral nodes and watches) -> CONNECTED with a new session id.
Reconnecting is automatic. Listeners are called on the loop after every change. An expiry is always reported before the new session.

Callers can rely on this:

* Operations reach the server in the order in which they were called, and only over the connection that existed at the call.
  Without a connection they fail at once. When the connection breaks, all operations that wait for an answer fail. Nothing is retried:
  after ConnectionLoss of a write the caller reads again (BUG-5).
* A watch fires once, on the loop, before the result of any later read. It survives a reconnect within the session (a missed change
  then fires it) and is dropped without a call when the session expires.
* An expiry is detected when the server reports it on reconnecting. A process that was paused for longer than its session timeout
  finds its connection closed, reconnects, and so detects the expiry. Until then, only `heartbeat` shows whether the session is alive.

The server must be ZooKeeper 3.6 or newer (`get_many` and `children_many` use multiRead).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.protocol.serialization import Create2, Delete, Exists, GetChildren, GetData, SetData, Sync
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from protocol.zk import many_operations
from protocol.zk.access import ANONYMOUS, ZooKeeperAccess
from protocol.zk.kazoo_client import (
    Client,
    Completion,
    Mailbox,
    MultiRead,
    Raw,
    SessionClient,
    SessionObserver,
    WatchData,
    Watcher,
    error_of,
)
from protocol.zk.many_operations import EPHEMERAL_FLAG, SEQUENCE_FLAG, Refused
from protocol.zk.operations import (
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
    SetOp,
    Stat,
    WatchCallback,
    WatchEvent,
    WatchKind,
    ZkError,
    ZooKeeperUnavailable,
)
from protocol.zk.protection import Protection, protection_of

__all__ = [
    "BadVersion",
    "CheckOp",
    "ConnectionLoss",
    "CreateOp",
    "DeleteOp",
    "MultiFailed",
    "NoNode",
    "NodeExists",
    "NotEmpty",
    "Op",
    "OpResult",
    "RequestTooLarge",
    "SessionExpired",
    "SessionState",
    "SetOp",
    "Stat",
    "WatchCallback",
    "WatchEvent",
    "WatchKind",
    "ZkError",
    "ZooKeeperSession",
    "ZooKeeperUnavailable",
    "each_readable",
]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

REPETITIONS_MAX = 10
"""A request that is larger than a server accepts ends the connection each time."""
REQUEST_BYTES_MAX = 1_000_000
"""ZooKeeper accepts requests of 1 MiB by default (`jute.maxbuffer`), and closes the connection for a larger request."""
READS_PER_REQUEST = 256
REQUESTS_IN_FLIGHT = 32
CLOSE_TIMEOUT_S = 5.0
WATCHES_PER_REQUEST = 1000

OpenClient = Callable[[str, int, Mailbox, SessionObserver], SessionClient]
"""(addresses, session timeout in ms, mailbox, observer) -> a client."""

ERRORS: dict[type[Exception], type[ZkError]] = {
    kazoo_errors.NoNodeError: NoNode,
    kazoo_errors.NodeExistsError: NodeExists,
    kazoo_errors.BadVersionError: BadVersion,
    kazoo_errors.NotEmptyError: NotEmpty,
    kazoo_errors.ConnectionLoss: ConnectionLoss,
    kazoo_errors.ConnectionClosedError: ConnectionLoss,
    kazoo_errors.SessionExpiredError: SessionExpired,
    kazoo_errors.SessionMovedError: ConnectionLoss,
}
"""Other errors become a plain ZkError. SessionMovedError means that this connection can no longer be used."""

ACLS: dict[Protection, Any] = {
    Protection.NONE: OPEN_ACL_UNSAFE,
    Protection.READABLE: [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE],
    Protection.SECRET: CREATOR_ALL_ACL,
}
"""As kazoo has them."""

NOT_THE_CAUSE = (kazoo_errors.RolledBackError.code, kazoo_errors.RuntimeInconsistency.code)
"""ZooKeeper's answers to the operations of a failed multi before and after the one that failed."""


class SessionState(Enum):
    """See the docstring of the module. CLOSED is the state before `start` and after `close`."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class ZooKeeperSession:
    """A ZooKeeper client that opens a new session after each expiry. Not thread-safe: all calls must come from the loop.

    `hosts` is `host:port[,host:port...][/chroot]`. A missing chroot is created, and all paths are below it.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int,
        open_client: OpenClient = Client,
        access: ZooKeeperAccess = ANONYMOUS,
    ) -> None:
        """`open_client` makes the connection's object, which is not started yet; another one has no `access`.

        Raises ValueError for hosts that it cannot read.
        """
        self._access = access
        self._protects = access.protects
        self._hosts = hosts
        addresses, slash, chroot = hosts.partition("/")
        self._addresses = addresses
        self._open_client = open_client
        self._chroot = (slash + chroot).rstrip("/")
        self._requested_timeout_ms = session_timeout_ms
        self._timeout_ms = session_timeout_ms
        self._client: SessionClient | None = None
        self._mailbox: Mailbox | None = None
        self._state = SessionState.CLOSED
        self._connection = 0
        self._session_id = 0
        self._password = b""
        self._listeners: list[Callable[[SessionState], None]] = []
        self._outstanding: set[asyncio.Future[Any]] = set()
        self._is_started = False
        self._refusal = ""
        self._logged_refusals: set[str] = set()
        self._first_connected = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        """The current session's id, also while SUSPENDED; 0 if there is none."""
        return self._session_id

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Session id and password, with which another client can take over or end the session."""
        return self._session_id, self._password

    @property
    def last_zxid(self) -> int:
        """The newest transaction that the server has shown to this client: every node that was read until now was created before it, or
        by it."""
        return self._client.last_zxid if self._client is not None else 0

    @property
    def session_timeout_ms(self) -> int:
        """The timeout granted by the server, which may differ from the requested one."""
        return self._timeout_ms

    def add_listener(self, callback: Callable[[SessionState], None]) -> None:
        """Registers `callback(state)`, which is called on the loop after every change of state."""
        self._listeners.append(callback)

    def remove_listener(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.remove(callback)

    async def until_connected(self, timeout_s: float) -> None:
        """Returns when there is a connection, or after `timeout_s`: without a connection the next operation fails with the reason."""
        changed = asyncio.Event()

        def on_change(state: SessionState) -> None:
            if state is SessionState.CONNECTED:
                changed.set()

        if self._state is SessionState.CONNECTED:
            return
        self._listeners.append(on_change)
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            self._listeners.remove(on_change)

    async def repeated(self, step: Callable[[], Awaitable[Result]], timeout_s: float) -> Result:
        """The result of `step`, which is called again whenever the connection or the session is lost during it. It must find what an
        earlier call has done.

        Raises ConnectionLoss or SessionExpired if there is no new connection within `timeout_s` after such a loss, and after
        REPETITIONS_MAX losses. With `timeout_s` 0 it is called once.
        """
        for losses in itertools.count(1):
            try:
                return await step()
            except (ConnectionLoss, SessionExpired) as error:
                if timeout_s <= 0 or losses > REPETITIONS_MAX:
                    raise
                log.warning("%s: trying again when ZooKeeper answers", error)
                await self.until_connected(timeout_s)
                if self._state is not SessionState.CONNECTED:
                    raise type(error)(f"{error}; no new connection within {timeout_s:g} s") from None
        raise AssertionError("not reached")

    async def start(self, timeout_s: float) -> None:
        """Opens a session within `timeout_s` and creates the chroot. Call it once. Raises ZooKeeperUnavailable."""
        mailbox = Mailbox(asyncio.get_running_loop())
        try:
            open_client = self._open_client
            if self._access is not ANONYMOUS:
                open_client = partial(Client, access=self._access)
            client = open_client(self._addresses, self._requested_timeout_ms, mailbox, self)
        except ValueError:
            raise ZooKeeperUnavailable(f"{self._hosts!r} is not host:port[,host:port...][/chroot]") from None
        self._client, self._mailbox = client, mailbox
        client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await self._first_connected.wait()
                await self._make_chroot()
        except (TimeoutError, ConnectionLoss):
            await self.close()
            if self._refusal:
                raise ZooKeeperUnavailable(f"no ZooKeeper can be used: {self._refusal}") from None
            raise ZooKeeperUnavailable(
                f"no ZooKeeper answered at {self._addresses} within {timeout_s:g} s; is it running?"
            ) from None
        except BaseException:
            await self.close()
            raise
        self._is_started = True
        self._call_listeners()

    async def close(self) -> None:
        """Ends the session if ZooKeeper is reachable, which removes its ephemeral nodes at once. Waits for at most CLOSE_TIMEOUT_S."""
        client, self._client = self._client, None
        if client is None:
            return
        client.request_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._stopped.wait()
                client.release()
        self._session_id = 0
        self._fail_outstanding(ConnectionLoss("the ZooKeeper session was closed"))
        self._change_state(SessionState.CLOSED)

    # one operation

    async def get(self, path: str, watch: WatchCallback | None = None) -> tuple[bytes, Stat]:
        """The data and stat of a node. Raises NoNode, and then sets no watch."""
        watcher = _watcher(path, watch)
        data, stat = await self._request(path, GetData(self._full(path), watcher))
        return data or b"", Stat(*stat)

    async def exists(self, path: str, watch: WatchCallback | None = None) -> Stat | None:
        """The stat of a node; None if it does not exist. The watch of a missing node fires when the node is created."""
        watcher = _watcher(path, watch)
        stat = await self._request(path, Exists(self._full(path), watcher), watcher)
        return None if stat is None else Stat(*stat)

    async def children(self, path: str, watch: WatchCallback | None = None) -> list[str]:
        """The names below a node, in any order. Raises NoNode, and then sets no watch."""
        watcher = _watcher(path, watch)
        names: list[str] = await self._request(path, GetChildren(self._full(path), watcher))
        return names

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Writes the node if it has this version (-1: any). Raises NoNode, BadVersion."""
        return Stat(*await self._request(path, SetData(self._full(path), data, version)))

    async def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Creates a node. With `sequence` ZooKeeper appends ten digits to the path. Raises NodeExists, NoNode (no parent).

        `data` None means no data. Kafka distinguishes it from empty data; `get` does not.
        """
        flags = EPHEMERAL_FLAG * ephemeral | SEQUENCE_FLAG * sequence
        request = Create2(self._full(path), data, self._acl_of(path), flags)
        try:
            created, stat = await self._request(path, request)
        except NoNode:
            if not make_parents:
                raise
            await self.ensure_path(path.rpartition("/")[0])
            created, stat = await self._request(path, request)
        return created[len(self._chroot) :], Stat(*stat)

    async def delete(self, path: str, version: int = -1) -> None:
        """Removes the node if it has this version (-1: any). Raises NoNode, BadVersion, NotEmpty."""
        await self._request(path, Delete(self._full(path), version))

    async def ensure_path(self, path: str) -> None:
        """Creates the persistent node and its parents if they are missing.

        These nodes have no data, as in Kafka. Kafka would take empty data in /latest_producer_id_block for a broken block, and allocate no
        ids.
        """
        if path in ("", "/"):
            return
        try:
            await self.create(path, None, make_parents=True)
        except NodeExists:
            return

    async def heartbeat(self) -> None:
        """One round trip through the leader of the ensemble. Success proves that the session was alive at the call."""
        await self._request("/", Sync(self._full("/")))

    # many operations

    async def get_many(
        self, paths: Sequence[str], watch: WatchCallback | None = None
    ) -> list[tuple[bytes, Stat] | None]:
        """Like `get` for each path, None for a missing node; READS_PER_REQUEST nodes per request, pipelined.

        The watch is set on existing nodes, after the read. It fires at once for a node that changed meanwhile, or shortly before the read.
        """
        since_zxid = self.last_zxid
        found: list[tuple[bytes, Stat] | None] = await self._get_many(paths, many_operations.decode_reads)
        if watch is not None:
            there = [path for path, node in zip(paths, found, strict=True) if node is not None]
            for at in range(0, len(there), WATCHES_PER_REQUEST):
                some = there[at : at + WATCHES_PER_REQUEST]
                watchers = [Watcher(path, watch) for path in some]
                await self._request("a watch", WatchData([self._full(path) for path in some], watchers, since_zxid))
        return found

    async def get_versions(self, paths: Sequence[str]) -> list[tuple[bytes, int, int] | None]:
        """Like `get_many`, but with only (data, version, mzxid) of each node: faster for very many nodes."""
        found: list[tuple[bytes, int, int] | None] = await self._get_many(paths, many_operations.decode_versions)
        return found

    async def _get_many(self, paths: Sequence[str], decode: Callable[[bytes, int, int], list[Any]]) -> list[Any]:
        """The results of `decode(message, offset, count)` for the answers, None for a missing node."""

        async def read(some: Sequence[str]) -> list[Any]:
            body = many_operations.encode_reads(map(self._full, some))
            request = Raw(many_operations.MULTI_READ, body, partial(_decoded_reads, decode, some))
            results: list[Any] = await self._request("a multiRead", request)
            return results

        slices = [paths[at : at + READS_PER_REQUEST] for at in range(0, len(paths), READS_PER_REQUEST)]
        return [result for found in await _pipelined([partial(read, some) for some in slices]) for result in found]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Like `children` for each path, None for a missing node."""
        return await self._read_many([GetChildren(self._full(path), None) for path in paths], paths)

    async def multi(self, operations: Sequence[Op]) -> list[OpResult]:
        """Applies all operations or none. Raises MultiFailed.

        Results: the path of a CreateOp (a sequential one with its digits), the new version of a SetOp, otherwise None.
        """
        if not operations:
            return []
        for operation in operations:
            _check_path(operation.path)
        body = many_operations.encode_multi(operations, self._chroot, protects=self._protects)
        count = len(operations)
        answers: list[Any] = await self._request(
            "a multi",
            Raw(many_operations.MULTI, body, lambda message, at: many_operations.decode_multi(message, at, count)),
        )
        for index, answer in enumerate(answers):
            if isinstance(answer, Refused) and answer.code not in NOT_THE_CAUSE:
                raise MultiFailed(index, _translated(error_of(answer.code), operations[index].path))
            if isinstance(answer, str):
                answers[index] = answer[len(self._chroot) :]
        return answers

    async def multi_many(self, batches: Sequence[Sequence[Op]]) -> list[list[OpResult] | ZkError]:
        """Applies each batch as one `multi`, in order and pipelined. The result of a failed batch is its error."""

        async def attempt(batch: Sequence[Op]) -> list[OpResult] | ZkError:
            try:
                return await self.multi(batch)
            except ZkError as error:
                return error

        return await _pipelined([partial(attempt, batch) for batch in batches])

    # called from kazoo's thread, on the loop

    def on_connected(self, connection: int, session_id: int, password: bytes, timeout_ms: int) -> None:
        if self._client is None:
            return
        if self._session_id not in (0, session_id):
            self.on_session_lost()
        self._connection = connection
        self._session_id, self._password, self._timeout_ms = session_id, password, timeout_ms
        self._refusal = ""
        self._logged_refusals.clear()
        self._first_connected.set()
        self._change_state(SessionState.CONNECTED)

    def on_refused(self, reason: str, is_worth_a_line: bool) -> None:
        self._refusal = reason
        if is_worth_a_line and reason not in self._logged_refusals:
            self._logged_refusals.add(reason)
            log.warning("ZooKeeper cannot be used: %s", reason)

    def on_connection_lost(self) -> None:
        if self._client is not None and self._state is SessionState.CONNECTED:
            self._fail_outstanding(ConnectionLoss("the connection to ZooKeeper broke"))
            self._change_state(SessionState.SUSPENDED)

    def on_session_lost(self) -> None:
        if self._client is not None and self._session_id != 0:
            self._session_id = 0
            self._fail_outstanding(SessionExpired("the ZooKeeper session expired"))
            self._change_state(SessionState.EXPIRED)

    def on_stopped(self) -> None:
        self._stopped.set()

    # internals

    def _change_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        log.log(
            logging.INFO if state in (SessionState.CONNECTED, SessionState.CLOSED) else logging.WARNING,
            "ZooKeeper session %s at %s is %s",
            f"{self._session_id:#x}" if self._session_id else "(none)",
            self._addresses,
            state.value,
        )
        if self._is_started:
            self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(self._state)
            except Exception:  # the other listeners must still be called
                log.exception("a listener of the ZooKeeper session failed")

    def _fail_outstanding(self, error: ZkError) -> None:
        for future in self._outstanding:
            if not future.done():
                future.set_exception(error)

    async def _request(self, path: str, request: Any, watcher: Watcher | None = None) -> Any:
        """One request and its answer. `exists` passes its `watcher`, which must know whether the node existed."""
        size = len(getattr(request, "body", None) or getattr(request, "data", None) or b"")
        if size > REQUEST_BYTES_MAX:
            raise RequestTooLarge(f"{path}: {size} bytes are above ZooKeeper's limit of {REQUEST_BYTES_MAX}")
        client, mailbox = self._client, self._mailbox
        if self._state is SessionState.EXPIRED:
            raise SessionExpired(f"{path}: the ZooKeeper session expired")
        if self._state is not SessionState.CONNECTED or client is None or mailbox is None:
            raise ConnectionLoss(f"{path}: not connected to ZooKeeper at {self._addresses}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outstanding.add(future)
        client.submit(request, Completion(mailbox, future, self._connection, watcher))
        try:
            return await future
        except kazoo_errors.KazooException as error:
            raise _translated(error, path) from None
        finally:
            self._outstanding.discard(future)

    async def _read_many(self, reads: Sequence[Any], paths: Sequence[str]) -> list[Any]:
        """The result of each GetData or GetChildren, None for a missing node."""
        requests = [MultiRead(reads[i : i + READS_PER_REQUEST]) for i in range(0, len(reads), READS_PER_REQUEST)]
        answers = await _pipelined([partial(self._request, "a multiRead", request) for request in requests])
        results: list[Any] = []
        for path, answer in zip(paths, (entry for batch in answers for entry in batch), strict=True):
            if isinstance(answer, kazoo_errors.NoNodeError):
                results.append(None)
            elif isinstance(answer, Exception):
                raise _translated(answer, path)
            else:
                results.append(answer)
        return results

    async def _make_chroot(self) -> None:
        names = self._chroot.split("/")[1:]
        for count in range(1, len(names) + 1):
            path = "/" + "/".join(names[:count])
            with contextlib.suppress(NodeExists):
                await self._request(path, Create2(path, b"", self._acl_of("/"), 0))

    def _acl_of(self, path: str) -> Any:
        """kazoo's ACL of a new node with this path, without the chroot."""
        return ACLS[protection_of(path) if self._protects else Protection.NONE]

    def _full(self, path: str) -> str:
        _check_path(path)
        if path == "/":
            return self._chroot or "/"
        return self._chroot + path


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path: it would leave the chroot")


def _decoded_reads(
    decode: Callable[[bytes, int, int], list[Any]], paths: Sequence[str], message: bytes, at: int
) -> list[Any]:
    """Runs in kazoo's thread. The result of a missing node is None; any other refusal is raised."""
    results = decode(message, at, len(paths))
    for index, result in enumerate(results):
        if isinstance(result, Refused):
            if result.code != kazoo_errors.NoNodeError.code:
                raise error_of(result.code)
            results[index] = None
    return results


async def each_readable(
    paths: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[Result]]]
) -> list[Result | ZkError]:
    """The results of `read` for all paths. If ZooKeeper refuses to return a node, the node's result is the error.

    One such node fails the whole read, so the read is repeated in halves. Raises ConnectionLoss, SessionExpired.
    """
    try:
        return [*await read(paths)]
    except (ConnectionLoss, SessionExpired):
        raise
    except ZkError as error:
        if len(paths) == 1:
            return [error]
    middle = len(paths) // 2
    return [*await each_readable(paths[:middle], read), *await each_readable(paths[middle:], read)]


def _watcher(path: str, callback: WatchCallback | None) -> Watcher | None:
    return None if callback is None else Watcher(path, callback)


def _translated(error: Exception, path: str) -> ZkError:
    """The ZkError for an error of kazoo."""
    kind = ERRORS.get(type(error))
    if isinstance(error, kazoo_errors.NoAuthError):
        return ZkError(
            f"{path}: ZooKeeper allows this to another user only; see zookeeper.digest.user and zookeeper.ssl.keystore.location"
        )
    if kind is None:
        return ZkError(f"{path}: {type(error).__name__} {error}".rstrip())
    return kind(f"{path}: {kind.__name__}")


async def _pipelined(calls: Sequence[Callable[[], Coroutine[Any, Any, Result]]]) -> list[Result]:
    """The results of all calls. They start in order, at most REQUESTS_IN_FLIGHT at a time. Raises the first error."""
    window = asyncio.Semaphore(REQUESTS_IN_FLIGHT)

    async def run(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        async with window:
            return await call()

    if len(calls) == 1:
        return [await calls[0]()]
    return await asyncio.gather(*(run(call) for call in calls))
