"""The connections of the control-plane listener: frames in, one answer each, in order (FMT-4).

    int32 length | int32 correlation id | msgpack body            (both directions)

Anybody who reaches the address can connect, so all resources of a connection are bounded (BAD-4, BAD-28):

* A frame has at most FRAME_BYTES_MAX, and must be complete FRAME_TIMEOUT_S after its first bytes.
* All frames together, partly read or waiting, take at most BYTES_MAX. Above that limit a connection is closed: see `_victim`.
* There are at most `connections_max` connections, as the limit of open files allows. Above that limit a new connection replaces
  an untrusted one, or is closed if there is none.
* An answer that is not read for WRITE_TIMEOUT_S ends the connection. The next frame is read after the answer is written.

A connection that has brought a request of the confirmed controller, for this life of the broker, is *trusted*: others are
closed first. Idle connections are allowed: other brokers use them to watch whether this process is alive (`connection_watch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from typing import Protocol

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 32 * 1024**2
"""Enough for a hundred thousand partitions of topics with the longest names, or a million with usual names."""
FRAME_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 30.0
BYTES_MAX = 2 * FRAME_BYTES_MAX
CONNECTIONS_MAX = 256
"""Each other broker has three or four: the controller's, and those that watch whether this process is alive."""
BACKLOG = 128
READ_BYTES = 256 * 1024


class Connection:
    """One connection. `is_busy`: its request is being carried out and must not be cancelled."""

    def __init__(self, number: int, address: str, task: asyncio.Task[None]) -> None:
        self.number = number
        self.address = address
        self.is_trusted = False
        self.is_busy = False
        self.held_bytes = 0
        self.frame_number = 0
        self._task = task
        self.reason = ""

    def end(self, reason: str) -> None:
        self.reason = reason
        self._task.cancel()


class Answer(Protocol):
    """Takes a frame without its length and returns one with it. Raises ValueError for a frame that ends the connection."""

    def __call__(self, connection: Connection, frame: bytearray) -> Awaitable[bytes]: ...


class ControlConnections:
    """See the module."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self.connections_max = CONNECTIONS_MAX
        self._numbers = 0
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port (`port` 0: a free one). Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._connected, host or None, port, backlog=BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def is_welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """The only place where a peer is admitted. Everybody is admitted now; a shared secret or mTLS belongs here."""
        return not writer.is_closing()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        self._numbers += 1
        connection = Connection(self._numbers, str(peer[0]) if peer else "", task)
        try:
            if self._has_place():
                self._connections[connection] = task
                if await self.is_welcome(reader, writer):
                    await self._serve(connection, reader, writer)
        except (ValueError, TimeoutError) as error:
            log.warning("control connection of %s closed: %s", peer, error or "it is too slow")
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
            writer.close()

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await self._read_frame(connection, reader)
            if frame is None:
                return
            try:
                answer = await self._answer(connection, frame)
            finally:
                connection.is_busy = False
            del frame
            self._release(connection)
            writer.write(answer)
            # Not asyncio.wait_for: in Python 3.11 it loses a cancellation that comes together with the result.
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()

    async def _read_frame(self, connection: Connection, reader: asyncio.StreamReader) -> bytearray | None:
        """The next frame without its length; None at the end. The buffer grows as bytes arrive (BAD-4). Raises ValueError."""
        first = await reader.read(LENGTH_BYTES)
        if not first:
            return None
        self._numbers += 1
        connection.frame_number = self._numbers
        async with asyncio.timeout(FRAME_TIMEOUT_S):
            head = first + await reader.readexactly(LENGTH_BYTES - len(first))
            length = int.from_bytes(head, "big", signed=True)
            if not LENGTH_BYTES <= length <= FRAME_BYTES_MAX:
                raise ValueError(f"frame length {length}: allowed are {LENGTH_BYTES} to {FRAME_BYTES_MAX} bytes")
            frame = bytearray()
            while len(frame) < length:
                piece = await reader.read(min(length - len(frame), READ_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", length)
                self._hold(connection, len(piece))
                frame += piece
        return frame

    # -- the limits ---------------------------------------------------------------------------------------------------

    def _has_place(self) -> bool:
        """True if there is room for one more connection. Closes an untrusted connection if there are too many."""
        if len(self._connections) < self.connections_max:
            return True
        untrusted = [c for c in self._connections if not c.is_trusted and not c.is_busy]
        if not untrusted:
            return False
        of_address = Counter(c.address for c in untrusted)
        crowd = max(of_address, key=of_address.__getitem__)
        self._end(
            min((c for c in untrusted if c.address == crowd), key=lambda c: c.number),
            f"there are {self.connections_max} control connections, and a new one",
        )
        return True

    def _hold(self, connection: Connection, size: int) -> None:
        """Counts the bytes. Closes other connections above the limit; raises ValueError if this one must be closed."""
        connection.held_bytes += size
        self.held_bytes += size
        while self.held_bytes > BYTES_MAX:
            victim = self._victim()
            if victim is None or victim is connection:
                raise ValueError(f"unfinished control requests take {BYTES_MAX} bytes, and this one is the oldest")
            self._end(victim, f"unfinished control requests take {BYTES_MAX} bytes, and this one is the oldest")

    def _victim(self) -> Connection | None:
        """The connection to close, among those with a partly read or waiting frame: untrusted ones first, then the oldest frame."""
        waiting = (c for c in self._connections if c.held_bytes and not c.is_busy)
        return min(waiting, key=lambda c: (c.is_trusted, c.frame_number), default=None)

    def _end(self, connection: Connection, reason: str) -> None:
        connection.end(reason)
        del self._connections[connection]
        self._release(connection)

    def _release(self, connection: Connection) -> None:
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
