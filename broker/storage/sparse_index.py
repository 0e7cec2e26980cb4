"""The two sparse indexes of a segment, in Kafka's bytes (LOG-1). Entries are looked up by binary search in memory.

    <base>.index       int32 offset - base offset | int32 position of a batch that holds it or begins before it
    <base>.timeindex   int64 timestamp (ms)       | int32 offset - base offset of the first record with that timestamp

An index is a function of the log: one that is missing, torn or not ordered is made anew by the segment (FLT-27). It is
read when it is first needed, and its file is opened when it is first written.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_right

from broker.storage.filesystem import FileSystem


class IndexCorrupt(ValueError):
    """The file is no index of this segment."""


class SparseIndex:
    """Pairs of (key, value), both increasing, appended at the end. `layout` packs one pair."""

    layout: struct.Struct

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int) -> None:
        self.path = path
        self._filesystem = filesystem
        self._base = base_offset
        self._keys: list[int] = []
        self._values: list[int] = []
        self._fd: int | None = None
        self._is_loaded = False

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_in_bytes(self) -> int:
        return len(self._keys) * self.layout.size

    def load(self) -> None:
        """Reads the file once. Raises IndexCorrupt; nothing is kept then."""
        if self._is_loaded:
            return
        data = self._filesystem.read_file(self.path)
        if data is None:
            raise IndexCorrupt(f"{self.path} is not there")
        if len(data) % self.layout.size:
            raise IndexCorrupt(f"{self.path}: {len(data)} bytes are no whole entries")
        rows = list(self.layout.iter_unpack(data))
        if any(b[0] <= a[0] or b[1] < a[1] for a, b in itertools.pairwise(rows)) or (rows and rows[0][1] < 0):
            raise IndexCorrupt(f"{self.path}: the entries are not in order")
        self._keys = [row[0] for row in rows]
        self._values = [row[1] for row in rows]
        self._is_loaded = True

    def reset(self) -> None:
        """Empties index and file, to be filled from the log."""
        self._keys.clear()
        self._values.clear()
        self._is_loaded = True
        self._filesystem.truncate(self._file(), 0)

    def _file(self) -> int:
        if self._fd is None:
            self._fd = self._filesystem.open(self.path)
        return self._fd

    def _append(self, key: int, value: int) -> None:
        self._filesystem.write(self._file(), (self.layout.pack(key, value),), self.size_in_bytes)
        self._keys.append(key)
        self._values.append(value)

    def _keep(self, count: int) -> None:
        """Drops all entries but the first `count`."""
        if count < len(self._keys):
            del self._keys[count:]
            del self._values[count:]
            self._filesystem.truncate(self._file(), self.size_in_bytes)

    def sync(self) -> None:
        """Waits for the disk; for a thread."""
        if self._fd is not None:
            self._filesystem.sync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            self._filesystem.close(self._fd)
            self._fd = None


class OffsetIndex(SparseIndex):
    """Offset -> position in the segment's log file."""

    layout = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """`offset` is the last of the batch at `position` (as Kafka writes it)."""
        relative = offset - self._base
        if not self._keys or relative > self._keys[-1]:
            self._append(relative, position)

    def position_before(self, offset: int) -> int:
        """The largest known position of a batch that does not begin after `offset`; 0 when none is known."""
        at = bisect_right(self._keys, offset - self._base)
        return self._values[at - 1] if at else 0

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and beyond."""
        self._keep(bisect_right(self._keys, offset - self._base - 1))

    def last(self) -> tuple[int, int] | None:
        """(offset, position) of the last entry."""
        return (self._keys[-1] + self._base, self._values[-1]) if self._keys else None


class TimeIndex(SparseIndex):
    """Timestamp -> offset: every record before that offset has a smaller or equal timestamp than the entry's."""

    layout = struct.Struct(">qi")

    def append(self, timestamp: int, offset: int) -> None:
        """Ignored unless the timestamp is larger than the last: timestamps that go back add nothing."""
        if timestamp >= 0 and (not self._keys or timestamp > self._keys[-1]):
            self._append(timestamp, offset - self._base)

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record with at least `timestamp`; the base offset when none is known."""
        at = bisect_right(self._keys, timestamp - 1)
        return self._values[at - 1] + self._base if at else self._base

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and beyond."""
        self._keep(bisect_right(self._values, offset - self._base - 1))

    def last(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry."""
        return (self._keys[-1], self._values[-1] + self._base) if self._keys else None
