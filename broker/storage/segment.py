"""One segment: `<base offset>.log` with its two indexes (LOG-1). Offsets are those of records, positions bytes of the file.

The newest batches' positions are kept in memory, so that what follows the end of the log (followers, consumers that keep
up, the high watermark) finds its place without the index. All positions are at the start of a batch.

A segment's log file is opened when it is first read or written, and closed again when it rests (`open_files`). A segment that
is not appended to any more keeps only its name, its bounds and its newest timestamp in memory.

Everything here runs on the loop (or, at start, in the one thread that opens the log); threads only warm and sync files.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from broker.storage.disk.filesystem import Buffer, FileSystem
from broker.storage.sparse_index import RELATIVE_OFFSET_MAX, IndexCorrupt, OffsetIndex, TimeIndex
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_is_valid,
    iter_batches,
    parse_header,
)

log = logging.getLogger(__name__)

RECENT_MAX = 256
SCAN_BYTES = 16 * 1024
VERIFY_BYTES = 4 * 1024 * 1024
NO_TIMESTAMP = -1
REMOVED_SUFFIX = ".deleted"
KINDS = (".log", ".index", ".timeindex", ".txnindex")
"""What a segment's files end with. The last is Kafka's list of aborted transactions: not written here, but removed and cut."""
_ABORTED = struct.Struct(">hqqqq")
"""An entry of it: version, producer id, first offset, last offset, last stable offset."""

IsBelieved = Callable[[BatchHeader, BatchHeader | None], bool]
"""(a batch whose CRC is right, the one after it) -> whether its offset and epoch, outside the CRC, can be true."""


class WouldBlock(Exception):
    """The bytes are not in the page cache. `warm` brings them there, in a thread; then the same call may be made again."""

    def __init__(self, segment: Segment, warm: Callable[[], object]) -> None:
        super().__init__(segment.path)
        self.segment = segment
        self.warm = warm


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    """Open for reading and, if it is the last of its log, for appending."""

    __slots__ = (
        "_directory",
        "_fd",
        "_filesystem",
        "_indexes_are_warm",
        "_is_closing",
        "_newest_is_known",
        "_pins",
        "_recent_ends",
        "_recent_positions",
        "_suffix",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "first_timestamp",
        "index",
        "index_interval_bytes",
        "is_unsynced",
        "is_used",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "time_index",
    )

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        created_ms: int,
        suffix: str = "",
        is_new: bool = False,
    ) -> None:
        """`suffix` ends the names of all its files until `rename`: of a segment that is no part of its log yet.

        The log file is there already, and its indexes are not looked at; or it is made now, if the segment `is_new`. Raises OSError.
        """
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        stem = f"{directory}/{segment_name(base_offset)}"
        self.index = OffsetIndex(filesystem, f"{stem}.index{suffix}", base_offset)
        self.time_index = TimeIndex(filesystem, f"{stem}.timeindex{suffix}", base_offset)
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.next_offset = base_offset
        self.is_unsynced = False
        self.is_used = True
        self.bytes_since_index = 0
        self._newest_is_known = False
        self._filesystem = filesystem
        self._fd: int | None = None
        self._indexes_are_warm = False
        self._pins = 0
        self._is_closing = False
        # Of the newest batches, without a hole up to the end: where each starts, and the offset after its last record.
        self._recent_positions: array[int] | None = None
        self._recent_ends: array[int] | None = None
        path = self.path
        if is_new:
            self._fd = filesystem.open_to_keep(path)
            filesystem.in_use.add(self)
            self.size = filesystem.size(self._fd)
            self._newest_is_known = True
            self.index.begin()
            self.time_index.begin()
        else:
            self.size = filesystem.size_of(path)

    @property
    def path(self) -> str:
        """Of the log file."""
        return self._path_of(".log")

    @property
    def paths(self) -> list[str]:
        """Of all its files that may be there."""
        return [self._path_of(kind) for kind in KINDS]

    def _path_of(self, kind: str) -> str:
        return f"{self._directory}/{segment_name(self.base_offset)}{kind}{self._suffix}"

    def moved_to(self, directory: str) -> None:
        """The directory was renamed; open files stay what they are."""
        self._directory = directory
        self._name_indexes()

    def _name_indexes(self) -> None:
        self.index.path = self._path_of(".index")
        self.time_index.path = self._path_of(".timeindex")

    # -- the open file --------------------------------------------------------------------------------------------

    def _file(self) -> int:
        """The log file's descriptor, which stays open as long as it is used. Raises OSError."""
        self.is_used = True
        fd = self._fd
        if fd is None:
            if self._is_closing:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
            fd = self._fd = self._filesystem.reopen_to_keep(self.path)
            self._filesystem.in_use.add(self)
        return fd

    def rest(self) -> bool:
        """Nothing happens here: the file is closed, and what is remembered of the newest batches given back.

        False while a thread uses the file. One that is not synced stays open, too: of a write that fails in the
        background, only a descriptor that was open at the time is sure to hear (FLT-29). One that could not be opened
        again stays open, too.
        """
        self._forget_recent()
        if not self.can_rest:
            return False
        self._close_file()
        return True

    @property
    def can_rest(self) -> bool:
        """No thread uses the file, nothing in it is unsynced, and its descriptor is of use once it is closed."""
        return not (
            self._pins or self.is_unsynced or (self._fd is not None and self._filesystem.is_beyond_limit(self._fd))
        )

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        self._filesystem.in_use.discard(self)
        if fd is not None:
            self._filesystem.close(fd)

    # -- opening --------------------------------------------------------------------------------------------------

    def load_indexes(self) -> None:
        """Reads the indexes once; those that do not fit the log are rebuilt from it (FLT-27)."""
        if self.index.is_loaded and self.time_index.is_loaded:
            return
        try:
            # The first entry is for what comes behind so many bytes.
            self.index.load(may_be_missing=self.size <= self.index_interval_bytes)
            self.time_index.load()
            self._check_last_entries()
        except IndexCorrupt as error:
            self._rebuild_for(error)

    def _rebuild_for(self, error: IndexCorrupt) -> None:
        log.warning("%s: the indexes are made anew", error)
        self.rebuild_indexes()

    def _check_last_entries(self) -> None:
        entry = self.index.last()
        if entry is not None and not self._fits(entry):
            raise IndexCorrupt(f"{self.index.path}: position {entry[1]} for offset {entry[0]} is wrong")
        newest = self.time_index.last()
        if newest is not None and not self.has_timestamp(*newest):
            raise IndexCorrupt(f"{self.time_index.path}: {newest[0]} ms for offset {newest[1]} is wrong")

    def _fits(self, entry: tuple[int, int]) -> bool:
        """True when at the entry's position there is a batch that starts at or before the entry's offset."""
        offset, position = entry
        found = next(self.headers(position), None)
        return found is not None and found[1].base_offset <= offset

    def has_timestamp(self, timestamp: int, offset: int) -> bool:
        """True when the batch that holds `offset` has `timestamp` as its largest: what the time index says of it.

        Raises IndexCorrupt.
        """
        entry = None if self.index.is_loaded or self.size <= self.index_interval_bytes else self.index.last_in_file()
        if entry is None or entry[0] > offset:
            self.index.load(may_be_missing=self.size <= self.index_interval_bytes)
            entry = self.index.entry_before(offset)
        for _, header in self.headers(entry[1] if entry else 0):
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == timestamp
        return False

    def load_end(self) -> bool:
        """Finds `next_offset` and the largest timestamp, reading from the last index entry on (clean start).

        False when the file is not whole batches up to its end: then it must be verified.
        """
        self.load_indexes()
        last = self.index.last()
        end = last[1] if last else 0
        newest = self.time_index.last()
        if newest is not None:
            self.max_timestamp, self.max_timestamp_offset = newest
        self._newest_is_known = True
        self.bytes_since_index = 0
        for at, header in self.headers(end):
            if at == 0:
                self.first_timestamp = header.max_timestamp
            self._take_timestamp(header)
            self._note(at, header)
            end = at + header.size_in_bytes
        if last is not None:
            self.first_timestamp = NO_TIMESTAMP
            self.first_batch_timestamp()
        return end == self.size

    def rebuild_indexes(self) -> None:
        """Makes both indexes from the batch headers of the log file."""
        self._start_indexes()
        for at, header in self.headers(0):
            self._index(at, header)
        self.close_time_index()

    def _start_indexes(self) -> None:
        self._newest_is_known = True
        self.index.reset()
        self.time_index.reset()
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def verify(self, is_believed: IsBelieved) -> None:
        """Re-reads the whole segment (LOG-2) and cuts the file after the last valid batch; the indexes are rebuilt.

        Valid: whole, of format v2, CRC right, and believed.
        """
        self._start_indexes()
        self._forget_recent()
        self.next_offset = self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        end = 0
        batches = self._whole_batches()
        self.is_unsynced = True
        current = next(batches, None)
        while current is not None:
            following = next(batches, None)
            at, header = current
            if not is_believed(header, following[1] if following else None):
                break
            if at == 0:
                self.first_timestamp = header.max_timestamp
            self._index(at, header)
            self._note(at, header)
            end = at + header.size_in_bytes
            current = following
        if end < self.size:
            self._truncate_file(end)
            self._forget_transactions_from(self.next_offset)
        self.close_time_index()

    def _whole_batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches with the right CRC, up to the first that is broken."""
        position = 0
        while position < self.size:
            data = self._filesystem.read(self._file(), VERIFY_BYTES, position)
            if len(data) >= LOG_OVERHEAD:
                first_size = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
                if len(data) < first_size <= self.size - position:
                    data = self._filesystem.read(self._file(), first_size, position)
            used = 0
            try:
                for at, header in iter_batches(data):
                    if header.last_offset_delta < 0 or not crc_is_valid(data, at, header):
                        return
                    yield position + at, header
                    used = at + header.size_in_bytes
            except KafkaError:
                return
            if used == 0:
                return
            position += used

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches, whose headers (with their final offsets) are given, at the end. Raises OSError."""
        position = self.size
        self._filesystem.write(self._file(), parts, position)
        self.is_unsynced = True
        if position == 0:
            self.first_timestamp = headers[0].max_timestamp
        for header in headers:
            self._index(position, header)
            self._note(position, header)
            position += header.batch_length + LOG_OVERHEAD
        self.size = position

    def _take_timestamp(self, header: BatchHeader) -> None:
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.base_offset + header.last_offset_delta

    def _index(self, position: int, header: BatchHeader) -> None:
        self._take_timestamp(header)
        if self.bytes_since_index > self.index_interval_bytes:
            self.index.append(header.last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += header.batch_length + LOG_OVERHEAD

    def _note(self, position: int, header: BatchHeader) -> None:
        self.next_offset = end = header.base_offset + header.last_offset_delta + 1
        ends, positions = self._recent_ends, self._recent_positions
        if ends is None or positions is None:
            self._recent_ends, self._recent_positions = array("q", (end,)), array("q", (position,))
            return
        ends.append(end)
        positions.append(position)
        if len(ends) > 2 * RECENT_MAX:
            del ends[:RECENT_MAX]
            del positions[:RECENT_MAX]

    def _forget_recent(self) -> None:
        self._recent_ends = self._recent_positions = None

    def close_time_index(self) -> None:
        """The segment takes no more appends, or is closed: its largest timestamp becomes the time index's last entry."""
        if self.size and self.time_index.is_loaded:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    def seal(self) -> None:
        """The next segment starts: this one is only read from now on. Raises OSError."""
        self.write_indexes()
        self._newest_is_known = True
        self._forget_recent()

    def write_indexes(self) -> None:
        """Both files are there, and complete; the segment takes no more appends, or is closed. Raises OSError."""
        self.close_time_index()
        for index in (self.index, self.time_index):
            index.write_out()

    def newest_timestamp(self) -> int:
        """The largest timestamp in the segment, NO_TIMESTAMP without one. Looks once at the end of the time index."""
        if self.max_timestamp == NO_TIMESTAMP and self.size and not self._newest_is_known:
            try:
                newest = self.time_index.last_in_file()
                if newest is not None and not self.has_timestamp(*newest):
                    raise IndexCorrupt(f"{self.time_index.path}: {newest[0]} ms for offset {newest[1]} is wrong")
                self.max_timestamp, self.max_timestamp_offset = newest or (NO_TIMESTAMP, self.base_offset)
            except IndexCorrupt as error:
                self._rebuild_for(error)
            self._newest_is_known = True
        return self.max_timestamp

    def newest_ms(self) -> int:
        """How old it is, for retention: its largest timestamp, or when its file was last written if it has none. Raises OSError."""
        newest = self.newest_timestamp()
        return newest if newest >= 0 else max(self._filesystem.modified_ms(self.path), self.created_ms)

    def first_batch_timestamp(self) -> int:
        """The largest timestamp of its first batch, NO_TIMESTAMP without one. May read the disk."""
        if self.first_timestamp == NO_TIMESTAMP:
            first = next(self.headers(), None)
            self.first_timestamp = first[1].max_timestamp if first else NO_TIMESTAMP
        return self.first_timestamp

    def forget_indexes(self) -> None:
        """Gives back the indexes' memory (20 bytes for every 4 KiB of log); not for the last segment. Raises OSError."""
        self.index.unload()
        self.time_index.unload()

    # -- reading --------------------------------------------------------------------------------------------------

    def position_of(self, offset: int, *, may_block: bool) -> int:
        """Where the batch that holds `offset` starts, or the first after it; the segment's size when there is none.

        Raises WouldBlock, when the file must be looked at and `may_block` is False, KafkaError(CORRUPT_MESSAGE) when
        something that is no batch is before it.
        """
        if offset >= self.next_offset:
            return self.size
        ends, positions = self._recent_ends, self._recent_positions
        if ends is not None and positions is not None and offset >= ends[0]:
            return positions[bisect_right(ends, offset)]
        if not self.index.is_loaded:
            if not (may_block or self._indexes_are_warm):
                raise WouldBlock(self, self._warm_indexes)
            self.load_indexes()
        entry = self.index.entry_before(offset)
        start = end = entry[1] if entry else 0
        if entry is not None and start <= 0:
            start = end = -1  # no batch but the first starts there, and that one has no entry
        for at, header in self.headers(start, may_block=may_block):
            if at == start and entry is not None and header.base_offset > entry[0]:
                break
            if header.base_offset + header.last_offset_delta >= offset:
                return at
            end = at + header.size_in_bytes
        if end == start and entry is not None:
            # No batch of that offset there: without this look at the index, bytes from the middle of one were served.
            log.warning("%s: position %d for offset %d is wrong: made anew", self.index.path, entry[1], entry[0])
            self.rebuild_indexes()
            return self.position_of(offset, may_block=True)
        if end != self.size:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.path}: no batch at position {end}")
        return end

    def _warm_indexes(self) -> None:
        """For a thread: the index files come into the page cache, so that reading them takes no time any more."""
        self._filesystem.read_file(self.index.path)
        self._filesystem.read_file(self.time_index.path)
        self._indexes_are_warm = True

    def read(self, position: int, size: int, *, may_block: bool) -> Buffer:
        """`size` bytes from `position`, fewer at the end of the file. Raises WouldBlock."""
        if not may_block:
            data = self._filesystem.read_cached(self._file(), size, position)
            if data is None:
                raise WouldBlock(self, lambda: self._filesystem.read(self._file(), size, position))
            return data
        return self._filesystem.read(self._file(), size, position)

    def read_batches(self, start: int, end: int, max_bytes: int, min_one_batch: bool, *, may_block: bool) -> Buffer:
        """Bytes [start, end), at most `max_bytes`, but the first batch whole if it is asked for. Raises WouldBlock.

        Nothing, when the first batch is larger and not asked for; else the last batch may be cut.
        """
        size = end - start
        if size > max_bytes:
            first = parse_header(self.read(start, HEADER_SIZE, may_block=may_block)).size_in_bytes
            if first > max_bytes and not min_one_batch:
                return b""
            size = min(size, max(first, max_bytes))
        return self.read(start, size, may_block=may_block)

    def headers(self, position: int = 0, *, may_block: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on, read in chunks; the records are passed over.

        Ends before what cannot be a batch of this segment.
        """
        end = self.size
        while 0 <= position <= end - HEADER_SIZE:
            data = self.read(position, min(SCAN_BYTES, end - position), may_block=may_block)
            at = 0
            while at + HEADER_SIZE <= len(data):
                header = parse_header(data, at)
                following = position + at + header.batch_length + LOG_OVERHEAD
                if (
                    header.batch_length < HEADER_SIZE - LOG_OVERHEAD
                    or header.magic != MAGIC
                    or not 0 <= header.base_offset - self.base_offset <= RELATIVE_OFFSET_MAX - header.last_offset_delta
                    or header.last_offset_delta < 0
                    or following > end
                ):
                    return
                yield position + at, header
                at += header.batch_length + LOG_OVERHEAD
            if at == 0:
                return
            position += at

    # -- cutting, syncing, closing --------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drops the batch that holds `offset` and all after it; the segment is the last of its log from now on.

        False when no batch held it.
        """
        position = self.position_of(offset, may_block=True)
        cut = next(self.headers(position), None)
        self.load_indexes()
        if position < self.size:
            self._truncate_file(position)
            self.index.truncate_to(offset, position)
            self.time_index.truncate_to(offset)
        self._forget_transactions_from(offset)
        self._forget_recent()
        self._newest_is_known = False
        self.next_offset = self.base_offset
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        self.load_end()
        return cut is not None and cut[1].base_offset < offset

    def _truncate_file(self, size: int) -> None:
        self._filesystem.truncate(self._file(), size)
        self.size = size
        self.is_unsynced = True

    def _forget_transactions_from(self, offset: int) -> None:
        """Kafka's list of aborted transactions loses those that ended there or later: it is believed by a Kafka that opens the log."""
        path = self._path_of(".txnindex")
        data = self._filesystem.read_file(path)
        if data:
            kept = 0
            while kept + _ABORTED.size <= len(data) and _ABORTED.unpack_from(data, kept)[3] < offset:
                kept += _ABORTED.size
            if kept < len(data):
                self._filesystem.truncate_path(path, kept)

    def sync(self) -> None:
        """Waits until the log file is on the disk; for a thread, pinned."""
        self._filesystem.sync(self._file())

    def write_out_unsynced(self) -> None:
        """Before `take_unsynced`: the index files get what they do not have yet. Raises OSError."""
        for index in (self.index, self.time_index):
            if index.is_unsynced:
                index.write_out()

    def sync_to_rest(self) -> None:
        """Waits until the log file is on the disk, and closes it: where there is no descriptor to keep it open. Raises OSError."""
        self.sync()
        self.is_unsynced = False
        self.rest()

    def take_unsynced(self) -> tuple[bool, list[str]]:
        """(is the log file to be synced, paths of the indexes that are); they count as synced from now on."""
        paths = []
        for index in (self.index, self.time_index):
            if index.is_unsynced:
                index.is_unsynced = False
                paths.append(index.path)
        was_unsynced, self.is_unsynced = self.is_unsynced, False
        return was_unsynced, paths

    def pin(self) -> None:
        """A thread starts to use the file: closing waits for `unpin`, or the descriptor might become another file's."""
        self._file()
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._is_closing and not self._pins:
            self._close_file()

    def close(self) -> None:
        """Closes the file, as soon as no thread uses it."""
        if not self._is_closing:
            self._is_closing = True
            if not self._pins:
                self._close_file()

    def rename(self, suffix: str) -> None:
        """Its files, all there and the indexes written, end with `suffix` from now on; the log file is the last to change."""
        before = self._suffix
        for kind in (".index", ".timeindex", ".log"):
            old = self._path_of(kind)
            self._suffix = suffix
            self._filesystem.rename(old, self._path_of(kind))
            self._suffix = before
        self._suffix = suffix
        self._name_indexes()

    def remove(self) -> list[str]:
        """Closes the segment and renames its files away. Returns what is still to be unlinked, which may take long."""
        self.close()
        renamed = []
        for path in self.paths:
            if self._filesystem.exists(path):
                self._filesystem.rename(path, path + REMOVED_SUFFIX)
                renamed.append(path + REMOVED_SUFFIX)
        return renamed
