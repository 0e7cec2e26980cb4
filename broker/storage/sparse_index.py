"""The two sparse indexes of a segment, in Kafka's bytes (LOG-1). Entries are looked up by binary search in memory.

    <base>.index       int32 offset - base offset | int32 position of a batch that holds it or begins before it
    <base>.timeindex   int64 timestamp (ms)       | int32 offset - base offset in the batch that has that timestamp

An index is a function of the log: one that is missing, torn or not ordered is made anew by the segment (FLT-27). It is
read when it is first needed, and its file is opened when it is written.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from operator import le, lt

from broker.storage.filesystem import FileSystem

RELATIVE_OFFSET_MAX = 2**31 - 1
"""An entry has 32 bits for an offset's distance from the segment's base offset."""


class IndexCorrupt(ValueError):
    """The file is no index of this segment."""


class SparseIndex:
    """Pairs of (key, value), both increasing, appended at the end. `layout` packs one pair, `key_type` is its array's."""

    layout: struct.Struct
    key_type: str

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int) -> None:
        self.path = path
        self.is_loaded = False
        self.is_unsynced = False
        self._filesystem = filesystem
        self._base = base_offset
        self._keys = array(self.key_type)
        self._values = array("i")
        self._fd: int | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_in_bytes(self) -> int:
        return len(self._keys) * self.layout.size

    def load(self) -> None:
        """Reads the file once. Raises IndexCorrupt; nothing is kept then."""
        if self.is_loaded:
            return
        data = self._filesystem.read_file(self.path)
        if data is None:
            raise IndexCorrupt(f"{self.path} is not there")
        if len(data) % self.layout.size:
            raise IndexCorrupt(f"{self.path}: {len(data)} bytes are no whole entries")
        rows = list(self.layout.iter_unpack(data))
        keys = array(self.key_type, [row[0] for row in rows])
        values = array("i", [row[1] for row in rows])
        if not (all(map(lt, keys, keys[1:])) and all(map(le, values, values[1:]))):
            raise IndexCorrupt(f"{self.path}: the entries are not in order")
        if rows and (keys[0] < 0 or values[0] < 0):
            raise IndexCorrupt(f"{self.path}: the first entry is negative")
        self._keys, self._values = keys, values
        self.is_loaded = True

    def unload(self) -> None:
        """Gives back the memory; `load` reads the file again."""
        self.is_loaded = False
        self._keys, self._values = array(self.key_type), array("i")

    def reset(self) -> None:
        """Empties index and file, to be filled from the log."""
        del self._keys[:], self._values[:]
        self.is_loaded = True
        self._filesystem.truncate(self._file(), 0)
        # Most segments of small topics never get an entry: their index needs no open file.
        self.close()

    def _file(self) -> int:
        self.is_unsynced = True
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
            del self._keys[count:], self._values[count:]
            self._filesystem.truncate(self._file(), self.size_in_bytes)

    def close(self) -> None:
        """Closes the file; the next write opens it again."""
        if self._fd is not None:
            self._filesystem.close(self._fd)
            self._fd = None


class OffsetIndex(SparseIndex):
    """Offset -> position in the segment's log file."""

    layout = struct.Struct(">ii")
    key_type = "i"

    def load(self) -> None:
        """As SparseIndex. A segment's first batch gets no entry: position 0 is what a power loss left of another."""
        super().load()
        if self._values and self._values[0] == 0:
            self.unload()
            raise IndexCorrupt(f"{self.path}: the first entry is empty")

    def append(self, offset: int, position: int) -> None:
        """`offset` is the last of the batch at `position` (as Kafka writes it)."""
        relative = offset - self._base
        if not self._keys or relative > self._keys[-1]:
            self._append(relative, position)

    def entry_before(self, offset: int) -> tuple[int, int] | None:
        """(offset, position) of the last entry not above `offset`; None when there is none."""
        at = bisect_right(self._keys, offset - self._base)
        return (self._keys[at - 1] + self._base, self._values[at - 1]) if at else None

    def truncate_to(self, offset: int, position: int) -> None:
        """Drops entries for `offset` and beyond, and those that point to `position` and beyond."""
        self._keep(min(bisect_right(self._keys, offset - self._base - 1), bisect_right(self._values, position - 1)))

    def last(self) -> tuple[int, int] | None:
        """(offset, position) of the last entry."""
        return (self._keys[-1] + self._base, self._values[-1]) if self._keys else None


class TimeIndex(SparseIndex):
    """Timestamp -> offset: every record before that offset has a smaller or equal timestamp than the entry's."""

    layout = struct.Struct(">qi")
    key_type = "q"

    def append(self, timestamp: int, offset: int) -> None:
        """Ignored unless the timestamp is larger than the last: timestamps that go back add nothing."""
        if timestamp >= 0 and (not self._keys or timestamp > self._keys[-1]):
            self._append(timestamp, offset - self._base)

    def entry_before(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry below `timestamp`: no record before that offset has reached it."""
        at = bisect_right(self._keys, timestamp - 1)
        return (self._keys[at - 1], self._values[at - 1] + self._base) if at else None

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and beyond."""
        self._keep(bisect_right(self._values, offset - self._base - 1))

    def last(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry."""
        return (self._keys[-1], self._values[-1] + self._base) if self._keys else None
