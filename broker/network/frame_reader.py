"""Cuts the bytes of one connection into frames (BAD-1..5). Pure: it knows neither the socket nor the requests.

All connections of a processor receive into one buffer, the *shared* one. Whole frames are copied out of it, many per read. The rest of a
read waits in a small buffer of the connection. A *large* frame that is not whole gets a buffer of its own, into which its rest is
received: that of an earlier frame (`kept_buffers.py`), or a new one, which grows as bytes arrive and never by the announced size (BAD-4).

    get_buffer -> the socket fills it -> received -> next, and take or begin_large, until NEED_DATA

A caller that stops before NEED_DATA calls `stop`. What it did not take is kept, and `next` continues there.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.network.large_frames import LARGE_STEP_MAX, LargeFrames

RECEIVE_BUFFER_SIZE: Final = 256 * 1024
"""Bytes that one read may have."""

SMALL_FRAME_MAX: Final = 64 * 1024
"""A frame with more bytes, its length included, is *large*. A read has at most so many bytes while there is no room for large frames."""

LONG_READ: Final = 16 * 1024
"""A connection that sends so many bytes at once gets all of the shared buffer for its next read."""

SHORT_READ: Final = 4 * 1024
"""Bytes of the read after a frame that is larger than the shared buffer: the next frame probably is, and needs a buffer of its own."""

REST_SIZE_MIN: Final = 8 * 1024
"""Minimum size of a connection's own buffer, in which an incomplete frame waits for its rest."""

# What `next` finds.
NEED_DATA: Final = 0
SMALL: Final = 1
"""A whole small frame: `take` returns it."""
LARGE: Final = 2
"""A whole large frame, in one read: `take` returns it."""
LARGE_BEGINS: Final = 3
"""The start of a large frame: `begin_large` moves it to a buffer of its own."""
LARGE_ENDS: Final = 4
"""The large frame in its own buffer is whole: `take` returns it."""

TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a client that speaks TLS."""

NOTHING: Final = memoryview(bytearray())

_LENGTH: Final = Struct(">i")
_ZEROS: Final = memoryview(bytes(LARGE_STEP_MAX))


class IllegalFrame(Exception):
    """The announced size of a frame is not allowed (BAD-1..3). Its text says what is."""


class ReceiveViews:
    """The starts of the buffer into which connections receive: for a read of the usual length, a long one, a short one."""

    __slots__ = ("long", "short", "usual")

    def __init__(self) -> None:
        whole = memoryview(bytearray(RECEIVE_BUFFER_SIZE))
        self.usual = whole[:SMALL_FRAME_MAX]
        self.long = whole
        self.short = whole[:SHORT_READ]


class FrameReader:
    """See the module's docstring. Sizes are in bytes; that of a frame does not include its length field."""

    __slots__ = (
        "_at",
        "_end",
        "_filled",
        "_frame",
        "_from",
        "_rest",
        "_room",
        "_view",
        "_views",
        "held",
        "read_ahead",
        "size",
        "size_max",
        "size_setting",
    )

    def __init__(self, views: ReceiveViews, room: LargeFrames, size_max: int) -> None:
        self.size_max = size_max
        self.size_setting = "socket.request.max.bytes"
        """The setting by which frames are limited to `size_max`."""
        self.size = 0
        """The size of the frame that `next` found last."""
        self.held = 0
        """Bytes that wait in the connection's own buffer: of an incomplete frame that is not large, or behind a `stop`."""
        self.read_ahead = 0
        """The size of the connection's own buffer beyond that of a small frame."""
        self._views = views
        self._room = room
        self._view = views.usual  # for the next read into the shared buffer
        self._rest = NOTHING  # the connection's own buffer
        self._from = NOTHING  # the buffer that is cut: the shared one, or `_rest`
        self._at = 0  # the bytes of `_from` that were taken
        self._end = 0  # the bytes of `_from` that have arrived
        self._frame: bytearray | memoryview | None = None  # the large frame that arrives; a memoryview: a kept buffer
        self._filled = 0

    @property
    def is_in_large_frame(self) -> bool:
        """Whether the next bytes are those of a large frame."""
        return self._frame is not None

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes, never empty. While there is no room for large frames, little is read ahead."""
        frame = self._frame
        if frame is None:
            if self._end:
                return self._rest[self._end :]
            views = self._views
            return views.usual if self._view is views.long and self._room.is_short else self._view
        if isinstance(frame, bytearray) and self._filled == len(frame):
            # The buffer grows here and not in `received`, where the loop still holds a view of it.
            frame += _ZEROS[: min(self.size - self._filled, max(self._filled, SMALL_FRAME_MAX), self._room.step())]
        return memoryview(frame)[self._filled :]

    def received(self, nbytes: int) -> None:
        """The first `nbytes` bytes of the buffer that `get_buffer` returned have arrived."""
        if self._frame is not None:
            self._filled += nbytes
        elif self._end:
            self._end += nbytes
        else:
            self._from, self._end = self._view, nbytes
            self._view = self._views.long if nbytes >= LONG_READ else self._views.usual

    def next(self) -> int:
        """Says what has arrived: see the constants. Raises IllegalFrame."""
        if self._frame is not None:
            return LARGE_ENDS if self._filled == self.size else NEED_DATA
        there = self._end - self._at
        if there < 4:
            if there or self.held:
                self._keep(there, there + 1)
            else:
                self._at = self._end = 0
            return NEED_DATA
        (size,) = _LENGTH.unpack_from(self._from, self._at)
        if not 0 < size <= self.size_max:
            if size >> 16 == TLS_HANDSHAKE:
                raise IllegalFrame(
                    "a TLS handshake, and this listener has no TLS: it needs security.protocol=PLAINTEXT or SASL_PLAINTEXT"
                )
            raise IllegalFrame(f"a frame of {size} bytes: allowed are 1 to {self.size_max} ({self.size_setting})")
        self.size = size
        whole = size + 4
        if whole > SMALL_FRAME_MAX:
            return LARGE if there >= whole else LARGE_BEGINS
        if there >= whole:
            return SMALL
        self._keep(there, whole)
        return NEED_DATA

    def read_little(self) -> None:
        """The next read has at most SHORT_READ bytes."""
        self._view = self._views.short

    def stop(self) -> None:
        """The caller takes no more now. It reads less the next time."""
        there = self._end - self._at
        self._keep(there, there + 1)
        self._view = self._views.usual

    def take(self) -> bytes | memoryview:
        """The frame that is whole, in memory of its own: bytes if it came in one read."""
        frame = self._frame
        if frame is None:
            begin = self._at + 4
            self._at = end = begin + self.size
            return bytes(self._from[begin:end])
        self._frame = None
        if isinstance(frame, bytearray):
            self._room.kept.keep(frame)
        if self.size > RECEIVE_BUFFER_SIZE:
            self._view = self._views.short
        return memoryview(frame)

    def begin_large(self) -> int:
        """Moves the first bytes of a large frame to a buffer of its own, and returns their number. Nothing else has arrived."""
        begin, end = self._at + 4, self._end
        self._filled = filled = end - begin
        kept = self._room.kept.take(self.size)
        if kept is None:
            self._frame = bytearray(self._from[begin:end])
        else:
            kept[:filled] = self._from[begin:end]
            self._frame = kept
        self._at = end
        self._keep(0, 0)
        return filled

    def _keep(self, held: int, needed: int) -> None:
        """Moves the bytes that were not taken to the start of the connection's own buffer, which has `needed` bytes at least.

        Another connection uses the shared buffer next.
        """
        self.held = held
        if held:
            begin, end = self._at, self._end
            if len(self._rest) < needed:
                rest = memoryview(bytearray(max(needed, REST_SIZE_MIN)))
                rest[:held] = self._from[begin:end]
                self._replace(rest)
            elif begin or self._from is not self._rest:
                self._rest[:held] = self._from[begin:end]
            self._from = self._rest
        elif self.read_ahead:
            self._replace(NOTHING)
        self._at, self._end = 0, held

    def release(self) -> None:
        """Releases the connection's own buffer, if it is empty."""
        if not self._end:
            self._replace(NOTHING)

    def end(self) -> None:
        """The connection has ended: nothing is kept."""
        self._frame = None
        self._at = self._end = self.held = 0
        self._from = NOTHING
        self._replace(NOTHING)

    def _replace(self, rest: memoryview) -> None:
        self._rest = rest
        self.read_ahead = max(len(rest) - SMALL_FRAME_MAX, 0)
