"""The two sparse indexes of a segment, in Kafka's bytes (LOG-1). Entries are looked up by binary search in these bytes.

    <base>.index       int32 offset - base offset | int32 position of a batch that holds it or starts before it
    <base>.timeindex   int64 timestamp (ms)       | int32 offset - base offset in the batch that has that timestamp

An index is a function of the log: the segment rebuilds one that is missing, torn or not ordered (FLT-27). The index of a full
segment has 260,000 entries, so they are not all checked. `load` checks the first and the last entry, and the segment compares
the entry that a look-up finds with the log.

A file is read at the first look-up, and is open only while it is read or written. New entries stay in memory until there are
some hundred, the segment rolls, or the log is flushed. A crash loses only entries of segments whose indexes the next start
rebuilds.

An offset too far from the base offset gets no entry. No leader writes such an offset; only a damaged or forged file has one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Final

from broker.storage.disk.filesystem import FileSystem
from broker.storage.failures import LogDirFailed, is_passing

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""An entry has 32 bits for an offset's distance from the segment's base offset."""
UNWRITTEN_BYTES_MAX: Final = 4096

Entry = tuple[int, int]


class IndexCorrupt(ValueError):
    """The file is missing, or is not an index of this segment."""


class SparseIndex:
    """Pairs of (key, value), both increasing, appended at the end. `layout` packs one pair."""

    __slots__ = ("_base", "_data", "_filesystem", "_has_file", "_last_key", "_written", "count", "is_unsynced", "path")

    layout: struct.Struct

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int) -> None:
        self.path = path
        self.is_unsynced = False
        self._filesystem = filesystem
        self._base = base_offset
        # All entries, None until they are loaded. The first `_written` bytes are in the file.
        self._data: bytes | bytearray | None = None
        self._written = 0
        # False if the next write must create the file.
        self._has_file = True
        # Of the loaded entries. `append` compares keys with `_last_key`, which is below every key if there is no entry.
        self.count = 0
        self._last_key = -1

    @property
    def is_loaded(self) -> bool:
        return self._data is not None

    def __len__(self) -> int:
        return self.count

    def _set(self, data: bytes | bytearray) -> None:
        self._data = data
        self.count = len(data) // self.layout.size
        self._last_key = self._key(self.count - 1) if self.count else -1

    def load(self, *, may_be_missing: bool = False) -> None:
        """Reads the file once. If it raises IndexCorrupt, nothing is loaded."""
        if self._data is not None:
            return
        data = self._filesystem.read_file(self.path)
        if data is None:
            if not may_be_missing:
                raise IndexCorrupt(f"{self.path} does not exist")
            data = b""
            self._has_file = False
        if data:
            self._check_ends(data)
        self._set(data)
        self._written = len(data)

    def last_in_file(self) -> Entry | None:
        """The last entry, as `last`, without loading the others. Raises IndexCorrupt."""
        if self._data is not None:
            return self.last()
        size = self.layout.size
        found = self._filesystem.read_end(self.path, size)
        if found is None:
            raise IndexCorrupt(f"{self.path} does not exist")
        data, length = found
        if not length:
            return None
        if length % size:
            raise IndexCorrupt(f"{self.path}: {length} bytes are not whole entries of {size} bytes")
        return self._entry(*self.layout.unpack(data))

    def _check_ends(self, data: bytes) -> None:
        size = self.layout.size
        if len(data) % size:
            raise IndexCorrupt(f"{self.path}: {len(data)} bytes are not whole entries of {size} bytes")
        key, value = self.layout.unpack_from(data)
        last_key, last_value = self.layout.unpack_from(data, len(data) - size)
        if key < 0 or value < 0:
            raise IndexCorrupt(f"{self.path}: the first entry is negative")
        if len(data) > size and not (key < last_key and value <= last_value):
            raise IndexCorrupt(f"{self.path}: the entries are not in order")

    def unload(self) -> None:
        """Writes new entries to the file, and frees the memory. `load` reads the file again. Raises OSError."""
        self.write_out()
        self.forget()

    def forget(self) -> None:
        """Frees the memory of what was just read, or is in the file."""
        self._set(b"")
        self._data = None

    def begin(self) -> None:
        """Starts the index of a new segment, which has no file yet."""
        self._set(b"")
        self._has_file = False

    def reset(self) -> None:
        """Empties the index before a rebuild. The next write replaces the file.

        Until then the file does not change: a start after a crash rebuilds many indexes, and most of their files were right.
        """
        self._set(b"")
        self._written = 0
        self._has_file = False
        self.is_unsynced = True

    def write_out(self) -> None:
        """Writes the entries that the file lacks. Makes a missing file even without entries, as Kafka does. Raises OSError.

        A rebuilt index replaces the old file by a rename: whoever reads the directory always finds a whole index.
        """
        data = self._data
        if data is None or (self._has_file and self._written == len(data)):
            return
        if self._has_file:
            fd = self._filesystem.open(self.path)
            try:
                self._filesystem.write(fd, (data[self._written :],), self._written)
            finally:
                self._filesystem.close(fd)
        else:
            self._filesystem.write_atomically(self.path, data, sync=False)
            self._has_file = self.is_unsynced = True
        self._written = len(data)

    def entries(self) -> list[Entry]:
        """All loaded entries, with relative offsets as in the file. For tests and tools."""
        return [(key, value) for key, value in self.layout.iter_unpack(self._data or b"")]

    def _key(self, number: int) -> int:
        assert self._data is not None
        key: int = self.layout.unpack_from(self._data, number * self.layout.size)[0]
        return key

    def _value(self, number: int) -> int:
        assert self._data is not None
        value: int = self.layout.unpack_from(self._data, number * self.layout.size)[1]
        return value

    def _entry(self, key: int, value: int) -> Entry:
        raise NotImplementedError

    def _at(self, number: int) -> Entry:
        assert self._data is not None
        return self._entry(*self.layout.unpack_from(self._data, number * self.layout.size))

    def _count_up_to(self, key: int) -> int:
        """The number of entries whose key is at most `key`."""
        return bisect_right(range(self.count), key, key=self._key)

    def last(self) -> Entry | None:
        """The last entry of a loaded index, None when there is none."""
        return self._at(self.count - 1) if self.count else None

    def _append(self, key: int, value: int) -> None:
        data = self._data
        if not isinstance(data, bytearray):
            assert data is not None, f"{self.path} is not loaded"
            data = self._data = bytearray(data)
        data += self.layout.pack(key, value)
        self.count += 1
        self._last_key = key
        self.is_unsynced = True
        if len(data) - self._written >= UNWRITTEN_BYTES_MAX:
            try:
                self.write_out()
            except (OSError, LogDirFailed) as error:
                # The batch is already in the log file. The entry stays in memory, and is written with a later one.
                if not is_passing(error):
                    raise

    def _keep(self, count: int) -> None:
        """Drops all entries but the first `count`."""
        if count < self.count:
            assert self._data is not None
            size = count * self.layout.size
            self._set(self._data[:size])
            if size < self._written:
                self.is_unsynced = True
                self._filesystem.truncate_path(self.path, size)
                self._written = size


class OffsetIndex(SparseIndex):
    """Offset -> position in the segment's log file. An entry is (offset, position)."""

    __slots__ = ()

    layout = struct.Struct(">ii")

    def _check_ends(self, data: bytes) -> None:
        """Also refuses position 0. The first batch gets no entry, so the zeros are what a power loss left of another one."""
        super()._check_ends(data)
        if self.layout.unpack_from(data)[1] == 0:
            raise IndexCorrupt(f"{self.path}: the first entry is empty")

    def _entry(self, key: int, value: int) -> Entry:
        return key + self._base, value

    def append(self, offset: int, position: int) -> None:
        """`offset` is the last offset of the batch at `position`, as in Kafka."""
        relative = offset - self._base
        if self._last_key < relative <= RELATIVE_OFFSET_MAX:
            self._append(relative, position)

    def entry_before(self, offset: int) -> Entry | None:
        """(offset, position) of the last entry not above `offset`; None when there is none."""
        at = self._count_up_to(offset - self._base)
        return self._at(at - 1) if at else None

    def offset_from(self, position: int) -> int | None:
        """The offset of the first entry at `position` or behind it; None when there is none."""
        at = bisect_left(range(self.count), position, key=self._value)
        return self._at(at)[0] if at < self.count else None

    def position_before(self, position: int) -> int:
        """The last indexed position below `position`; 0 when there is none."""
        at = bisect_left(range(self.count), position, key=self._value)
        return self._value(at - 1) if at else 0

    def truncate_to(self, offset: int, position: int) -> None:
        """Drops entries for `offset` and beyond, and those that point to `position` and beyond."""
        up_to_position = bisect_right(range(self.count), position - 1, key=self._value)
        self._keep(min(self._count_up_to(offset - self._base - 1), up_to_position))


class TimeIndex(SparseIndex):
    """Timestamp -> offset: every record before that offset has a smaller or equal timestamp. An entry is (timestamp, offset)."""

    __slots__ = ()

    layout = struct.Struct(">qi")

    def _entry(self, key: int, value: int) -> Entry:
        return key, value + self._base

    def append(self, timestamp: int, offset: int) -> None:
        """Ignored unless the timestamp is larger than the last: timestamps that go back add nothing."""
        if timestamp >= 0 and timestamp > self._last_key and 0 <= offset - self._base <= RELATIVE_OFFSET_MAX:
            self._append(timestamp, offset - self._base)

    def entry_before(self, timestamp: int) -> Entry | None:
        """(timestamp, offset) of the last entry below `timestamp`. No record before that offset has this timestamp or a later one."""
        at = self._count_up_to(timestamp - 1)
        return self._at(at - 1) if at else None

    def truncate_to(self, offset: int) -> None:
        """Drops entries for `offset` and beyond."""
        self._keep(bisect_right(range(self.count), offset - self._base - 1, key=self._value))
