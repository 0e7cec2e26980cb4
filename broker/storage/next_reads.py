"""Where a reader of a segment will probably continue: the positions after the last whole batches of recent reads. Pure.

A consumer reads a segment from its start to its end. Its next offset follows the last whole batch that it got, and the position of the
batch there is known from the read. Without it, each read would search the index, and scan up to `index.interval.bytes` of batches.

A batch never moves within its segment, and appends go to the end. So an entry stays right until the segment is cut or written anew.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.kafka.record_batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from protocol.types import Buffer

REMEMBERED_MAX: Final = 32
"""Limit of the readers of one segment that are remembered; the oldest is forgotten first."""
BATCHES_WALKED_MAX: Final = 64
"""A read with more batches is not remembered: the walk would cost more than the search. Its batches are small, and so is the search."""

_START: Final = Struct(">qiib")
"""Base offset, length, leader epoch, magic."""
_LAST_DELTA: Final = Struct(">i")
_LAST_DELTA_AT: Final = 23


class NextReads:
    """Next offset -> position of the batch that holds it, or of the first batch after it."""

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, offset: int) -> int | None:
        """The position in the segment's file, None if no recent read ended before that offset."""
        return self._positions.get(offset)

    def note(self, position: int, data: Buffer) -> None:
        """`data` was read at `position`, where a batch starts. Its last batch may be cut.

        Notes nothing if some bytes cannot be a batch: the file is damaged there, and the search of the index says so.
        """
        at = last = 0
        end = len(data)
        before = -1
        for _ in range(BATCHES_WALKED_MAX):
            if end - at < HEADER_SIZE:
                break
            offset, length, _, magic = _START.unpack_from(data, at)
            if length < HEADER_SIZE - LOG_OVERHEAD or magic != MAGIC or offset <= before:
                return
            following = at + length + LOG_OVERHEAD
            if following > end:
                break
            last, at, before = at, following, offset
        else:
            return
        if not at:
            return
        delta: int = _LAST_DELTA.unpack_from(data, last + _LAST_DELTA_AT)[0]
        if delta >= 0:
            self.remember(before + delta + 1, position + at)

    def remember(self, offset: int, position: int) -> None:
        """A reader will probably continue at `offset`, whose batch, or the first one after it, starts at `position`."""
        positions = self._positions
        if len(positions) >= REMEMBERED_MAX:
            del positions[next(iter(positions))]
        positions[offset] = position
