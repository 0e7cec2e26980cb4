"""The connections of the control-plane listener: frames in, one answer each, in order (FMT-4).

    int32 length | int32 correlation id | msgpack body            (both directions)

Anybody who reaches the address can connect, so all resources of a connection are bounded (BAD-4, BAD-28):

* A frame has at most FRAME_BYTES_MAX, and must be complete FRAME_TIMEOUT_S after its first bytes.
* All frames together, partly read or waiting, take at most BYTES_MAX. Above that limit connections are closed: see `_victim`.
* When there are `connections_max`, a new connection replaces an untrusted one that is not busy; if there is none, the new one is
  closed. `connections_max` follows the limit of open files. When it falls, existing connections stay.
* The next frame is read when the answer has been handed to the transport. If the transport's buffer stays too full for
  WRITE_TIMEOUT_S, because the peer does not read, the connection ends. With TLS, the loop's transport would take any answer and say that
  nothing is unsent, so a PacedTransport is in front of it.

With SASL, a connection logs in first, by the frames of Kafka's protocol, and has LOGIN_S for it. Only brokers get further, and only as
long as they are: whether a user is one is asked again for each frame (`ControlLogins.is_broker`).

A connection becomes *trusted* when a request of the confirmed controller, for this life of the broker, was carried out on it.
Untrusted connections are closed first, and those without a finished login before all others. Idle connections are allowed: other
brokers use them to watch whether this process is alive (`connection_watch`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from broker.network.frame_reader import TLS_HANDSHAKE
from broker.network.paced_transport import PacedStream, PacedTransport
from broker.network.tls_server import TlsServer
from broker.process.rare_lines import RareLine
from broker.security.login import Login, LoginFailed, Logins
from broker.security.scram_users import shown_user

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 32 * 1024**2
"""Enough for a hundred thousand partitions of topics with the longest names, or 900,000 with names of 18 letters."""
FRAME_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 30.0
BYTES_MAX = 2 * FRAME_BYTES_MAX
LOGIN_S = 10.0
"""Time limit for a login by SASL."""
LOGIN_BYTES_MAX = 16 * 1024
FAILURES_LOGGED_EVERY_S = 1.0
CONNECTIONS_MAX = 256
"""Each other broker has one to three: watches of this process, the controller's requests, a ControlledShutdown."""
TOO_MANY_BYTES = f"unfinished control requests take more than {BYTES_MAX} bytes, and this one is the first to be closed"
NO_BROKER = "it is no broker, and has no ClusterAction on the cluster"
BACKLOG = 128
LISTENER = "the control listener"
READ_BYTES = 256 * 1024
TLS_READ_BYTES = 64 * 1024


class Connection:
    """One connection. `is_busy`: its request is being carried out, so no limit may close the connection."""

    def __init__(self, number: int, address: str, task: asyncio.Task[None]) -> None:
        self.number = number
        self.address = address
        self.is_known = False
        """Its login is done, or none is asked for."""
        self.user = ""
        """As whom it has logged in."""
        self.is_trusted = False
        self.is_busy = False
        self.held_bytes = 0
        self.arrival = 0
        self._task = task
        self.reason = ""

    def end(self, reason: str) -> None:
        self.reason = reason
        self._task.cancel()


class ControlLogins(NamedTuple):
    """How connections log in. `is_broker(user, address)`. `failure_delay_s`: how long the answer to a failed login is delayed."""

    logins: Logins
    is_broker: Callable[[str, str], bool]
    failure_delay_s: float


class HandleFrame(Protocol):
    """Takes a request frame without its length. Returns the response frame with its length. Raises ValueError to end the connection."""

    def __call__(self, connection: Connection, frame: bytearray) -> Awaitable[bytes]: ...


class ControlConnections:
    """The listener and its connections; see the module's docstring."""

    def __init__(
        self,
        handle_frame: HandleFrame,
        tls_context: Callable[[], ssl.SSLContext] | None = None,
        logins: ControlLogins | None = None,
        tls_refused: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        """`tls_context`: that of the next handshake; None: the listener is in the clear. `logins` None: nobody logs in.
        `tls_refused(address, reason)`: a handshake has failed.
        """
        self._logins = logins
        self._tls_refused = tls_refused
        self._tls_context = tls_context
        self._tls: TlsServer | None = None
        self._handle_frame = handle_frame
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self.connections_max = CONNECTIONS_MAX
        self._last_number = 0
        self.held_bytes = 0
        self._received = memoryview(bytearray(TLS_READ_BYTES if tls_context is not None else 0))
        self._failed_logins = RareLine(FAILURES_LOGGED_EVERY_S, time.monotonic)

    def __len__(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the bound port (`port` 0: a free one). Raises OSError if the port is taken."""
        if self._tls_context is None:
            self._server = await asyncio.start_server(self._connected, host or None, port, backlog=BACKLOG)
            return int(self._server.sockets[0].getsockname()[1])
        monotonic = asyncio.get_running_loop().time
        self._tls = TlsServer(
            LISTENER,
            self._tls_context,
            self._new_stream,
            monotonic,
            lambda: self.connections_max // 4,
            refused=self._tls_refused,
        )
        bound = await self._tls.bind(host, port)
        self._tls.serve(BACKLOG)
        return bound

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._tls is not None:
            self._tls.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new_stream(self) -> PacedTransport:
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), self._connected, loop=loop)
        return PacedTransport(PacedStream(stream, self._received))

    async def _is_welcome(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether to admit a peer: without SASL everybody who has passed the handshake of TLS, if there is one. Raises ValueError."""
        if self._logins is None or writer.is_closing():
            connection.is_known = True
            return not writer.is_closing()
        login = Login(self._logins.logins)
        try:
            async with asyncio.timeout(LOGIN_S):
                while login.result is None:
                    frame = await self._read_frame(connection, reader, LOGIN_BYTES_MAX)
                    if frame is None:
                        return False
                    answer = login.take(frame)
                    self._release(connection)
                    if login.refusal:
                        self._logins.logins.refused(connection.address, login.refusal, login)
                    if login.result is not None:
                        connection.user = login.result.principal.name
                        if not self._is_broker(connection):
                            raise LoginFailed(NO_BROKER)
                    writer.write(answer)
                    await writer.drain()
        except LoginFailed as failed:
            if failed.reason:
                self._logins.logins.refused(connection.address, failed.reason, login)
            await asyncio.sleep(self._logins.failure_delay_s)
            writer.write(failed.answer)
            await writer.drain()
            who = f"user {shown_user(login.user)}" if login.user else "nobody"
            raise ValueError(f"SASL login of {who} failed: {failed.reason or login.refusal}") from None
        except TimeoutError:
            reason = f"no SASL login within {LOGIN_S:g} s"
            self._logins.logins.refused(connection.address, reason, login)
            raise ValueError(reason) from None
        connection.is_known = True
        return True

    def _is_broker(self, connection: Connection) -> bool:
        return self._logins is None or self._logins.is_broker(connection.user, connection.address)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        self._last_number += 1
        connection = Connection(self._last_number, str(peer[0]) if peer else "", task)
        try:
            if self._make_room():
                self._connections[connection] = task
                if await self._is_welcome(connection, reader, writer):
                    await self._serve(connection, reader, writer)
        except (ValueError, TimeoutError) as error:
            if connection.is_known:
                log.warning("control connection of %s closed: %s", peer, str(error) or "it is too slow")
            elif (earlier := self._failed_logins.happened()) is not None:
                others = f" (and {earlier} earlier connections)" if earlier else ""
                log.warning("control connection of %s closed: %s%s", peer, error, others)
        except (ConnectionError, asyncio.IncompleteReadError):
            log.debug("control connection of %s ended", peer)
        except asyncio.CancelledError:
            # Not raised again: only `close` and `end` cancel, and asyncio's streams would log the cancellation as an error.
            if connection.reason:
                log.warning("control connection of %s closed: %s", peer, connection.reason)
        except Exception:
            # The boundary of the connection: the controller repeats the request on another one.
            log.exception("a control request of %s failed", peer)
        finally:
            self._connections.pop(connection, None)
            self._release(connection)
            # Not close(): it would keep the socket open until the peer reads what is still unsent.
            writer.transport.abort()

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await self._read_frame(connection, reader)
            if frame is None:
                return
            if not self._is_broker(connection):
                raise ValueError(f"user {shown_user(connection.user)}: {NO_BROKER} any more")
            try:
                answer = await self._handle_frame(connection, frame)
            finally:
                connection.is_busy = False
            del frame
            self._release(connection)
            writer.write(answer)
            # Not asyncio.wait_for: in Python 3.11 it loses a cancellation that comes together with the result.
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()

    async def _read_frame(
        self, connection: Connection, reader: asyncio.StreamReader, bytes_max: int = FRAME_BYTES_MAX
    ) -> bytearray | None:
        """The next frame without its length; None at the end of the stream. The buffer grows as bytes arrive (BAD-4).

        Raises ValueError for a bad length or above BYTES_MAX, TimeoutError, IncompleteReadError.
        """
        first = await reader.read(LENGTH_BYTES)
        if not first:
            return None
        self._last_number += 1
        connection.arrival = self._last_number
        async with asyncio.timeout(FRAME_TIMEOUT_S):
            head = first + await reader.readexactly(LENGTH_BYTES - len(first))
            length = int.from_bytes(head, "big", signed=True)
            if length >> 16 == TLS_HANDSHAKE:
                raise ValueError(
                    "it speaks TLS, and this listener has none: see listener.security.protocol.map of both brokers"
                )
            if not LENGTH_BYTES <= length <= bytes_max:
                raise ValueError(f"frame length {length}: allowed are {LENGTH_BYTES} to {bytes_max} bytes")
            frame = bytearray()
            while len(frame) < length:
                piece = await reader.read(min(length - len(frame), READ_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", length)
                self._hold(connection, len(piece))
                frame += piece
        return frame

    # -- the limits ---------------------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Makes room for one more connection. At the limit, closes an untrusted one that is not busy: the oldest of the address that
        has most of them. Returns False if there is none.
        """
        if len(self._connections) < self.connections_max:
            return True
        replaceable = [c for c in self._connections if not c.is_trusted and not c.is_busy]
        replaceable = [c for c in replaceable if not c.is_known] or replaceable
        if not replaceable:
            return False
        of_address = Counter(c.address for c in replaceable)
        crowd = max(of_address, key=of_address.__getitem__)
        self._end(
            min((c for c in replaceable if c.address == crowd), key=lambda c: c.number),
            f"there are {self.connections_max} control connections, and a new one needs room",
        )
        return True

    def _hold(self, connection: Connection, size: int) -> None:
        """Counts the bytes. Above the limit, closes other connections, or raises ValueError if this one must be closed."""
        connection.held_bytes += size
        self.held_bytes += size
        while self.held_bytes > BYTES_MAX:
            victim = self._victim()
            if victim is None or victim is connection:
                raise ValueError(TOO_MANY_BYTES)
            self._end(victim, TOO_MANY_BYTES)

    def _victim(self) -> Connection | None:
        """The connection to close, among those with a partly read or waiting frame: untrusted ones first, then the oldest frame."""
        waiting = (c for c in self._connections if c.held_bytes and not c.is_busy)
        return min(waiting, key=lambda c: (c.is_trusted, c.is_known, c.arrival), default=None)

    def _end(self, connection: Connection, reason: str) -> None:
        connection.end(reason)
        del self._connections[connection]
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
