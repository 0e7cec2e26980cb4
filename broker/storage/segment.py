"""One segment: `<base offset>.log` with its indexes (LOG-1). A position is the byte in the log file where a batch starts.

The positions of the newest batches are kept in memory, so that reads near the log end (followers, consumers that keep up, the
high watermark) do not need the index. Where recent reads ended is kept too (`next_reads.py`): the next read continues there.

The log file is opened when it is first read or written, and closed when it was not used for a while (`open_files`). Each
retention check frees the indexes of inactive segments.

A segment is used on the loop. Exceptions: the thread that opens the log at a start, the cleaner's thread, and threads that only
warm or sync files. An error of the disk is LogDirFailed on the loop, and OSError where `log_files` says.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from broker.storage import aborted_transactions
from broker.storage.aborted_transactions import AbortedIndex, AbortedIndexCorrupt, AbortedTransaction
from broker.storage.disk.filesystem import FileSystem
from broker.storage.failures import LogDirFailed
from broker.storage.next_reads import NextReads
from broker.storage.producers.produced_batches import PlainBatch
from broker.storage.sparse_index import RELATIVE_OFFSET_MAX, IndexCorrupt, OffsetIndex, TimeIndex
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    crc_is_valid,
    first_batch_size,
    iter_batches,
    old_message_format,
    parse_header,
)
from protocol.types import Buffer

log = logging.getLogger(__name__)

RECENT_MAX: Final = 256
SENT_FROM_FILE = 256 * 1024
"""Bytes from which on the kernel sends records from their file. A copy of fewer costs no more than these system calls, and reaches the
client in one piece. Not Final: simulations set a smaller one, also in compiled code."""
SCAN_BYTES: Final = 16 * 1024
VERIFY_BYTES: Final = 4 * 1024 * 1024
NO_TIMESTAMP: Final = -1
REMOVED_SUFFIX: Final = ".deleted"
KINDS: Final = (".log", ".index", ".timeindex", aborted_transactions.SUFFIX)
"""Suffixes of a segment's files. Only a segment with abort markers has the last one."""

IsBelieved = Callable[[BatchHeader, BatchHeader | None], bool]
"""(a batch with a valid CRC, the batch after it) -> whether the first one's offset and epoch, which the CRC does not cover, can
be true."""


class OldMessages(Exception):
    """The segment has messages of format v0 or v1, which this broker cannot read. The text says where."""


class WouldBlock(Exception):
    """The bytes are not in the page cache. Run `warm` in a thread to bring them there, then repeat the call."""

    def __init__(self, segment: Segment, warm: Callable[[], object]) -> None:
        super().__init__(segment.path)
        self.segment = segment
        self.warm = warm


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class SegmentEnd(NamedTuple):
    """What is known of the active segment's end. The record at `max_timestamp_offset` has the largest timestamp.

    Timestamps are in ms. `first_timestamp`: of the first batch, NO_TIMESTAMP if it is not known. `bytes_since_index`: the size of the
    batches after the last index entry.
    """

    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    first_timestamp: int
    bytes_since_index: int


class Segment:
    """A segment of a log: readable, and appendable while it is the active one."""

    __slots__ = (
        "_directory",
        "_fd",
        "_filesystem",
        "_indexed_size",
        "_indexes_are_warm",
        "_is_closing",
        "_newest_is_known",
        "_next_reads",
        "_pins",
        "_recent_ends",
        "_recent_positions",
        "_suffix",
        "aborted",
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
        must_open: bool = False,
        has_aborted: bool = False,
        size: int | None = None,
    ) -> None:
        """With `is_new` the log file is created, else it must exist. Existing indexes are not read yet. Raises OSError.

        `size`: that of the log file, if the caller has looked.

        `must_open`: the work that creates the file has begun, and passed `check_spare`. The file may then take any spare descriptor, so
        that other threads, which took one meanwhile, do not make it fail half-way.

        `has_aborted`: there is a list of aborted transactions. `suffix` ends the names of all files until `rename`. It marks a segment
        that is not part of its log yet.
        """
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        stem = f"{directory}/{segment_name(base_offset)}"
        self.index = OffsetIndex(filesystem, f"{stem}.index{suffix}", base_offset)
        self.time_index = TimeIndex(filesystem, f"{stem}.timeindex{suffix}", base_offset)
        self.aborted: AbortedIndex | None = None
        if has_aborted:
            path = f"{stem}{aborted_transactions.SUFFIX}{suffix}"
            self.aborted = AbortedIndex(filesystem, path, base_offset, is_new=False)
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
        self._indexed_size: int | None = None
        """The size for which the index files are complete, if they were not read since the segment was opened."""
        self._indexes_are_warm = False
        self._pins = 0
        self._is_closing = False
        # The newest batches, consecutive up to the end: the position of each, and the offset after its last record.
        self._recent_positions: array[int] | None = None
        self._recent_ends: array[int] | None = None
        self._next_reads: NextReads | None = None
        path = self.path
        if is_new:
            fd = filesystem.open(path) if must_open else filesystem.open_to_keep(path)
            self.size = filesystem.size(fd)
            self._fd = fd
            # Last: this may be the cleaner's thread, and from here on the loop may close the file.
            filesystem.in_use.add(self)
            self._newest_is_known = True
            self.index.begin()
            self.time_index.begin()
        else:
            self.size = filesystem.size_of(path) if size is None else size

    @property
    def path(self) -> str:
        """The path of the log file."""
        return self._path_of(".log")

    @property
    def paths(self) -> list[str]:
        """The paths of all files that the segment may have."""
        return [self._path_of(kind) for kind in KINDS]

    @property
    def indexes(self) -> tuple[OffsetIndex | TimeIndex | AbortedIndex, ...]:
        """The indexes that the segment has."""
        both = (self.index, self.time_index)
        return both if self.aborted is None else (*both, self.aborted)

    def _path_of(self, kind: str) -> str:
        return f"{self._directory}/{segment_name(self.base_offset)}{kind}{self._suffix}"

    def moved_to(self, directory: str) -> None:
        """The directory was renamed. Open files stay open."""
        self._directory = directory
        self._name_indexes()

    def _name_indexes(self) -> None:
        self.index.path = self._path_of(".index")
        self.time_index.path = self._path_of(".timeindex")
        if self.aborted is not None:
            self.aborted.path = self._path_of(aborted_transactions.SUFFIX)

    # -- the open file --------------------------------------------------------------------------------------------

    def _file(self) -> int:
        """The log file's descriptor, for one call at once. It may be closed when another file is opened, unless the segment is pinned.

        Raises KafkaError(KAFKA_STORAGE_ERROR) if the segment is closed.
        """
        self.is_used = True
        fd = self._fd
        if fd is None:
            if self._is_closing:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} is closed")
            fd = self._fd = self._filesystem.reopen_to_keep(self.path)
            self._filesystem.in_use.add(self)
        return fd

    def descriptor(self) -> int:
        """As `_file`, for others."""
        return self._file()

    def rest(self) -> bool:
        """Closes an unused file, and forgets the newest batches' positions. False when the file stays open (`can_rest`).

        An unsynced file stays open: if a write fails in the background, only a descriptor that was open at that time is sure
        to get the error (FLT-29).
        """
        self._forget_recent()
        if not self.can_rest:
            return False
        with contextlib.suppress(LogDirFailed):  # it is closed all the same, whatever file is opened in its place
            self._close_file()
        return True

    @property
    def can_rest(self) -> bool:
        """The file is not pinned, all of it is synced, and closing it frees a descriptor below the limit of open files."""
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
        """Reads the indexes once; those that do not fit the log are rebuilt from it (FLT-27).

        If a file cannot be read, as without a descriptor, neither index is loaded, and the next call tries again.
        """
        if self.index.is_loaded and self.time_index.is_loaded:
            return
        try:
            try:
                # The first entry follows more than `index_interval_bytes` of batches.
                self.index.load(may_be_missing=self.size <= self.index_interval_bytes)
                self.time_index.load()
                self._check_last_entries()
            except IndexCorrupt as error:
                self._rebuild_for(error)
        except (OSError, LogDirFailed):
            self.index.forget()
            self.time_index.forget()
            raise

    def _rebuild_for(self, error: IndexCorrupt) -> None:
        log.warning("%s: the indexes are rebuilt", error)
        self.rebuild_indexes()

    def _check_last_entries(self) -> None:
        entry = self.index.last()
        if entry is not None and not self._fits(entry):
            raise IndexCorrupt(f"{self.index.path}: position {entry[1]} for offset {entry[0]} is wrong")
        newest = self.time_index.last()
        if newest is not None and not self.has_timestamp(*newest):
            raise IndexCorrupt(f"{self.time_index.path}: {newest[0]} ms for offset {newest[1]} is wrong")

    def _fits(self, entry: tuple[int, int]) -> bool:
        """True when a batch starts at the entry's position, and its base offset is not above the entry's offset."""
        offset, position = entry
        found = next(self.headers(position), None)
        return found is not None and found[1].base_offset <= offset

    def has_timestamp(self, timestamp: int, offset: int) -> bool:
        """Checks a time index entry: `timestamp` is the largest of the batch that holds `offset`. Raises IndexCorrupt."""
        entry = None if self.index.is_loaded or self.size <= self.index_interval_bytes else self.index.last_in_file()
        if entry is None or entry[0] > offset:
            self.index.load(may_be_missing=self.size <= self.index_interval_bytes)
            entry = self.index.entry_before(offset)
        for _, header in self.headers(entry[1] if entry else 0):
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == timestamp
        return False

    def load_end(self) -> tuple[bool, BatchHeader | None]:
        """Finds `next_offset` and the largest timestamp. Reads the batches from the last index entry on.

        Returns (the file ends with a whole batch, the last batch if there is one). If it does not, the caller must verify it.
        """
        header = None
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
            self._take_timestamp(header.last_offset, header.max_timestamp)
            self._note(at, header.last_offset)
            end = at + header.size_in_bytes
        if last is not None:
            self.first_timestamp = NO_TIMESTAMP
            self.first_batch_timestamp()
        return end == self.size, header

    @property
    def end(self) -> SegmentEnd:
        """For `reopen_end`, of an active segment."""
        return SegmentEnd(
            self.next_offset,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.first_timestamp,
            self.bytes_since_index,
        )

    def reopen_end(self, end: SegmentEnd) -> None:
        """In place of `load_end`: the file is as it was at a clean stop, with that end and complete index files. Reads nothing."""
        self.next_offset = end.next_offset
        self.max_timestamp, self.max_timestamp_offset = end.max_timestamp, end.max_timestamp_offset
        self.first_timestamp = end.first_timestamp
        self.bytes_since_index = end.bytes_since_index
        self._newest_is_known = True
        self._indexed_size = self.size

    def rebuild_indexes(self) -> None:
        """Makes both indexes from the batch headers of the log file."""
        self._file()  # without a descriptor nothing changes
        self._start_indexes()
        for at, header in self.headers(0):
            self._index(at, header.size_in_bytes, header.last_offset, header.max_timestamp)
        self.close_time_index()

    def _start_indexes(self) -> None:
        self._newest_is_known = True
        self.index.reset()
        self.time_index.reset()
        self.bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def verify(self, is_believed: IsBelieved) -> None:
        """Reads the whole segment (LOG-2), cuts the file before the first invalid batch, and rebuilds the indexes.

        A valid batch is whole, in format v2, has a right CRC, and is believed. Raises OldMessages instead of cutting off messages of
        an older format.
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
            self._index(at, header.size_in_bytes, header.last_offset, header.max_timestamp)
            self._note(at, header.last_offset)
            end = at + header.size_in_bytes
            current = following
        if end < self.size:
            self.refuse_old_messages(end)
            self._truncate_file(end)
        self.close_time_index()

    def drop_cached(self) -> None:
        """The next read sees what is on the disk (`FileSystem.drop_cached`)."""
        self._filesystem.drop_cached(self._file())

    def refuse_old_messages(self, position: int = 0) -> None:
        """Raises OldMessages if a message of format v0 or v1 starts at that position of the file."""
        head = self._filesystem.read(self._file(), MAGIC_OFFSET + 1, position)
        if len(head) <= MAGIC_OFFSET or head[MAGIC_OFFSET] >= MAGIC:
            return
        size = int.from_bytes(head[8:12], "big", signed=True) + LOG_OVERHEAD
        if not LENGTH_MIN + LOG_OVERHEAD <= size <= self.size - position:
            return
        found = old_message_format(self._filesystem.read(self._file(), size, position))
        if found is not None:
            raise OldMessages(f"{self.path} has a message of format v{found} at byte {position}")

    def _whole_batches(self) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches up to the first that is broken."""
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

    def prepare_append(self, size: int) -> None:
        """Reads the indexes if batches of that size need an entry, or a look at the indexes' sizes. Call it if they are not loaded."""
        if self.bytes_since_index + size > self.index_interval_bytes:
            self.load_indexes()

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches at the end. `headers` are the batches' headers. `prepare_append` comes before."""
        position = self.size
        self._filesystem.write(self._file(), parts, position)
        self.is_unsynced = True
        if position == 0:
            self.first_timestamp = headers[0].max_timestamp
        for header in headers:
            size, last_offset = header.batch_length + LOG_OVERHEAD, header.base_offset + header.last_offset_delta
            self._index(position, size, last_offset, header.max_timestamp)
            self._note(position, last_offset)
            position += size
        self.size = position

    def append_plain(self, parts: Sequence[Buffer], batches: Sequence[PlainBatch], offsets: Sequence[int]) -> None:
        """As `append`, for batches that `produced_batches.plain` accepted, with their base offsets. Each has two parts."""
        position = self.size
        self._filesystem.write(self._file(), parts, position)
        self.is_unsynced = True
        if position == 0:
            self.first_timestamp = batches[0][3]
        for at, offset in enumerate(offsets):
            body, _, delta, newest, _ = batches[at]
            size, last_offset = CRC_START + len(body), offset + delta
            self._index(position, size, last_offset, newest)
            self._note(position, last_offset)
            position += size
        self.size = position

    def _take_timestamp(self, last_offset: int, newest: int) -> None:
        if newest > self.max_timestamp:
            self.max_timestamp = newest
            self.max_timestamp_offset = last_offset

    def _index(self, position: int, size: int, last_offset: int, newest: int) -> None:
        if newest > self.max_timestamp:
            self._take_timestamp(last_offset, newest)
        if self.bytes_since_index > self.index_interval_bytes:
            self.index.append(last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def _note(self, position: int, last_offset: int) -> None:
        self.next_offset = end = last_offset + 1
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
        self._recent_ends = self._recent_positions = self._next_reads = None

    def close_time_index(self) -> None:
        """Adds the largest timestamp as the last time index entry."""
        if self.size and self.time_index.is_loaded:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    def seal(self) -> None:
        """Ends appending, because the next segment starts."""
        self.write_indexes()
        self._newest_is_known = True
        self._forget_recent()

    def write_indexes(self) -> None:
        """Completes both index files. Called at a roll and at a close."""
        if self._indexed_size is not None and self._indexed_size != self.size:
            self.load_indexes()
        self.close_time_index()
        for index in (self.index, self.time_index):
            index.write_out()
        if self.aborted is not None:
            self.aborted.write_out()

    def newest_timestamp(self) -> int:
        """The largest timestamp in the segment, or NO_TIMESTAMP. Reads the end of the time index at most once."""
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
        """The time that retention uses: the largest timestamp, or without one the time of the last write."""
        newest = self.newest_timestamp()
        return newest if newest >= 0 else self.written_ms()

    def written_ms(self) -> int:
        """When it was last written, or made."""
        return max(self._filesystem.modified_ms(self.path), self.created_ms)

    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, or NO_TIMESTAMP. May read the disk."""
        if self.first_timestamp == NO_TIMESTAMP:
            first = next(self.headers(), None)
            self.first_timestamp = first[1].max_timestamp if first else NO_TIMESTAMP
        return self.first_timestamp

    def forget_indexes(self) -> None:
        """Frees the indexes' memory (20 bytes for every 4 KiB of log). Not for the active segment."""
        self.index.unload()
        self.time_index.unload()
        if self.aborted is not None:
            self.aborted.unload()

    # -- reading --------------------------------------------------------------------------------------------------

    def position_of(self, offset: int, *, may_block: bool) -> int:
        """The position of the batch that holds `offset`, else of the first batch after it, else the segment's size.

        Raises WouldBlock when `may_block` is False and the page cache does not have the data, and KafkaError(CORRUPT_MESSAGE)
        when the search meets bytes that are not a batch.
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
        if self._next_reads is not None and (known := self._next_reads.get(offset)) is not None:
            return known
        entry = self.index.entry_before(offset)
        start = end = entry[1] if entry else 0
        if entry is not None and start <= 0:
            start = end = -1  # only the first batch starts at 0, and it has no entry: this entry is wrong
        for at, header in self.headers(start, may_block=may_block):
            if at == start and entry is not None and header.base_offset > entry[0]:
                break
            if header.base_offset + header.last_offset_delta >= offset:
                return at
            end = at + header.size_in_bytes
        if end == start and entry is not None:
            # The entry is wrong: no batch with its offset starts at its position. Without this check, a read could return bytes
            # from the middle of a batch.
            log.warning(
                "%s: position %d for offset %d is wrong: the index is rebuilt", self.index.path, entry[1], entry[0]
            )
            self.rebuild_indexes()
            return self.position_of(offset, may_block=True)
        if end != self.size:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.path}: no batch at position {end}")
        return end

    def _warm_indexes(self) -> None:
        """Reads the index files into the page cache, so that the loop can read them quickly. For a thread."""
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
        """Bytes [start, end), at most `max_bytes`; the last batch may be cut. Raises WouldBlock.

        If the first batch alone is larger than `max_bytes`, `min_one_batch` decides: the whole batch, or nothing.
        """
        size = end - start
        if size <= max_bytes:
            return self.read(start, size, may_block=may_block)
        if not min_one_batch or max_bytes < HEADER_SIZE:
            first = first_batch_size(self.read(start, HEADER_SIZE, may_block=may_block))
            if first > max_bytes:
                return self.read(start, min(size, first), may_block=may_block) if min_one_batch else b""
        # Otherwise the first batch is most likely not larger, and its header is in the data.
        data = self.read(start, max_bytes, may_block=may_block)
        first = first_batch_size(data)
        if first > max_bytes:
            return self.read(start, min(size, first), may_block=may_block)
        if self.index.is_loaded:
            # Otherwise the next read loads the index, which `offset_bound` needs.
            self._noted_reads().note(start, data)
        return data

    def bytes_to_send(self, start: int, end: int, max_bytes: int, min_one_batch: bool) -> int:
        """How many bytes from `start` on the kernel may send from the file, in place of `read_batches` with the same arguments.

        0: none, few, or perhaps not in the page cache; they are to be read.
        """
        size = end - start
        if size < SENT_FROM_FILE or max_bytes < SENT_FROM_FILE:
            return 0
        is_cut = size > max_bytes
        if is_cut:
            header = self._filesystem.read_cached(self._file(), HEADER_SIZE, start)
            if header is None:
                return 0
            first = first_batch_size(header)
            is_cut = first <= max_bytes
            if not (is_cut or min_one_batch):
                return 0
            size = max_bytes if is_cut else min(size, first)
        if not self._filesystem.is_cached(self._file(), size, start):
            return 0
        if is_cut and self.index.is_loaded:
            self._note_next_read(start, start + size)
        return size

    def _note_next_read(self, start: int, end: int) -> None:
        """Notes where the reader of the whole batches in [start, end) continues."""
        noted = self._noted_reads()
        at = max(self.index.position_before(end), start)
        with contextlib.suppress(WouldBlock):
            for position, header in self.headers(at, may_block=False):
                following = position + header.size_in_bytes
                if following > end:
                    if position > start:
                        noted.remember(header.base_offset, position)
                    return
                if following == end:
                    noted.remember(header.next_offset, end)
                    return

    def _noted_reads(self) -> NextReads:
        """Made for the first reader. Most segments have none."""
        noted = self._next_reads
        if noted is None:
            noted = self._next_reads = NextReads()
        return noted

    def offset_bound(self, position: int) -> int:
        """An offset above those of all batches that end at or before `position`, and not far above them.

        To be called after `position_of`, which has loaded the index if it is needed.
        """
        positions, ends = self._recent_positions, self._recent_ends
        if position >= self.size:
            return self.next_offset
        if positions is not None and ends is not None and position >= positions[0]:
            at = bisect_left(positions, position)
            return ends[at] if at < len(ends) else self.next_offset
        found = self.index.offset_from(position) if self.index.is_loaded else None
        return self.next_offset if found is None else found

    # -- aborted transactions -------------------------------------------------------------------------------------

    def note_aborted(self, transaction: AbortedTransaction) -> bool:
        """The abort marker of the transaction was appended. True: it is the segment's first, which will have a file."""
        is_first = self.aborted is None
        if self.aborted is None:
            path = self._path_of(aborted_transactions.SUFFIX)
            self.aborted = AbortedIndex(self._filesystem, path, self.base_offset, is_new=True)
        self.load_aborted()
        self.aborted.append(transaction)
        return is_first

    def collect_aborted(self, offset: int, upper_offset: int, found: list[tuple[int, int]], *, may_block: bool) -> bool:
        """`AbortedIndex.collect` of this segment. Raises WouldBlock when `may_block` is False and the file must be read."""
        index = self.aborted
        if index is None:
            return False
        if not (may_block or index.is_prepared):
            raise WouldBlock(self, index.prepare)
        self.load_aborted()
        return index.collect(offset, upper_offset, found)

    def stored_aborted(self) -> list[AbortedTransaction]:
        """The entries in the file of an inactive segment, which has them all. For a thread."""
        return [] if self.aborted is None else self.aborted.stored()

    def load_aborted(self) -> None:
        """Reads the list of aborted transactions once.

        A file that was right when the log was opened, and is damaged when it is read again, is a failure of the disk.
        """
        if self.aborted is not None:
            try:
                self.aborted.load()
            except AbortedIndexCorrupt as error:
                self._filesystem.refuse(self.aborted.path, str(error))

    def headers(self, position: int = 0, *, may_block: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on. Reads in chunks, and skips the records.

        Ends before the first bytes that cannot be a batch of this segment.
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

    def prepare_cut(self, offset: int) -> int:
        """Reads what `truncate_to` needs. Returns where the file is to be cut. Raises KafkaError(CORRUPT_MESSAGE)."""
        position = self.position_of(offset, may_block=True)
        self.load_indexes()
        self.load_aborted()
        return position

    def truncate_to(self, offset: int) -> bool:
        """Drops the batch that holds `offset` and all later ones. The segment becomes the active one.

        True when the first dropped batch starts before `offset`.
        """
        position = self.prepare_cut(offset)
        cut = next(self.headers(position), None)
        if position < self.size:
            self._truncate_file(position)
            self.index.truncate_to(offset, position)
            self.time_index.truncate_to(offset)
        if self.aborted is not None:
            self.aborted.truncate_to(offset)
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

    def sync(self) -> None:
        """Waits until the log file is on the disk. For a thread; the segment must be pinned."""
        self._filesystem.sync(self._file())

    @property
    def has_unsynced(self) -> bool:
        """Whether `take_unsynced` has something to take."""
        return (
            self.is_unsynced
            or self.index.is_unsynced
            or self.time_index.is_unsynced
            or (self.aborted is not None and self.aborted.is_unsynced)
        )

    def write_out_unsynced(self) -> None:
        """Writes the index entries that the files do not have yet. Call before `take_unsynced`."""
        for index in self.indexes:
            if index.is_unsynced:
                index.write_out()

    def sync_to_rest(self) -> None:
        """Syncs the log file and closes it, when too many files are open to keep it. Blocks."""
        self.sync()
        self.is_unsynced = False
        self.rest()

    def take_unsynced(self) -> tuple[bool, list[str]]:
        """(whether the log file must be synced, paths of the indexes to sync). All count as synced from now on."""
        paths = []
        for index in self.indexes:
            if index.is_unsynced:
                index.is_unsynced = False
                paths.append(index.path)
        was_unsynced, self.is_unsynced = self.is_unsynced, False
        return was_unsynced, paths

    def pin(self) -> None:
        """Opens the file, and delays a close until `unpin`: a thread or an answer uses the descriptor, which must not become another
        file's meanwhile.
        """
        self._file()
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._is_closing and not self._pins:
            self._close_file()

    def close(self) -> None:
        """Closes the file as soon as it is not pinned."""
        if not self._is_closing:
            self._is_closing = True
            if not self._pins:
                self._close_file()

    def rename(self, suffix: str) -> None:
        """Renames the files, all of which must exist, to end with `suffix`. The log file is renamed last."""
        before = self._suffix
        kinds = [".index", ".timeindex", ".log"]
        if self.aborted is not None:
            kinds.insert(0, aborted_transactions.SUFFIX)
        for kind in kinds:
            old = self._path_of(kind)
            self._suffix = suffix
            self._filesystem.rename(old, self._path_of(kind))
            self._suffix = before
        self._suffix = suffix
        self._name_indexes()

    def remove_log_file(self) -> str:
        """The first step of `remove`, alone. After it the segment no longer exists for a start; after an error nothing has changed."""
        removed = self.path + REMOVED_SUFFIX
        self._filesystem.rename(self.path, removed)
        return removed

    def remove(self) -> list[str]:
        """Closes the segment and renames its files. Returns the new paths, to be unlinked, which may take long."""
        self.close()
        renamed = []
        for path in self.paths:
            if self._filesystem.exists(path):
                self._filesystem.rename(path, path + REMOVED_SUFFIX)
                renamed.append(path + REMOVED_SUFFIX)
        return renamed
