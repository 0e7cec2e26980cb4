"""One segment: `<base offset>.log` with its two indexes (LOG-1). Offsets are those of records, positions bytes of the file.

The newest batches' positions are kept in memory, so that what follows the end of the log (followers, consumers that keep
up, the high watermark) finds its place without the index. All positions lie at the begin of a batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from broker.storage.filesystem import Buffer, FileSystem
from broker.storage.sparse_index import IndexCorrupt, OffsetIndex, TimeIndex
from protocol.errors import KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, crc_is_valid, iter_batches, parse_header

RECENT_MAX = 512
SCAN_BYTES = 16 * 1024
VERIFY_BYTES = 4 * 1024 * 1024
NO_TIMESTAMP = -1


class WouldBlock(Exception):
    """The bytes are not in the page cache: read them in a thread."""


class _Invalid(Exception):
    """A batch that recovery does not keep."""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    """Open for reading and, if it is the last of its log, for appending."""

    def __init__(
        self, filesystem: FileSystem, directory: str, base_offset: int, *, index_interval_bytes: int, created_ms: int
    ) -> None:
        stem = f"{directory}/{segment_name(base_offset)}"
        self.path = stem + ".log"
        self.base_offset = base_offset
        self.index = OffsetIndex(filesystem, stem + ".index", base_offset)
        self.time_index = TimeIndex(filesystem, stem + ".timeindex", base_offset)
        self.index_interval_bytes = index_interval_bytes
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.next_offset = base_offset
        self._filesystem = filesystem
        self._fd = filesystem.open(self.path)
        self.size = filesystem.size(self._fd)
        self._bytes_since_index = 0
        self._pins = 0
        self._is_closing = False
        self._recent_offsets: list[int] = []
        self._recent_positions: list[int] = []

    # -- opening --------------------------------------------------------------------------------------------------

    def load_indexes(self) -> None:
        """Reads the indexes; one that is broken is made anew from the log (FLT-27)."""
        try:
            self.index.load()
            self.time_index.load()
            last = self.index.last()
            if last is not None and (last[1] >= self.size or last[0] < self.base_offset):
                raise IndexCorrupt(f"{self.index.path} points behind the end of the log")
        except IndexCorrupt:
            self.rebuild_indexes()

    def load_end(self) -> None:
        """Finds `next_offset` and the largest timestamp, reading from the last index entry on (clean start)."""
        self.load_indexes()
        last = self.index.last()
        position = last[1] if last else 0
        entry = self.time_index.last()
        if entry is not None:
            self.max_timestamp, self.max_timestamp_offset = entry
        self._bytes_since_index = 0
        for at, header in self.headers(position):
            self._note(at, header)
        if self.size:
            self.first_timestamp = self._header_at(0).max_timestamp

    def rebuild_indexes(self) -> None:
        """Makes both indexes from the batch headers of the log file."""
        self.index.reset()
        self.time_index.reset()
        self._bytes_since_index = 0
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        for at, header in self.headers(0):
            self._index(at, header)
        self.close_time_index()

    def verify(self) -> Iterator[BatchHeader]:
        """Re-reads the whole segment (LOG-2): yields each valid batch's header, cuts the file after the last of them.

        Valid: whole, of format v2, CRC right, offsets going on from the batch before. The indexes are made anew.
        """
        self.index.reset()
        self.time_index.reset()
        self._forget_recent()
        self.next_offset = self.base_offset
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self._bytes_since_index = 0
        position = 0
        while position < self.size:
            data = self._filesystem.read(self._fd, VERIFY_BYTES, position)
            if len(data) >= LOG_OVERHEAD:
                first_size = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
                if len(data) < first_size <= self.size - position:
                    data = self._filesystem.read(self._fd, first_size, position)
            used = 0
            try:
                for at, header in iter_batches(data):
                    if (
                        header.base_offset < self.next_offset
                        or header.last_offset_delta < 0
                        or not crc_is_valid(data, at, header)
                    ):
                        raise _Invalid
                    if position + at == 0:
                        self.first_timestamp = header.max_timestamp
                    self._index(position + at, header)
                    self._note(position + at, header)
                    used = at + header.size_in_bytes
                    yield header
            except (KafkaError, _Invalid):
                position += used
                break
            if used == 0:
                break
            position += used
        if position < self.size:
            self._filesystem.truncate(self._fd, position)
            self.size = position
        self.close_time_index()

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches, whose headers (with their final offsets) are given, at the end. Raises OSError."""
        position = self.size
        self._filesystem.write(self._fd, parts, position)
        for header in headers:
            if position == 0:
                self.first_timestamp = header.max_timestamp
            if self._bytes_since_index > self.index_interval_bytes:
                self.index.append(header.last_offset, position)
                self._take_timestamp(header)
                self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
                self._bytes_since_index = 0
            size = header.batch_length + LOG_OVERHEAD
            self._bytes_since_index += size
            self._note(position, header)
            position += size
        self.size = position

    def _index(self, position: int, header: BatchHeader) -> None:
        """The same index entries as an append of this batch would have made."""
        self._take_timestamp(header)
        if self._bytes_since_index > self.index_interval_bytes:
            self.index.append(header.last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += header.size_in_bytes

    def _take_timestamp(self, header: BatchHeader) -> None:
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset

    def _note(self, position: int, header: BatchHeader) -> None:
        self._take_timestamp(header)
        self.next_offset = header.next_offset
        self._recent_offsets.append(header.base_offset)
        self._recent_positions.append(position)
        if len(self._recent_offsets) > 2 * RECENT_MAX:
            del self._recent_offsets[:RECENT_MAX]
            del self._recent_positions[:RECENT_MAX]

    def _forget_recent(self) -> None:
        self._recent_offsets.clear()
        self._recent_positions.clear()

    def close_time_index(self) -> None:
        """The segment takes no more appends, or is closed: its largest timestamp becomes the time index's last entry."""
        if self.max_timestamp > NO_TIMESTAMP and self.size:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    # -- reading --------------------------------------------------------------------------------------------------

    def position_of(self, offset: int, *, may_block: bool) -> int:
        """Where the batch that holds `offset` begins, or the first after it; the segment's size when there is none.

        Raises WouldBlock, when the file must be looked at and `may_block` is False.
        """
        if offset >= self.next_offset:
            return self.size
        recent = self._recent_offsets
        if recent and offset >= recent[0]:
            return self._recent_positions[bisect_right(recent, offset) - 1]
        if not self.index._is_loaded:
            self.load_indexes()
        # An entry holds the last offset of its batch, so one for exactly `offset` is at that batch or after its begin.
        position = self.index.position_before(offset)
        for at, header in self.headers(position, may_block=may_block):
            if header.last_offset >= offset:
                return at
        return self.size

    def read(self, position: int, size: int, *, may_block: bool) -> Buffer:
        """`size` bytes from `position`, fewer at the end of the file. Raises WouldBlock."""
        if may_block:
            return self._filesystem.read(self._fd, size, position)
        data = self._filesystem.read_cached(self._fd, size, position)
        if data is None:
            raise WouldBlock
        return data

    def headers(self, position: int = 0, *, may_block: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from `position` on, read in chunks; the records are passed over."""
        end = self.size
        while position + HEADER_SIZE <= end:
            data = self.read(position, min(SCAN_BYTES, end - position), may_block=may_block)
            at = 0
            while at + HEADER_SIZE <= len(data):
                header = parse_header(data, at)
                if header.batch_length < HEADER_SIZE - LOG_OVERHEAD or position + at + header.size_in_bytes > end:
                    return
                yield position + at, header
                at += header.size_in_bytes
            if at == 0:
                return
            position += at

    def _header_at(self, position: int) -> BatchHeader:
        return parse_header(self._filesystem.read(self._fd, HEADER_SIZE, position))

    # -- cutting, closing -----------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drops the batch that holds `offset` and all after it."""
        if offset >= self.next_offset:
            return
        position = self.position_of(offset, may_block=True)
        self.load_indexes()
        self._filesystem.truncate(self._fd, position)
        self.size = position
        self.index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        last = self.index.last()
        if last is not None and last[1] >= position:
            self.rebuild_indexes()
        self._forget_recent()
        self.next_offset = self.base_offset
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.load_end()
        if not self.size:
            self.first_timestamp = NO_TIMESTAMP

    def sync(self) -> None:
        """Waits until log and indexes are on the disk; for a thread."""
        self._filesystem.sync(self._fd)
        self.index.sync()
        self.time_index.sync()

    def pin(self) -> None:
        """A thread begins to use the file: closing waits for `unpin`, or the descriptor might become another file's."""
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._is_closing and not self._pins:
            self._close_now()

    def close(self) -> None:
        """Closes the files, as soon as no thread uses them."""
        if not self._is_closing:
            self._is_closing = True
            if not self._pins:
                self._close_now()

    def _close_now(self) -> None:
        self._filesystem.close(self._fd)
        self.index.close()
        self.time_index.close()

    def remove(self) -> None:
        """Closes the segment and removes its files."""
        self.close()
        for path in (self.path, self.index.path, self.time_index.path):
            self._filesystem.remove(path)
