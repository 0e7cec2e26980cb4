"""Adapts kazoo to one asyncio loop. `session.py` is the interface for all other code.

kazoo provides the wire format, the connect and session handling and the heartbeats. This module changes the following, because a
broker cluster depends on it:

* **Order.** kazoo passes results, watch events and state changes to three threads. This breaks ZooKeeper's promise that a client sees
  a watch event before any later data. Here all of them go through one `Mailbox` to the loop, in the order in which they came from the
  socket. There is one thread, kazoo's connection loop.
* **Fence.** kazoo keeps requests that are made while it reconnects, and sends them later, perhaps in another session (BUG-7). Here
  every request belongs to the connection that the loop knew when it made the request, and is sent over no other.
* **Watches.** kazoo drops watches when it reconnects. Here they survive a reconnect within a session (SetWatches, as in ZooKeeper's
  Java client).
* **Wake-up pipe.** kazoo's pipe blocks, and would stop the loop while some hundred requests wait. Here it does not block, and all
  waiting requests are sent in one write.
* **Handshake.** A ZooKeeper that is just starting sometimes accepts a connection and never answers. kazoo waits for a whole session
  timeout; here the first attempts wait for a shorter time.
* **Many nodes at once.** This module adds multiRead (ZooKeeper 3.6 or newer), requests and answers that other modules encode and decode
  (`Raw`), watches on many nodes in one request, and reads from the socket in large pieces.
* **TLS.** kazoo reads certificates from files for each connection, and knows neither stores nor protocols. Here the context comes from
  Kafka's settings (`access.py`), and the reason why a server cannot be used reaches the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import select
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import (
    SASL,
    CloseInstance,
    Connect,
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    write_string,
)
from kazoo.retry import KazooRetry

from protocol.digest_md5 import BadChallenge, DigestMd5
from protocol.tls import ClientTls
from protocol.zk.access import ANONYMOUS, ZooKeeperAccess
from protocol.zk.handshake import is_end, login_refusal, open_connection, refusal
from protocol.zk.operations import WatchCallback, WatchEvent, WatchKind
from protocol.zk.protection import ZooKeeperLogin

log = logging.getLogger(__name__)

FRAME_HEAD = struct.Struct("!iii")
"""Length, xid, opcode."""
READ_BYTES_MAX = 256 * 1024
RECORD_BYTES_MAX = 16 * 1024
"""Of TLS: OpenSSL returns no more at once."""
SET_WATCHES_XID = -8
SET_WATCHES_BYTES_MAX = 128 * 1024
CONNECT_RETRY_S_MIN = 0.02
CONNECT_RETRY_S_MAX = 0.5
HANDSHAKE_S_MIN = 0.5
TLS_FACTOR = 4
"""A handshake of TLS may take so many times longer: a JVM that has just started is slow at its first ones."""
THREAD_RESTART_S = 0.5
SASL_URI = "zookeeper/zk-sasl-md5"
"""The same for all servers (ZooKeeper's SecurityUtils)."""
SASL_NONCE_BYTES = 16


class Mailbox:
    """Runs calls from another thread on the loop, in the order of `post`. One wake-up runs all waiting calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((call, arguments))
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody needs the call
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._awake = False  # before reading the queue: a later call wakes the loop again
        while self._calls:
            call, arguments = self._calls.popleft()
            try:
                call(*arguments)
            except Exception:  # a bug in one callback must not block the other calls
                log.exception("a ZooKeeper callback failed")


class SessionObserver(Protocol):
    """Receives the connection's state changes, on the loop."""

    def on_connected(self, connection: int, session_id: int, password: bytes, timeout_ms: int) -> None: ...

    def on_refused(self, reason: str, is_worth_a_line: bool) -> None:
        """A server was there, and of no use. Not `is_worth_a_line`: one that starts does that, too."""

    def on_connection_lost(self) -> None: ...

    def on_session_lost(self) -> None: ...

    def on_stopped(self) -> None: ...


class SessionClient(Protocol):
    """What a session needs of the object below it; `Client` is one."""

    @property
    def last_zxid(self) -> int: ...

    def start_async(self) -> object: ...

    def submit(self, request: Any, completion: Completion) -> None: ...

    def request_stop(self) -> None: ...

    def release(self) -> None: ...


class Completion:
    """kazoo calls this object in its thread when a request is answered. `connection` is the number of the request's connection."""

    __slots__ = ("_future", "_mailbox", "_watcher", "connection")

    def __init__(
        self, mailbox: Mailbox, future: asyncio.Future[Any], connection: int, watcher: Watcher | None = None
    ) -> None:
        self._mailbox = mailbox
        self._future = future
        self._watcher = watcher
        self.connection = connection

    def set(self, value: Any = None) -> None:
        if self._watcher is not None:
            self._watcher.node_is_missing = value is None
        self._mailbox.post(self._resolve, value)

    def set_exception(self, error: BaseException) -> None:
        self._mailbox.post(self._reject, error)

    def _resolve(self, value: Any) -> None:
        if not self._future.done():  # otherwise the caller was cancelled
            self._future.set_result(value)

    def _reject(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Watcher:
    """A watch on one node. Equal callbacks on a node are one watch, as in ZooKeeper's Java client."""

    __slots__ = ("_callback", "_path", "node_is_missing")

    def __init__(self, path: str, callback: WatchCallback) -> None:
        self._path = path
        self._callback = callback
        self.node_is_missing = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watcher) and self._callback == other._callback

    def __hash__(self) -> int:
        return hash(self._callback)

    def __call__(self, event: Any) -> None:
        """Runs on the loop: kazoo dispatches it through LoopHandler."""
        self._callback(WatchEvent(WatchKind(event.type), self._path))


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without its worker threads: callbacks go to the mailbox. Its connections have TLS, if `tls` is given."""

    def __init__(self, mailbox: Mailbox, tls: ClientTls | None = None) -> None:
        super().__init__()
        self._mailbox = mailbox
        self.tls = tls
        self.handshake_s = HANDSHAKE_S_MIN
        """How long one of TLS may take."""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        self._mailbox.post(callback.func, *callback.args)

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> Any:
        """kazoo's other arguments are its own way of TLS. Raises OSError."""
        return open_connection(address, hostname, timeout, self.tls, self.handshake_s)

    def select(
        self,
        readable: Sequence[Any],
        writable: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like select.select. kazoo's version creates and drops an epoll object five times per request."""
        if self.tls is not None and (decrypted := [entry for entry in readable if _has_decrypted(entry)]):
            return decrypted, [], []
        poller = select.poll()
        sockets = {}
        for entry in readable:
            poller.register(entry, select.POLLIN)
            sockets[entry.fileno()] = entry
        for entry in writable:
            poller.register(entry, select.POLLOUT)
            sockets[entry.fileno()] = entry
        ready = {sockets[fd] for fd, _ in poller.poll(None if timeout is None else max(0, timeout) * 1000)}
        return [s for s in readable if s in ready], [s for s in writable if s in ready], []


def _has_decrypted(entry: Any) -> bool:
    """Whether bytes of the socket are in OpenSSL already: the kernel does not report them again."""
    return isinstance(entry, ssl.SSLSocket) and entry.pending() > 0


@dataclass(frozen=True, slots=True)
class SetWatches:
    """Sets the watches of a broken connection again. The server reports the changes that were missed."""

    relative_zxid: int
    data: Sequence[str]
    missing: Sequence[str]
    children: Sequence[str]

    type: ClassVar[int] = 101

    def serialize(self) -> bytes:
        message = bytearray(struct.pack("!q", self.relative_zxid))
        for paths in (self.data, self.missing, self.children):
            message += int_struct.pack(len(paths))
            for path in paths:
                message += write_string(path)
        return bytes(message)


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Reads many nodes, each with a `GetData` or `GetChildren`. The answer has the result or the exception for each."""

    operations: Sequence[Any]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        message = bytearray()
        for operation in self.operations:
            message += MultiHeader(operation.type, False, -1).serialize() + operation.serialize()
        return bytes(message + MultiHeader(-1, True, -1).serialize())

    @staticmethod
    def deserialize(message: bytes, offset: int) -> list[Any]:
        results: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(message, offset)
            if header.done:
                return results
            if header.type == GetData.type:
                data, stat = GetData.deserialize(message, offset)
                offset += int_struct.size + len(data or b"") + STAT_BYTES
                results.append((data, stat))
            elif header.type == GetChildren.type:
                names = GetChildren.deserialize(message, offset)
                offset += int_struct.size + sum(int_struct.size + len(name.encode()) for name in names)
                results.append(names)
            else:
                (code,) = int_struct.unpack_from(message, offset)
                offset += int_struct.size
                results.append(EXCEPTIONS[code]())


STAT_BYTES = struct.calcsize("!qqqqiiiqiiq")


def error_of(code: int) -> KazooException:
    """kazoo's exception for ZooKeeper's error code."""
    return EXCEPTIONS[code]()


@dataclass(frozen=True, slots=True)
class Raw:
    """A request that is already encoded. `decode(message, offset)` decodes its answer, in kazoo's thread."""

    opcode: int
    body: bytes
    decode: Callable[[bytes, int], Any]

    type: ClassVar[int] = 0
    """Not the opcode: kazoo handles the answers to some opcodes specially."""

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, message: bytes, offset: int) -> Any:
        return self.decode(message, offset)


@dataclass(frozen=True, slots=True)
class WatchData:
    """Sets a data watch on each of these nodes. The watches of nodes that changed after transaction `since_zxid` fire at once.

    ZooKeeper accepts SetWatches at any time in a session. The content of its answer is irrelevant.
    """

    paths: Sequence[str]
    watchers: Sequence[Watcher]
    since_zxid: int

    type: ClassVar[int] = SetWatches.type

    def serialize(self) -> bytes:
        return SetWatches(self.since_zxid, self.paths, (), ()).serialize()

    def deserialize(self, _message: bytes, _offset: int) -> None:
        return None


class LoginRefused(ConnectionDropped):  # type: ignore[misc]
    """kazoo connects again. The text says as whom, and why."""


class Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection loop with the fence, batched writes and watches that survive a reconnect."""

    def __init__(self, client: Client, retry: Any, mailbox: Mailbox, observer: SessionObserver) -> None:
        super().__init__(client, retry, logger=client.logger)
        self._mailbox = mailbox
        self._observer = observer
        self._number = 0
        self._xid = 0
        self._handshake_s = HANDSHAKE_S_MIN
        self._is_woken = False
        self._reads_ahead = False
        self._received = b""
        self._received_at = 0

    def start(self) -> None:
        super().start()
        self._is_woken = False
        self._write_sock.setblocking(False)
        self._read_sock.setblocking(False)

    def wake(self) -> None:
        """Wakes the thread to look at the request queue."""
        if self._is_woken:
            return  # the thread is already woken and will look
        self._is_woken = True
        with contextlib.suppress(BlockingIOError):  # the pipe is full, so the thread wakes up anyway
            self._write_sock.send(b"\0")

    def zk_loop(self) -> None:
        while not self.client._stopped.is_set():
            try:
                super().zk_loop()
            except Exception:  # kazoo failed unexpectedly: a new session is better than none
                log.exception("the ZooKeeper connection failed; starting over with a new session")
            if not self.client._stopped.is_set():
                time.sleep(THREAD_RESTART_S)
        self._mailbox.post(self._observer.on_stopped)

    def _connect(self, host: str, address: str, port: int) -> tuple[float, float]:
        self._number += 1
        self._reads_ahead = False
        self._received, self._received_at = b"", 0
        self.handler.handshake_s = self._handshake_s * TLS_FACTOR
        try:
            read_timeout_ms, connect_timeout_ms = super()._connect(host, address, port)
            if self.client.sasl is not None:
                self._log_in(self.client.sasl, connect_timeout_ms / 1000)
        except (ConnectionDropped, OSError) as problem:
            self._report(host, port, problem)
            raise
        self._reads_ahead = True
        self._handshake_s = HANDSHAKE_S_MIN
        self._watch_again(connect_timeout_ms / 1000)
        client = self.client
        timeout_ms = round(connect_timeout_ms * len(client.hosts))  # kazoo divided the session's timeout by the hosts
        self._mailbox.post(
            self._observer.on_connected, self._number, client._session_id, client._session_passwd, timeout_ms
        )
        return read_timeout_ms, connect_timeout_ms

    def _log_in(self, login: ZooKeeperLogin, timeout_s: float) -> None:
        """By SASL DIGEST-MD5, the only mechanism of ZooKeeper without Kerberos. Raises LoginRefused."""
        digest = DigestMd5(login.user, login.password, SASL_URI, secrets.token_hex(SASL_NONCE_BYTES))
        try:
            digest.check(self._ask(digest.answer(self._ask(b"", 1, timeout_s)), 2, timeout_s))
        except (BadChallenge, KazooException) as problem:
            if isinstance(problem, ConnectionDropped):
                raise
            reason = str(problem) if isinstance(problem, BadChallenge) else type(problem).__name__
            raise LoginRefused(login_refusal(login.user, reason)) from None

    def _ask(self, token: bytes, xid: int, timeout_s: float) -> bytes:
        """One step of the login. Raises BadChallenge, KazooException."""
        self._submit(SASL(token), timeout_s, xid)
        header, message, at = self._read_header(timeout_s)
        if header.err:
            raise EXCEPTIONS[header.err]()
        if header.xid != xid:
            raise BadChallenge("it answers something else")
        return bytes(SASL.deserialize(message, at)[0] or b"")

    def _report(self, host: str, port: int, problem: BaseException) -> None:
        """Tells the loop why the connection cannot be used, if there is more to it than silence."""
        cause = problem.__context__ if isinstance(problem, ConnectionDropped) else problem
        if isinstance(cause, TimeoutError):
            self._handshake_s *= 2
        uses_tls = self.handler.tls is not None
        reason = refusal(cause or ConnectionResetError(), uses_tls=uses_tls)
        is_worth_a_line = uses_tls and cause is not None and not is_end(cause)
        if isinstance(problem, LoginRefused):
            reason, is_worth_a_line = str(problem), True
        if reason:
            shown = f"[{host}]" if ":" in host else host
            self._mailbox.post(self._observer.on_refused, f"{shown}:{port}: {reason}", is_worth_a_line)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """One request and its answer while connecting. The timeout of the handshake doubles with each attempt."""
        if isinstance(request, Connect):
            timeout = min(timeout, self._handshake_s)
            self._handshake_s *= 2
        return super()._invoke(timeout, request, xid)

    def _watch_again(self, timeout_s: float) -> None:
        """Sends SetWatches for all watches, in pieces that the server accepts. After an expiry there are no watches."""
        watches: list[tuple[int, str]] = []
        for path, watchers in self.client._data_watchers.items():
            kinds = {1 if watcher.node_is_missing else 0 for watcher in watchers}
            watches += [(kind, path) for kind in kinds]
        watches += [(2, path) for path, watchers in self.client._child_watchers.items() if watchers]
        while watches:
            kinds_and_paths: tuple[list[str], list[str], list[str]] = ([], [], [])
            size = 0
            while watches and size < SET_WATCHES_BYTES_MAX:
                kind, path = watches.pop()
                kinds_and_paths[kind].append(path)
                size += len(path) + int_struct.size
            self._submit(SetWatches(self.client.last_zxid, *kinds_and_paths), timeout_s, SET_WATCHES_XID)

    def _read(self, length: int, timeout: float) -> bytes:
        """The next `length` bytes of the connection. Reads up to READ_BYTES_MAX at once, and keeps the rest for the next call."""
        if not self._reads_ahead:
            return bytes(super()._read(length, timeout))
        held = len(self._received) - self._received_at
        if held < length:
            parts = [self._received[self._received_at :]]
            while held < length:
                part = self._receive()
                if not part and not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("socket timeout during read")
                parts.append(part)
                held += len(part)
            self._received, self._received_at = b"".join(parts), 0
        begin = self._received_at
        self._received_at = begin + length
        return self._received[begin : begin + length]

    def _receive(self) -> bytes:
        """What is there now. Empty: nothing, or of TLS no whole record."""
        with self._socket_error_handling():
            try:
                found = bytes(self._socket.recv(READ_BYTES_MAX if self.handler.tls is None else RECORD_BYTES_MAX))
            except (BlockingIOError, ssl.SSLWantReadError):
                return b""
        if not found:
            raise ConnectionDropped("socket connection broken")
        return found

    def _holds_a_frame(self) -> bool:
        held = len(self._received) - self._received_at
        if held < int_struct.size:
            return False
        (length,) = int_struct.unpack_from(self._received, self._received_at)
        return bool(held >= int_struct.size + length)

    def _read_socket(self, read_timeout: float) -> Any:
        """Handles all frames that were received: the socket does not report them again."""
        if self._received_at == len(self._received):
            self._received, self._received_at = self._receive(), 0
            if not self._received:
                return None  # of TLS, a part of a record, or one without content
        outcome = super()._read_socket(read_timeout)
        while outcome is not CLOSE_RESPONSE and self._holds_a_frame():
            outcome = super()._read_socket(read_timeout)
        return outcome

    def _read_response(self, header: Any, message: bytes, offset: int) -> Any:
        if header.xid == SET_WATCHES_XID:
            return None
        return super()._read_response(header, message, offset)

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        """Sends all waiting requests of this connection in one write. Requests of earlier connections fail."""
        with contextlib.suppress(BlockingIOError):
            self._read_sock.recv(4096)
        self._is_woken = False  # before reading the queue: a request that is queued later wakes the thread again
        client = self.client
        message = bytearray()
        while client._queue:
            request, completion = client._queue.popleft()
            if completion is not None and completion.connection != self._number:
                completion.set_exception(ConnectionLoss())
                continue
            self._xid = (self._xid % 2147483647) + 1
            opcode = request.opcode if isinstance(request, Raw) else request.type
            body = bytes(request.serialize())
            message += FRAME_HEAD.pack(len(body) + FRAME_HEAD.size - int_struct.size, self._xid, opcode)
            message += body
            if isinstance(request, WatchData):
                # Before sending, because a watch may fire before the answer arrives.
                for path, watcher in zip(request.paths, request.watchers, strict=True):
                    client._data_watchers[path].add(watcher)
            client._pending.append((request, completion, self._xid))
        if message:
            self._write(bytes(message), connect_timeout)


class Client(KazooClient):  # type: ignore[misc]
    """A kazoo client. `submit` makes a request. Answers and state changes (to `observer`) go through `mailbox`."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        mailbox: Mailbox,
        observer: SessionObserver,
        access: ZooKeeperAccess = ANONYMOUS,
    ) -> None:
        """`access`: how each connection is made, and as whom it logs in before its first request."""
        login = access.login
        logger = logging.getLogger(f"{__name__}.kazoo")
        logger.setLevel(logging.ERROR)  # kazoo would warn of every attempt to connect; the session logs it once
        retry = KazooRetry(
            max_tries=-1, delay=CONNECT_RETRY_S_MIN, backoff=1.5, max_jitter=0.3, max_delay=CONNECT_RETRY_S_MAX
        )
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=LoopHandler(mailbox, access.tls),
            connection_retry=retry,
            logger=logger,
            auth_data={("digest", f"{login.user}:{login.password}")} if login is not None else None,
        )
        self.sasl = access.sasl
        self._mailbox = mailbox
        self._observer = observer
        self._connection = Connection(self, self._conn_retry.copy(), mailbox, observer)
        self.add_listener(self._on_state)

    def submit(self, request: Any, completion: Completion) -> None:
        """Sends `request` if the connection of `completion` still exists. Never blocks."""
        self._queue.append((request, completion))
        self._connection.wake()

    def request_stop(self) -> None:
        """Closes the session if connected and ends the thread, then calls `observer.on_stopped`. Never blocks."""
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        self._connection.wake()

    def release(self) -> None:
        """Frees the connection's resources. Call it after `on_stopped`."""
        self._connection.close()

    def _on_state(self, state: str) -> None:
        """Runs in kazoo's thread. New connections are reported by Connection."""
        if state == "SUSPENDED":
            self._mailbox.post(self._observer.on_connection_lost)
        elif state == "LOST":
            self._mailbox.post(self._observer.on_session_lost)

    def _reset_watchers(self) -> None:
        """kazoo also calls this for a broken connection, but only the end of the session ends the watches."""
        if self._state in CLOSED_STATES:
            self._child_watchers.clear()
            self._data_watchers.clear()
