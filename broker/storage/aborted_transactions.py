"""`<base>.txnindex`: the aborted transactions whose markers are in a segment, in Kafka's bytes (FMT-3, LOG-7).

    offset  size  field
         0     2  version (0)
         2     8  producer id
        10     8  first offset of the transaction in this log
        18     8  offset of its abort marker
        26     8  last stable offset when the marker was appended, but for the high watermark

A reader of committed records gets, with the records, the aborted transactions that have some of them, and leaves their records
out. Markers and last stable offsets rise from entry to entry, so a search looks only at the entries that can matter.

The file exists only if the segment has an abort marker. Like the other indexes it is a function of the log. New entries are written
before a flush and when the segment ends; a start after a crash drops the entries from the recovery point on, and adds them again
while it reads the batches for the producers' state (`log_producers`).
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, islice
from operator import le, lt
from typing import NamedTuple

from broker.storage.disk.filesystem import FileSystem

SUFFIX = ".txnindex"
VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """An entry. `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndexCorrupt(ValueError):
    """The file is not the list of a segment's aborted transactions."""


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of these entries."""
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def decode(data: bytes, base_offset: int) -> list[AbortedTransaction]:
    """The entries of the segment that starts at `base_offset`. Raises AbortedIndexCorrupt (FLT-27)."""
    if len(data) % _ENTRY.size:
        raise AbortedIndexCorrupt(f"{len(data)} bytes are not whole entries of {_ENTRY.size} bytes")
    entries = []
    marker = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction._make(fields)
        if version != VERSION:
            raise AbortedIndexCorrupt(f"an entry has version {version}, expected {VERSION}")
        if not (marker < entry.last_offset and 0 <= entry.first_offset < entry.last_offset):
            raise AbortedIndexCorrupt(f"the marker at {entry.last_offset} is out of order, or before its transaction")
        marker = entry.last_offset
        entries.append(entry)
    return entries


Columns = tuple["array[int]", "array[int]", "array[int]", "array[int]"]
"""The entries, one array for each field: a quarter of the memory of tuples."""


def _columns(data: bytes, base_offset: int) -> Columns:
    """`decode` without an object for each entry, as a list may have a hundred thousand."""
    if len(data) % _ENTRY.size == 0:
        firsts, markers = _column(data, 1), _column(data, 2)
        if (
            not any(data[:: _ENTRY.size])
            and not any(data[1 :: _ENTRY.size])
            and (not markers or (markers[0] >= base_offset and min(firsts) >= 0))
            and all(map(lt, markers, islice(markers, 1, None)))
            and all(map(lt, firsts, markers))
        ):
            return _column(data, 0), firsts, markers, _rising(_column(data, 3))
    decode(data, base_offset)  # says what is wrong
    raise AbortedIndexCorrupt("its entries are not in order")


def _column(data: bytes, field: int) -> array[int]:
    """One field of all entries. Bytes are copied column by column."""
    raw = bytearray(len(data) // _ENTRY.size * 8)
    for byte in range(8):
        raw[byte::8] = data[2 + 8 * field + byte :: _ENTRY.size]
    column = array("q", bytes(raw))
    if sys.byteorder == "little":
        column.byteswap()
    return column


def _rows(columns: Columns) -> list[AbortedTransaction]:
    return [AbortedTransaction(*row) for row in zip(*columns, strict=True)]


def _rising(stables: array[int]) -> array[int]:
    """Kafka may write a last stable offset that is too high, if a follower appends a marker and the producer's next transaction
    together. A search needs rising ones, and a lower one only makes it longer.
    """
    if not all(map(le, stables, islice(stables, 1, None))):
        stables = array("q", accumulate(reversed(stables), min))
        stables.reverse()
    return stables


class AbortedIndex:
    """The entries of one segment. The file is read at the first look-up, of the active segment when the log is opened. It is open only
    while it is read or written.
    """

    __slots__ = (
        "_base",
        "_changes",
        "_filesystem",
        "_firsts",
        "_has_file",
        "_is_damaged",
        "_markers",
        "_prepared",
        "_producers",
        "_stables",
        "_written",
        "is_loaded",
        "is_unsynced",
        "path",
    )

    def __init__(self, filesystem: FileSystem, path: str, base_offset: int, *, is_new: bool) -> None:
        """With `is_new` there is no file yet."""
        self.path = path
        self.is_loaded = is_new
        self.is_unsynced = False
        self._filesystem = filesystem
        self._base = base_offset
        self._has_file = not is_new
        self._is_damaged = False
        self._written = 0
        # What a thread read, and the number of `_changes` before it.
        self._prepared: tuple[int, Columns] | None = None
        self._changes = 0
        self._producers, self._firsts, self._markers, self._stables = _columns(b"", base_offset)

    def _set(self, columns: Columns) -> None:
        self._producers, self._firsts, self._markers, self._stables = columns
        self._written = len(self._markers)

    def __len__(self) -> int:
        """Number of loaded entries."""
        return len(self._markers)

    def _read(self) -> Columns:
        data = self._filesystem.read_file(self.path) if self._has_file else b""
        if data is None:
            raise AbortedIndexCorrupt(f"{self.path} does not exist")
        try:
            return _columns(data, self._base)
        except AbortedIndexCorrupt as error:
            raise AbortedIndexCorrupt(f"{self.path}: {error}") from None

    def load(self) -> None:
        """Reads the file once. Raises OSError, and AbortedIndexCorrupt: nothing is loaded then."""
        if self.is_loaded:
            return
        is_prepared = self._prepared is not None and self._prepared[0] == self._changes
        columns = self._prepared[1] if is_prepared and self._prepared is not None else self._read()
        self._prepared = None
        self._set(columns)
        self.is_loaded = True

    @property
    def is_prepared(self) -> bool:
        """Whether `load` needs no disk."""
        return self.is_loaded or (self._prepared is not None and self._prepared[0] == self._changes)

    def prepare(self) -> None:
        """Reads the file for `load`. For a thread. If the file was renamed meanwhile, `load` reads it. Raises OSError."""
        changes = self._changes
        with contextlib.suppress(AbortedIndexCorrupt):
            self._prepared = (changes, self._read())

    def stored(self) -> list[AbortedTransaction]:
        """The entries in the file. For a thread. Raises OSError, also for a file that was damaged since the log was opened."""
        if self._is_damaged:
            return self.entries()
        try:
            return _rows(self._read())
        except AbortedIndexCorrupt as error:
            self._filesystem.refuse(self.path, str(error))

    def unload(self) -> None:
        """Writes new entries to the file, and frees the memory. Raises OSError."""
        self.write_out()
        self._prepared = None
        self.is_loaded = False
        self._set(_columns(b"", self._base))

    def append(self, entry: AbortedTransaction) -> None:
        """Adds the newest entry. The index is loaded."""
        for column, value in zip((self._producers, self._firsts, self._markers, self._stables), entry, strict=True):
            column.append(value)
        self._changes += 1
        self.is_unsynced = True

    def write_out(self) -> None:
        """Writes the entries that the file lacks, creates a missing file, and replaces a damaged one. Raises OSError."""
        if self._is_damaged:
            # Synced, which takes long but happens seldom: an empty file would not be noticed.
            self._filesystem.write_atomically(self.path, encode(self.entries()))
            self._is_damaged = False
            self._written = len(self)
        if not self.is_loaded or self._written == len(self):
            return
        fd = self._filesystem.open(self.path)
        self._has_file = True
        try:
            self._filesystem.write(fd, (encode(self.entries(self._written)),), self._written * _ENTRY.size)
        finally:
            self._filesystem.close(fd)
        self._written = len(self)

    def entries(self, start: int = 0) -> list[AbortedTransaction]:
        """The loaded entries, from number `start` on."""
        return _rows((self._producers[start:], self._firsts[start:], self._markers[start:], self._stables[start:]))

    def collect(self, offset: int, upper_offset: int, found: list[tuple[int, int]]) -> bool:
        """Adds (producer id, first offset) of the transactions that may have records in [offset, upper_offset) to `found`.

        True: no later segment has more of them, because each transaction that ends later starts later. The index is loaded.
        """
        firsts, producers = self._firsts, self._producers
        up_to = bisect_left(self._stables, upper_offset)
        candidates = range(bisect_left(self._markers, offset), min(up_to + 1, len(firsts)))
        found += [(producers[at], firsts[at]) for at in candidates if firsts[at] < upper_offset]
        return up_to < len(firsts)

    def truncate_to(self, offset: int) -> None:
        """Drops the entries whose marker is at `offset` or above. The index is loaded. Raises OSError."""
        kept = bisect_left(self._markers, offset)
        if kept == len(self):
            return
        self._changes += 1
        for column in (self._producers, self._firsts, self._markers, self._stables):
            del column[kept:]
        if kept < self._written:
            self.is_unsynced = True
            self._filesystem.truncate_path(self.path, kept * _ENTRY.size)
            self._written = kept

    def reset(self) -> None:
        """Empties the index before a rebuild, as its file is damaged. The file stays damaged until all entries can replace it."""
        self._changes += 1
        self._prepared = None
        self.is_loaded = self.is_unsynced = self._is_damaged = True
        self._set(_columns(b"", self._base))
