"""A ZooKeeper on a host of its own, and the connection of a process to it.

`ZooKeeper` is the server. `ZooKeeperClient` stands in the place of kazoo: the session above it (`protocol.zk.session`) is the real one.
Requests and answers travel over the simulated network, in order; an event of a watch arrives before what is read after it.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.zk.kazoo_client import Completion, Mailbox, Raw, SessionObserver, WatchData, Watcher, error_of
from protocol.zk.many_operations import MULTI, MULTI_READ
from protocol.zk.operations import CheckOp, CreateOp, DeleteOp, Op, SetOp
from tools.sim.world.event_loop import ProcessLoop
from tools.sim.world.network import Host, Network
from tools.sim.world.scheduler import START_S, WALL_START_S
from tools.sim.world.zookeeper_tree import (
    CHANGED,
    CHILD,
    CHILDREN,
    CREATED,
    DATA,
    DELETED,
    NO_NODE,
    RUNTIME_INCONSISTENCY,
    MultiRefused,
    Refused,
    ZooKeeperTree,
)

HOST = "zookeeper"
CONNECTION_LOSS = -4
DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC, CREATE2 = 2, 3, 4, 5, 8, 9, 15
EPHEMERAL, SEQUENCE = 1, 2
RECONNECT_S = 0.1
"""Mean time until the client connects again."""
PINGS_PER_TIMEOUT = 3
SILENCE = 2 / 3
"""Share of the session's time-out after which a client without an answer takes its connection for broken."""

_HEADER = struct.Struct("!i?i")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_LAST = _HEADER.pack(-1, True, -1)


class Event(NamedTuple):
    """What the session's watchers take."""

    type: str
    path: str


class Session:
    """A session at the server."""

    def __init__(self, number: int, timeout_s: float, heard_at: float) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.heard_at = heard_at
        self.connection: Connection | None = None
        self.watches: dict[tuple[str, str], None] = {}
        self.loses_answer = False
        """The connection breaks after the next write, before its answer."""


class Connection:
    """One connection of a client, as the server sees it. Answers keep their order."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self.is_open = True
        self.last_arrival = 0.0


class ZooKeeper:
    """The server. `pause` makes it answer nobody for a while; sessions do not expire meanwhile, as its own clock of them stands still."""

    def __init__(self, network: Network, record: Callable[..., None]) -> None:
        self.host = network.host(HOST)
        self.sessions: dict[int, Session] = {}
        self._network = network
        self._record = record
        self._numbers = itertools.count(1)
        self._paused_until = 0.0
        self.tree = ZooKeeperTree(self._wall_ms, self._changed)
        self.on_change: Callable[[str, str], None] = lambda _event, _path: None
        """Told (event, path) of each change of a node."""

    def _wall_ms(self) -> int:
        return int((self._network.scheduler.now - START_S + WALL_START_S) * 1000)

    def pause(self, seconds: float) -> None:
        now = self._network.scheduler.now
        self._paused_until = max(self._paused_until, now + seconds)
        for session in self.sessions.values():
            session.heard_at = max(session.heard_at, self._paused_until)

    def expire(self, session_id: int) -> None:
        """Ends a session now, whatever its client does."""
        session = self.sessions.get(session_id)
        if session is not None:
            self._end(session, "expired")

    def lose_next_answer(self, session_id: int) -> Callable[[], None]:
        """The session's next write is carried out, and its connection breaks before the answer (FLT-19). Returns what undoes it."""
        session = self.sessions.get(session_id)
        if session is None:
            return lambda: None
        session.loses_answer = True
        return lambda: setattr(session, "loses_answer", False)

    # -- connections --------------------------------------------------------------------------------------------------

    def connect(self, connection: Connection, session_id: int, timeout_s: float) -> None:
        """A client asks for a session: a new one (0), or its own again."""
        if self._waits(self.connect, connection, session_id, timeout_s):
            return
        now = self._network.scheduler.now
        if session_id == 0:
            session = Session(next(self._numbers), timeout_s, now)
            self.sessions[session.number] = session
            self._look_after(session)
        elif session_id not in self.sessions:
            self._send(connection, connection.client.session_is_gone, connection)
            return
        else:
            session = self.sessions[session_id]
        if session.connection is not None and session.connection is not connection:
            self._close(session.connection)
        session.connection = connection
        session.heard_at = now
        self._send(connection, connection.client.connected, connection, session.number, self.tree.zxid)

    def ping(self, connection: Connection, session_id: int) -> None:
        if not self._waits(self.ping, connection, session_id) and self._heard(connection, session_id) is not None:
            self._send(connection, connection.client.was_answered, connection)

    def close_session(self, connection: Connection, session_id: int) -> None:
        if self._waits(self.close_session, connection, session_id):
            return
        session = self._heard(connection, session_id)
        if session is not None:
            self._end(session, "closed")

    def request(self, connection: Connection, session_id: int, request: Any, completion: Completion) -> None:
        if self._waits(self.request, connection, session_id, request, completion):
            return
        session = self._heard(connection, session_id)
        if session is None:
            return
        try:
            answer = self._carry_out(session, request)
        except Refused as refused:
            self._send(connection, connection.client.refused, connection, request, completion, refused.code)
            return
        if session.loses_answer and _is_write(request):
            session.loses_answer = False
            self._close(connection)
            return
        self._send(connection, connection.client.answered, connection, request, completion, answer, self.tree.zxid)

    def _waits(self, call: Callable[..., None], *args: Any) -> bool:
        scheduler = self._network.scheduler
        if scheduler.now >= self._paused_until:
            return False
        scheduler.call_at(self._paused_until, call, *args)
        return True

    def _heard(self, connection: Connection, session_id: int) -> Session | None:
        session = self.sessions.get(session_id)
        if session is None or session.connection is not connection or not connection.is_open:
            return None
        session.heard_at = self._network.scheduler.now
        return session

    def _look_after(self, session: Session) -> None:
        self._network.scheduler.call_at(session.heard_at + session.timeout_s, self._check, session)

    def _check(self, session: Session) -> None:
        if session.number not in self.sessions:
            return
        if self._network.scheduler.now >= session.heard_at + session.timeout_s:
            self._end(session, "expired")
        else:
            self._look_after(session)

    def _end(self, session: Session, why: str) -> None:
        self._record("session", session.number, why)
        del self.sessions[session.number]
        session.watches.clear()
        self.tree.end_session(session.number)
        if session.connection is not None:
            self._close(session.connection)

    def _close(self, connection: Connection) -> None:
        connection.is_open = False
        self._send(connection, connection.client.connection_ended, connection)

    def _send(self, connection: Connection, call: Callable[..., None], *args: Any) -> None:
        """To the client, behind all that was sent to it on this connection."""
        host = connection.client.host
        connection.last_arrival = self._network.carry(self.host, host, connection.last_arrival, call, *args)

    # -- operations ---------------------------------------------------------------------------------------------------

    def _carry_out(self, session: Session, request: Any) -> Any:
        """The answer as kazoo decodes it. Raises Refused."""
        tree = self.tree
        if isinstance(request, Raw):
            return self._raw(session, request)
        if isinstance(request, WatchData):
            self._watch_data(session, request.paths, request.since_zxid)
            return None
        kind = request.type
        if kind == GET_DATA:
            node = tree.get(request.path)
            self._watch(session, DATA, request)
            return node.data, node.stat()
        if kind == EXISTS:
            self._watch(session, DATA, request)
            found = tree.nodes.get(request.path)
            return None if found is None else found.stat()
        if kind == GET_CHILDREN:
            node = tree.get(request.path)
            self._watch(session, CHILDREN, request)
            return list(node.children)
        if kind == CREATE2:
            owner = session.number if request.flags & EPHEMERAL else 0
            path = tree.create(
                request.path, request.data or b"", owner=owner, is_sequential=bool(request.flags & SEQUENCE)
            )
            self._record("zookeeper", "create", path)
            return path, tree.get(path).stat()
        if kind == SET_DATA:
            self._record("zookeeper", "set", request.path)
            return tree.set(request.path, request.data, request.version).stat()
        if kind == DELETE:
            self._record("zookeeper", "delete", request.path)
            tree.delete(request.path, request.version)
            return True
        if kind == SYNC:
            return request.path
        if kind == MULTI_READ:
            return [self._read(operation) for operation in request.operations]
        raise AssertionError(f"a request that this ZooKeeper does not know: {request}")

    def _read(self, operation: Any) -> Any:
        node = self.tree.nodes.get(operation.path)
        if node is None:
            return error_of(NO_NODE)
        return (node.data, node.stat()) if operation.type == GET_DATA else list(node.children)

    def _raw(self, session: Session, request: Raw) -> Any:
        operations = decoded(request.body)
        if request.opcode == MULTI_READ:
            parts = []
            for kind, path, *_ in operations:
                node = self.tree.nodes.get(path)
                assert kind == GET_DATA
                if node is None:
                    parts.append(_HEADER.pack(-1, False, NO_NODE) + _INT.pack(NO_NODE))
                else:
                    stat = _STAT.pack(*node.stat())
                    parts.append(_HEADER.pack(GET_DATA, False, 0) + _INT.pack(len(node.data)) + node.data + stat)
            return request.decode(b"".join(parts) + _LAST, 0)
        assert request.opcode == MULTI
        ops = [operation_of(*operation) for operation in operations]
        self._record("zookeeper", "multi", *(op.path for op in ops))
        try:
            done = self.tree.multi(ops, session.number)
        except MultiRefused as refused:
            codes = [RUNTIME_INCONSISTENCY] * len(ops)
            codes[: refused.index + 1] = [0] * refused.index + [refused.code]
            parts = [_HEADER.pack(-1, False, code) + _INT.pack(code) for code in codes]
        else:
            parts = [self._result(op) for op in done]
        return request.decode(b"".join(parts) + _LAST, 0)

    def _result(self, op: Op) -> bytes:
        match op:
            case CreateOp():
                text = op.path.encode()
                return _HEADER.pack(1, False, 0) + _INT.pack(len(text)) + text
            case SetOp():
                node = self.tree.nodes.get(op.path)
                stat = node.stat() if node is not None else (0,) * 11
                return _HEADER.pack(SET_DATA, False, 0) + _STAT.pack(*stat)
            case DeleteOp():
                return _HEADER.pack(DELETE, False, 0)
            case CheckOp():
                return _HEADER.pack(13, False, 0)

    # -- watches ------------------------------------------------------------------------------------------------------

    def _watch(self, session: Session, kind: str, request: Any) -> None:
        if request.watcher is not None:
            session.watches[kind, request.path] = None

    def _watch_data(self, session: Session, paths: Any, since_zxid: int) -> None:
        for path in paths:
            self.watch_again(session, DATA, path, since_zxid, is_missing=False)

    def watch_again(self, session: Session, kind: str, path: str, since_zxid: int, *, is_missing: bool) -> None:
        """Sets a watch, and fires it at once if something has changed after that transaction."""
        node = self.tree.nodes.get(path)
        event = None
        if is_missing:
            event = CREATED if node is not None else None
        elif node is None:
            event = DELETED
        elif kind == DATA and node.mzxid > since_zxid:
            event = CHANGED
        elif kind == CHILDREN and node.pzxid > since_zxid:
            event = CHILD
        if event is None:
            session.watches[kind, path] = None
        elif session.connection is not None:
            self._send(session.connection, session.connection.client.event, session.connection, event, path)

    def watch_all_again(
        self, connection: Connection, session_id: int, watches: list[tuple[str, str, bool]], since_zxid: int
    ) -> None:
        """SetWatches after a new connection: (kind, path, whether the node was missing)."""
        if self._waits(self.watch_all_again, connection, session_id, watches, since_zxid):
            return
        session = self._heard(connection, session_id)
        if session is not None:
            for kind, path, is_missing in watches:
                self.watch_again(session, kind, path, since_zxid, is_missing=is_missing)

    def _changed(self, event: str, path: str) -> None:
        self.on_change(event, path)
        kinds = {CREATED: (DATA,), CHANGED: (DATA,), CHILD: (CHILDREN,), DELETED: (DATA, CHILDREN)}[event]
        for session in self.sessions.values():
            is_watched = False
            for kind in kinds:
                if (kind, path) in session.watches:
                    del session.watches[kind, path]
                    is_watched = True
            if is_watched and session.connection is not None:
                self._send(session.connection, session.connection.client.event, session.connection, event, path)


class ZooKeeperClient:
    """The connection of one process. It has the part of `protocol.zk.kazoo_client.Client` that the session uses."""

    def __init__(
        self, server: ZooKeeper, loop: ProcessLoop, timeout_s: float, mailbox: Mailbox, observer: SessionObserver
    ) -> None:
        self.host: Host = loop.host
        self.last_zxid = 0
        self._server = server
        self._loop = loop
        self._timeout_s = timeout_s
        self._mailbox = mailbox
        self._observer = observer
        self._connection: Connection | None = None
        """The connection that was asked for or is open."""
        self._is_connected = False
        self._number = 0
        self._session_id = 0
        self._heard_at = 0.0
        self._last_arrival = 0.0
        self._waiting: deque[Completion] = deque()
        self._data_watchers: dict[str, dict[Watcher, None]] = {}
        self._child_watchers: dict[str, dict[Watcher, None]] = {}
        self._is_stopping = False
        self._has_stopped = False

    # -- what the session calls ---------------------------------------------------------------------------------------

    def start_async(self) -> None:
        self._loop.put(self._connect)

    def submit(self, request: Any, completion: Completion) -> None:
        if not self._is_connected or completion.connection != self._number:
            completion.set_exception(error_of(CONNECTION_LOSS))
            return
        self._waiting.append(completion)
        if isinstance(request, WatchData):
            for path, watcher in zip(request.paths, request.watchers, strict=True):
                self._data_watchers.setdefault(path, {})[watcher] = None
        self._send(self._server.request, request, completion)

    def request_stop(self) -> None:
        self._is_stopping = True
        if self._is_connected:
            self._send(self._server.close_session)
        else:
            self._stopped()

    def release(self) -> None:
        """Nothing is held."""

    # -- the connection -----------------------------------------------------------------------------------------------

    def break_connection(self) -> None:
        """The connection is reset on its way."""
        if self._connection is not None:
            self._loop.put(self._broke, self._connection)

    def _connect(self) -> None:
        if self._is_stopping:
            return
        connection = self._connection = Connection(self)
        self._last_arrival = 0.0
        self._carry(self._server.connect, connection, self._session_id, self._timeout_s)
        self._loop.call_later(self._timeout_s * SILENCE, self._check_connecting, connection)

    def _check_connecting(self, connection: Connection) -> None:
        if self._connection is connection and not self._is_connected:
            self._connection = None
            self._connect()

    def _carry(self, call: Callable[..., None], *args: Any) -> None:
        network = self.host.network
        self._last_arrival = network.carry(self.host, self._server.host, self._last_arrival, call, *args)

    def _send(self, call: Callable[..., None], *args: Any) -> None:
        self._carry(call, self._connection, self._session_id, *args)

    def connected(self, connection: Connection, session_id: int, zxid: int) -> None:
        self._loop.put(self._connected, connection, session_id, zxid)

    def _connected(self, connection: Connection, session_id: int, zxid: int) -> None:
        if connection is not self._connection or self._is_stopping:
            return
        self._is_connected = True
        self._number += 1
        self._session_id = session_id
        self._heard_at = self._loop.time()
        watches = [
            (DATA, path, is_missing)
            for path, watchers in self._data_watchers.items()
            for is_missing in dict.fromkeys(watcher.node_is_missing for watcher in watchers)
        ]
        watches += [(CHILDREN, path, False) for path in self._child_watchers]
        if watches:
            self._send(self._server.watch_all_again, watches, self.last_zxid)
        password = b"simulated"
        timeout_ms = round(self._timeout_s * 1000)
        self._mailbox.post(self._observer.on_connected, self._number, session_id, password, timeout_ms)
        self._loop.call_later(self._timeout_s / PINGS_PER_TIMEOUT, self._ping, connection)

    def _ping(self, connection: Connection) -> None:
        if connection is not self._connection or not self._is_connected:
            return
        if self._loop.time() - self._heard_at > self._timeout_s * SILENCE:
            self._broke(connection)
            return
        self._send(self._server.ping)
        self._loop.call_later(self._timeout_s / PINGS_PER_TIMEOUT, self._ping, connection)

    def was_answered(self, connection: Connection) -> None:
        self._loop.put(self._hear, connection)

    def _hear(self, connection: Connection) -> bool:
        if connection is not self._connection:
            return False
        self._heard_at = self._loop.time()
        return True

    def connection_ended(self, connection: Connection) -> None:
        self._loop.put(self._broke, connection)

    def _broke(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        waiting, self._waiting = self._waiting, deque()
        for completion in waiting:
            completion.set_exception(error_of(CONNECTION_LOSS))
        if self._is_connected:
            self._is_connected = False
            self._mailbox.post(self._observer.on_connection_lost)
        if self._is_stopping:
            self._stopped()
        else:
            self._loop.call_later(self._loop.scheduler.soon(RECONNECT_S), self._connect)

    def session_is_gone(self, connection: Connection) -> None:
        self._loop.put(self._session_gone, connection)

    def _session_gone(self, connection: Connection) -> None:
        if connection is not self._connection or self._is_stopping:
            return
        self._connection = None
        self._session_id = 0
        self._data_watchers.clear()
        self._child_watchers.clear()
        self._mailbox.post(self._observer.on_session_lost)
        self._connect()

    def _stopped(self) -> None:
        if not self._has_stopped:
            self._has_stopped = True
            self._mailbox.post(self._observer.on_stopped)

    # -- answers and events -------------------------------------------------------------------------------------------

    def answered(self, connection: Connection, request: Any, completion: Completion, answer: Any, zxid: int) -> None:
        self._loop.put(self._answered, connection, request, completion, answer, zxid)

    def _answered(self, connection: Connection, request: Any, completion: Completion, answer: Any, zxid: int) -> None:
        if not self._hear(connection):
            return
        self._waiting.popleft()
        self.last_zxid = max(self.last_zxid, zxid)
        watcher = getattr(request, "watcher", None)
        completion.set(answer)
        if watcher is not None:
            watchers = self._child_watchers if request.type == GET_CHILDREN else self._data_watchers
            watchers.setdefault(request.path, {})[watcher] = None

    def refused(self, connection: Connection, request: Any, completion: Completion, code: int) -> None:
        self._loop.put(self._refused, connection, request, completion, code)

    def _refused(self, connection: Connection, request: Any, completion: Completion, code: int) -> None:
        if self._hear(connection):
            self._waiting.popleft()
            completion.set_exception(error_of(code))

    def event(self, connection: Connection, event: str, path: str) -> None:
        self._loop.put(self._event, connection, event, path)

    def _event(self, connection: Connection, event: str, path: str) -> None:
        if not self._hear(connection):
            return
        watchers: dict[Watcher, None] = {}
        if event != CHILD:
            watchers |= self._data_watchers.pop(path, {})
        if event in (CHILD, DELETED):
            watchers |= self._child_watchers.pop(path, {})
        for watcher in watchers:
            self._mailbox.post(watcher, Event(event, path))


def _is_write(request: Any) -> bool:
    if isinstance(request, Raw):
        return bool(request.opcode == MULTI)
    return not isinstance(request, WatchData) and request.type in (CREATE2, SET_DATA, DELETE)


def decoded(body: bytes) -> list[tuple[Any, ...]]:
    """The operations of a multi or multiRead, as `many_operations` encodes them: (type, path, data, version or flags)."""
    found: list[tuple[Any, ...]] = []
    at = 0
    while True:
        kind, is_last, _ = _HEADER.unpack_from(body, at)
        at += _HEADER.size
        if is_last:
            return found
        path, at = _taken(body, at)
        name = path.decode()
        if kind == GET_DATA:
            found.append((kind, name))
            at += 1
            continue
        data = b""
        if kind in (1, SET_DATA):
            data, at = _taken(body, at)
        if kind == 1:
            (count,) = _INT.unpack_from(body, at)
            at += _INT.size
            for _ in range(count):
                at += _INT.size
                _, at = _taken(body, at)
                _, at = _taken(body, at)
        (number,) = _INT.unpack_from(body, at)
        at += _INT.size
        found.append((kind, name, data, number))


def _taken(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(body, at)
    begin = at + _INT.size
    return body[begin : begin + max(length, 0)], begin + max(length, 0)


def operation_of(kind: int, path: str, data: bytes, number: int) -> Op:
    if kind == 1:
        return CreateOp(path, data, ephemeral=bool(number & EPHEMERAL), sequence=bool(number & SEQUENCE))
    if kind == SET_DATA:
        return SetOp(path, data, number)
    return DeleteOp(path, number) if kind == DELETE else CheckOp(path, number)
