"""The room for large frames of all connections (NET-2). Pure, apart from the connections that it wakes.

The bytes of large frames count from arrival until their request is handled, and are limited by `queued.max.request.bytes`. Above the limit,
only the oldest incomplete large frame is read on, and frames up to MODEST_FRAME_MAX have a quarter more room. Small frames are read as
usual: waiting producers depend on some of them. What a paused connection has read ahead, beyond the size of a small frame, counts, too.

A frame that arrived whole may wait long for its turn, because its connection is held. So above the limit the frame of a held connection
is not read on, and once whole frames have twice the limit, none is. `ClientConnection.overdue` closes held connections that take the room
of others.

One turn of the loop reads at most about LARGE_TURN_MAX bytes of large frames.

A connection that must wait is woken by its `read_again`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.network.kept_buffers import KeptBuffers

MODEST_FRAME_MAX: Final = 2 * 1024 * 1024
"""Largest usual frame of a producer, in bytes. Such frames are *modest*: they have more room than larger ones."""
MODEST_EXTRA_DIVISOR: Final = 4
"""The additional room of modest frames is `queued.max.request.bytes` divided by this number."""
LARGE_STEP_MAX: Final = 1024 * 1024
LARGE_STEP_MIN: Final = 64 * 1024
MANY_LARGE: Final = 8
"""The buffer of a large frame grows at once by at most LARGE_STEP_MAX bytes. While MANY_LARGE or more arrive, the steps are smaller, down
to LARGE_STEP_MIN."""
LARGE_TURN_MAX: Final = 8 * 1024 * 1024
"""Bytes of all large frames that are read in one turn of the loop. Connections with more bytes continue in the next turn."""


class Turns(Protocol):
    """The part of an event loop that the channel and the room need."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object: ...


class Reading(Protocol):
    """A connection whose reading waits for room."""

    held: int
    """Not 0: its next request cannot be handled now."""

    def read_again(self) -> None: ...


class LargeFrames:
    """See the module's docstring."""

    def __init__(self, turns: Turns, bytes_max: int) -> None:
        """`bytes_max` -1 means no limit."""
        self.bytes = 0
        self.kept = KeptBuffers()
        self._turns = turns
        self._bytes_max = bytes_max
        self._arriving: dict[Reading, int] = {}
        """The connections with an incomplete large frame, the oldest first, and the bytes that have arrived."""
        self._arriving_bytes = 0
        self._modest: dict[Reading, None] = {}
        self._of_turn = 0
        self._next_turn: dict[Reading, None] = {}

    def step(self) -> int:
        """Maximum bytes by which a large frame's buffer grows at once: less while many arrive, since all may be read in one turn."""
        return max(LARGE_STEP_MAX // (1 + len(self._arriving) // MANY_LARGE), LARGE_STEP_MIN)

    @property
    def is_short(self) -> bool:
        """Whether large frames have reached `queued.max.request.bytes`."""
        return 0 <= self._bytes_max <= self.bytes

    def may_read(self, connection: Reading) -> bool:
        """Whether there is room for more bytes of the connection's frame. If not, the connection is woken when there is."""
        most = self._bytes_max
        if most < 0 or self.bytes < most:
            return True
        if connection in self._modest and self.bytes < most + most // MODEST_EXTRA_DIVISOR:
            return True
        return self._oldest() is connection

    def _oldest(self) -> Reading | None:
        """The connection that may read on above the limit. Whole frames can wait for minutes, so they have a limit, too."""
        if self.bytes - self._arriving_bytes >= 2 * self._bytes_max:
            return None
        for connection in self._arriving:
            if not connection.held:
                return connection
        return None

    def began(self, connection: Reading, size: int) -> None:
        """A large frame started; `size` is that of the whole frame."""
        self._arriving[connection] = 0
        if size <= MODEST_FRAME_MAX:
            self._modest[connection] = None

    def grew(self, connection: Reading, size: int) -> None:
        """`size` more bytes of the connection's frame have arrived."""
        self._arriving[connection] += size
        self._arriving_bytes += size
        self.arrived(size)

    def arrived(self, size: int) -> None:
        """`size` bytes have arrived. Those of a frame that came whole with one read are carried by its request as `large_size`."""
        if not self._of_turn:
            self._turns.call_soon(self._turn_ended)
        self._of_turn += size
        self.bytes += size

    def read_ahead(self, by: int) -> None:
        """The bytes that wait with a connection, beyond those of a small frame, changed by `by`."""
        if by < 0:
            self.release(-by)
        else:
            self.bytes += by

    def waits_for_next_turn(self, connection: Reading) -> bool:
        """Whether large frames had their share of this turn. If so, the connection is woken in the next turn."""
        if self._of_turn < LARGE_TURN_MAX:
            return False
        self._next_turn[connection] = None
        return True

    def finish(self, connection: Reading) -> int:
        """The frame is complete. Returns its bytes: they still count, and its request carries them as `large_size`."""
        self._modest.pop(connection, None)
        size = self._arriving.pop(connection)
        self._arriving_bytes -= size
        self.oldest_changed()
        return size

    def oldest_changed(self) -> None:
        """Another connection may be the oldest one now: it reads on."""
        if self.is_short and (oldest := self._oldest()) is not None:
            oldest.read_again()

    def gone(self, connection: Reading) -> None:
        """The connection ended: releases the room of its incomplete frame, if there is one."""
        self._modest.pop(connection, None)
        self._next_turn.pop(connection, None)
        size = self._arriving.pop(connection, 0)
        self._arriving_bytes -= size
        self.release(size)

    def release(self, size: int) -> None:
        """Releases the room of `size` bytes."""
        self.bytes -= size
        most = self._bytes_max
        if most >= 0 and self._arriving:
            if self.bytes < most:
                for connection in list(self._arriving):
                    connection.read_again()
                return
            if self.bytes < most + most // MODEST_EXTRA_DIVISOR:
                for connection in list(self._modest):
                    connection.read_again()
            self.oldest_changed()

    def _turn_ended(self) -> None:
        self._of_turn = 0
        waiting, self._next_turn = self._next_turn, {}
        for connection in waiting:
            connection.read_again()
