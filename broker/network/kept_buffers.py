"""Buffers of large frames, kept for the next ones: a new buffer costs zeros, page faults and copies. Pure.

Nobody gives a buffer back. A bytearray that a memoryview looks at refuses to change its size, so `take` can see which ones are free:
those whose frame was handled, dropped or never completed. A holder must keep the memoryview until it needs the bytes no more.

A kept buffer has the size of a frame that arrived whole. All kept buffers together, free or not, have at most `bytes_max` bytes: so a
client that only announces a large frame makes the broker hold no more than that beyond the bytes that arrived (BAD-4).
"""

from __future__ import annotations

from typing import Final

KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
KEPT_FRAME_MAX: Final = 2 * 1024 * 1024
"""Bytes. The buffer of a larger frame is not kept."""
KEPT_S: Final = 10.0
"""Seconds without a large frame after which nothing is kept."""


class KeptBuffers:
    """See the module's docstring."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffers: list[bytearray] = []
        self._is_used = False
        self._unused_since = 0.0
        self.bytes = 0

    def take(self, size: int) -> memoryview | None:
        """A view of `size` bytes, with any content, of a free buffer. None: no free buffer is large enough."""
        self._is_used = True
        for buffer in self._buffers:
            if len(buffer) >= size and is_free(buffer):
                return memoryview(buffer)[:size]
        return None

    def keep(self, buffer: bytearray) -> None:
        """Keeps the buffer of a frame that arrived whole, if there is room for it once smaller free buffers are dropped."""
        size = len(buffer)
        if size > KEPT_FRAME_MAX:
            return
        if self.bytes + size > self._bytes_max:
            for smaller in [one for one in self._buffers if len(one) < size and is_free(one)]:
                self._drop(smaller)
        if self.bytes + size <= self._bytes_max:
            self._buffers.append(buffer)
            self.bytes += size

    def sweep(self, now: float) -> None:
        """Drops all buffers if none was wanted for KEPT_S. To be called every few seconds."""
        if self._is_used:
            self._is_used = False
            self._unused_since = now
        elif self._buffers and now - self._unused_since > KEPT_S:
            for buffer in [one for one in self._buffers if is_free(one)]:
                self._drop(buffer)

    def _drop(self, buffer: bytearray) -> None:
        self._buffers = [one for one in self._buffers if one is not buffer]
        self.bytes -= len(buffer)


def is_free(buffer: bytearray) -> bool:
    """Whether no memoryview looks at the buffer, which must not be empty. Its last byte may change."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
