"""Gives an encrypted connection its bytes piece by piece, so that those which the client does not read can be counted (NET-2).

The loop's transport for TLS encrypts all that it is given and hands it to the one below, and then says that nothing is unsent. Here the
bytes wait until the loop has sent those before. Of what it says is sent, at most about two PIECEs are not.

    ClientConnection --bytes--> PacedTransport --a piece at a time--> the loop's transport for TLS --> the socket
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from protocol.types import Buffer

PIECE = 64 * 1024
"""Bytes. As many as the transport below holds before it says that the socket is full."""


class _Connection(Protocol):
    """The part of a connection that the loop calls."""

    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class PacedTransport(asyncio.BufferedProtocol):
    """The protocol of the loop's transport, and the transport of the connection."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        # Not methods: a read costs no more than without.
        self.get_buffer: Callable[[int], memoryview] = connection.get_buffer  # type: ignore[assignment]
        self.buffer_updated: Callable[[int], None] = connection.buffer_updated  # type: ignore[assignment]
        self._waiting: deque[memoryview] = deque()
        self._size = 0  # bytes of `_waiting`; once the connection is ending, those of that moment
        self._is_full = False  # the loop will call `resume_writing`
        self._high = PIECE
        self._is_paused = False  # the connection knows that more than `_high` bytes are unsent

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        transport.set_write_buffer_limits(high=1, low=0)  # type: ignore[attr-defined]
        self._connection.connection_made(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool | None:
        self._give_all()
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._give()
        if self._is_paused and not self.get_write_buffer_size():
            self._is_paused = False
            self._connection.resume_writing()

    # -- what the connection calls ------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """As of a transport; `low` is 0."""
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self._size + int(self._transport.get_write_buffer_size())

    def write(self, data: Buffer) -> None:
        if self._size or self._is_full or len(data) > PIECE:
            self.writelines((data,))
        else:
            self._transport.write(data)

    def writelines(self, parts: Iterable[Buffer]) -> None:
        for part in parts:
            self._waiting.append(memoryview(part))
            self._size += len(part)
        self._give()
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self._connection.pause_writing()

    def close(self) -> None:
        """Sends what waits, within the time that the loop has for the end of a connection."""
        self._give_all()
        self._transport.close()

    def abort(self) -> None:
        self._forget()
        self._transport.abort()

    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._transport.get_extra_info(name, default)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _give(self) -> None:
        waiting = self._waiting
        while waiting and not self._is_full:
            part = waiting.popleft()
            if len(part) > PIECE:
                waiting.appendleft(part[PIECE:])
                part = part[:PIECE]
            self._size -= len(part)
            self._transport.write(part)

    def _give_all(self) -> None:
        """The loop takes no more after the end, so it gets everything now. What it got counts as unsent until the connection is lost."""
        while self._waiting:
            self._transport.write(self._waiting.popleft())

    def _forget(self) -> None:
        self._waiting.clear()
        self._size = 0


class PacedStream:
    """Makes a stream of asyncio the connection of a PacedTransport: `drain` then waits until the peer has read."""

    def __init__(self, stream: asyncio.StreamReaderProtocol, buffer: memoryview) -> None:
        """`buffer`: for the bytes of one read. Streams of one loop may share it."""
        self._stream = stream
        self._buffer = buffer
        self.connection_made = stream.connection_made
        self.connection_lost = stream.connection_lost
        self.eof_received = stream.eof_received
        self.pause_writing = stream.pause_writing
        self.resume_writing = stream.resume_writing

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._stream.data_received(bytes(self._buffer[:nbytes]))
