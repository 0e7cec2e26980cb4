"""One partition's log on disk: segments, log start and end, leader epochs (LOG-1..3).

Everything but `flush`, `read_cold` and `close` is direct: it works on the page cache. Offsets are those of records, `LEO` is
the log end offset. The high watermark belongs to the partition, which passes it where it matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.config import TopicConfig
from broker.storage import retention
from broker.storage.checkpoints import LEADER_EPOCHS, encode_epochs
from broker.storage.filesystem import Buffer, FileSystem
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.segment import NO_TIMESTAMP, Segment, WouldBlock
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    BatchHeader,
    crc_is_valid,
    decode_records,
    iter_batches,
    parse_header,
    patch,
    set_log_append_time,
    validate_produced,
)
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RELATIVE_OFFSET_MAX = 2**31 - 1
ASSIGNED_BYTES = 16
"""Base offset, length and leader epoch: what a leader writes anew in front of a producer's batch."""

__all__ = ["AppendInfo", "Log", "LogDirFailed", "ReadResult", "WouldBlock"]


class LogDirFailed(Exception):
    """The disk under a log failed: KAFKA_STORAGE_ERROR for the client, its log directory goes offline (LOG-6)."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(f"log directory {directory} failed: {error}")
        self.directory = directory
        self.error = error


class AppendInfo(NamedTuple):
    """What an append did. `log_append_time_ms` is -1 for CreateTime."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    max_timestamp: int
    size_bytes: int


class ReadResult(NamedTuple):
    """Whole batches (the last may be cut by the size limit), in order."""

    records: Sequence[Buffer]
    size: int


NOTHING = ReadResult((), 0)


@dataclass(slots=True)
class LogParts:
    """What recovery found on disk; see `broker.storage.recovery`."""

    segments: list[Segment]
    log_start_offset: int
    recovery_point: int
    epochs: list[tuple[int, int]]
    topic_id: str | None


class Log:
    """One replica's log. Made by the LogManager."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_dir: str,
        directory: str,
        config: TopicConfig,
        filesystem: FileSystem,
        wall_ms: Callable[[], int],
        parts: LogParts,
    ) -> None:
        self.topic_partition = topic_partition
        self.log_dir = log_dir
        self.directory = directory
        self.config = config
        self.topic_id = parts.topic_id
        self.log_start_offset = parts.log_start_offset
        self.log_end_offset = parts.segments[-1].next_offset
        self.recovery_point = min(parts.recovery_point, self.log_end_offset)
        self.leader_epochs = LeaderEpochCache(parts.epochs, self._write_epochs)
        self._filesystem = filesystem
        self._wall_ms = wall_ms
        self._segments = parts.segments
        self._bases = [segment.base_offset for segment in parts.segments]
        self.on_roll: Callable[[Log], None] | None = None
        self.is_deleted = False

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last is the one that is appended to."""
        return self._segments

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    # -- appending ------------------------------------------------------------------------------------------------

    def append_as_leader(self, records: memoryview | bytes, leader_epoch: int) -> AppendInfo:
        """Appends what a producer sent: one batch, validated, with offsets and the leader epoch assigned.

        Raises KafkaError for a batch that is not allowed (nothing is written then), LogDirFailed for the disk.
        """
        config = self.config
        header = validate_produced(records, max_message_bytes=config.max_message_bytes)[0][1]
        if "compact" in config.cleanup_policy and any(record.key is None for record in decode_records(records)):
            raise KafkaError(ErrorCode.INVALID_RECORD, "a record without a key in a compacted topic")
        first_offset = self.log_end_offset
        header = header._replace(base_offset=first_offset, partition_leader_epoch=leader_epoch)
        append_time = -1
        if config.message_timestamp_type == "LogAppendTime":
            append_time = self._wall_ms()
            whole = bytearray(records)
            set_log_append_time(whole, 0, append_time)
            header = header._replace(max_timestamp=append_time)
            patch(whole, 0, first_offset, leader_epoch)
            parts: tuple[Buffer, ...] = (whole,)
        else:
            # The record bytes go from the network buffer to the file: only the first 16 bytes are made anew.
            head = bytearray(records[:ASSIGNED_BYTES])
            patch(head, 0, first_offset, leader_epoch)
            parts = (head, memoryview(records)[ASSIGNED_BYTES:])
        self._write(parts, (header,), len(records))
        if leader_epoch > self.leader_epochs.latest_epoch():
            self.leader_epochs.assign(leader_epoch, first_offset)
        return AppendInfo(
            first_offset, header.last_offset, append_time, self.log_start_offset, header.max_timestamp, len(records)
        )

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        """Appends what the leader sent, byte for byte; a partial batch at the end is cut off.

        Raises KafkaError(CORRUPT_MESSAGE) for broken bytes and KafkaError(OFFSET_OUT_OF_RANGE) for a batch before the
        LEO (nothing is written then), LogDirFailed for the disk.
        """
        headers: list[BatchHeader] = []
        expected = self.log_end_offset
        end = 0
        for position, header in iter_batches(records):
            if header.base_offset < expected:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"batch at {header.base_offset}, the log ends at {expected}"
                )
            if header.last_offset_delta < 0 or not crc_is_valid(records, position, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset} is broken")
            headers.append(header)
            expected = header.next_offset
            end = position + header.size_in_bytes
        first_offset = headers[0].base_offset if headers else self.log_end_offset
        if headers:
            self._write((records[:end],), headers, end)
            for header in headers:
                if header.partition_leader_epoch > self.leader_epochs.latest_epoch():
                    self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        newest = max((header.max_timestamp for header in headers), default=NO_TIMESTAMP)
        return AppendInfo(first_offset, self.log_end_offset - 1, -1, self.log_start_offset, newest, end)

    def _write(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader], size: int) -> None:
        segment = self._segments[-1]
        try:
            if segment.size and self._must_roll(segment, headers, size):
                segment = self._roll(headers[0].base_offset)
            segment.append(parts, headers)
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error
        # Published last: a reader never sees an end that is not written (BUG-19).
        self.log_end_offset = segment.next_offset

    def _must_roll(self, segment: Segment, headers: Sequence[BatchHeader], size: int) -> bool:
        """Kafka's LogSegment.shouldRoll: by size, by time of the records, by index size, by relative offset."""
        config = self.config
        if segment.size + size > config.segment_bytes:
            return True
        if headers[-1].last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if max(segment.index.size_in_bytes, segment.time_index.size_in_bytes) + 12 > config.segment_index_bytes:
            return True
        newest = headers[-1].max_timestamp
        if segment.first_timestamp >= 0 and newest >= 0:
            waited = newest - segment.first_timestamp
        else:
            waited = self._wall_ms() - segment.created_ms
        return waited > config.segment_ms - config.segment_jitter_ms

    def _roll(self, base_offset: int) -> Segment:
        """Ends the last segment and begins one at `base_offset`. Raises OSError."""
        self._segments[-1].close_time_index()
        segment = self._new_segment(base_offset)
        self._segments.append(segment)
        self._bases.append(base_offset)
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self._filesystem,
            self.directory,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            created_ms=self._wall_ms(),
        )
        segment.index.reset()
        segment.time_index.reset()
        return segment

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, max_offset: int, min_one_batch: bool) -> ReadResult:
        """Batches from the one that holds `offset` on, all below `max_offset`, at most `max_bytes`.

        With `min_one_batch` the first batch comes whole even if it is larger. Raises KafkaError(OFFSET_OUT_OF_RANGE),
        WouldBlock when the disk would have to be asked (then `read_cold`), LogDirFailed.
        """
        return self._read(offset, max_bytes, max_offset, min_one_batch, may_block=False)

    async def read_cold(self, offset: int, max_bytes: int, max_offset: int, min_one_batch: bool) -> ReadResult:
        """`read` in a thread, so that the loop does not wait for the disk."""
        loop = asyncio.get_running_loop()
        with pinned(self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]):
            return await loop.run_in_executor(
                None, lambda: self._read(offset, max_bytes, max_offset, min_one_batch, may_block=True)
            )

    def _read(
        self, offset: int, max_bytes: int, max_offset: int, min_one_batch: bool, *, may_block: bool
    ) -> ReadResult:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset >= max_offset:
            return NOTHING
        try:
            for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
                if segment.base_offset >= max_offset:
                    break
                start = segment.position_of(offset, may_block=may_block)
                end = segment.position_of(max_offset, may_block=may_block)
                if start < end:
                    return _read_segment(segment, start, end, max_bytes, min_one_batch, may_block)
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error
        return NOTHING

    def offset_for_timestamp(self, timestamp_ms: int, max_offset: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with at least that timestamp, below `max_offset`."""
        try:
            for segment in self._segments:
                if segment.base_offset >= max_offset:
                    break
                segment.load_indexes()
                newest = segment.max_timestamp
                if segment is not self._segments[-1]:
                    entry = segment.time_index.last()
                    newest = entry[0] if entry else NO_TIMESTAMP
                if newest < timestamp_ms:
                    continue
                found = self._first_since(segment, timestamp_ms)
                if found is not None:
                    return found if found[1] < max_offset else None
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error
        return None

    def _first_since(self, segment: Segment, timestamp_ms: int) -> tuple[int, int, int] | None:
        start = segment.position_of(segment.time_index.offset_before(timestamp_ms), may_block=True)
        for position, header in segment.headers(start):
            if header.max_timestamp < timestamp_ms or header.next_offset <= self.log_start_offset:
                continue
            batch = segment.read(position, header.size_in_bytes, may_block=True)
            for record in decode_records(batch):
                if record.timestamp >= timestamp_ms and record.offset >= self.log_start_offset:
                    return record.timestamp, record.offset, header.partition_leader_epoch
        return None

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp (KIP-734)."""
        newest = max((self._newest_of(segment) for segment in self._segments), default=NO_TIMESTAMP)
        if newest == NO_TIMESTAMP:
            return None
        return self.offset_for_timestamp(newest, self.log_end_offset)

    def _newest_of(self, segment: Segment) -> int:
        if segment is self._segments[-1]:
            return segment.max_timestamp
        segment.load_indexes()
        entry = segment.time_index.last()
        return entry[0] if entry else NO_TIMESTAMP

    # -- cutting --------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drops all records from `offset` on (REP-6). Raises LogDirFailed."""
        if offset >= self.log_end_offset:
            return
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            while len(self._segments) > 1 and self._bases[-1] >= offset:
                self._segments.pop().remove()
                self._bases.pop()
            self._segments[-1].truncate_to(offset)
            self._end_moved_back()
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log goes on at `offset`. Raises LogDirFailed."""
        try:
            for segment in self._segments:
                segment.remove()
            self._segments[:] = [self._new_segment(offset)]
            self._bases[:] = [offset]
            self.leader_epochs.clear()
            self.log_start_offset = offset
            self._end_moved_back()
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error

    def _end_moved_back(self) -> None:
        segment = self._segments[-1]
        self.log_end_offset = max(segment.next_offset, self.log_start_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.leader_epochs.truncate_from_end(self.log_end_offset)

    def increment_log_start(self, offset: int) -> None:
        """Records below `offset` are not served any more; their segments go with the next retention."""
        if offset > self.log_start_offset:
            self.log_start_offset = min(offset, self.log_end_offset)
            self.leader_epochs.truncate_from_start(self.log_start_offset)

    def delete_old_segments(self, high_watermark: int, now_ms: int) -> int:
        """Retention (LOG-1, INV-22). Returns how many segments went; the log start moves with them."""
        if "delete" in self.config.cleanup_policy:
            retention_ms, retention_bytes = self.config.retention_ms, self.config.retention_bytes
        else:
            retention_ms = retention_bytes = -1
        ages = [
            retention.SegmentAge(s.base_offset, following, s.size, newest if newest >= 0 else s.created_ms)
            for s, following in zip(self._segments, [*self._bases[1:], self.log_end_offset], strict=True)
            for newest in (self._newest_of(s),)
        ]
        count = retention.deletable(
            ages,
            high_watermark=high_watermark,
            log_start_offset=self.log_start_offset,
            now_ms=now_ms,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
        )
        if count:
            self.increment_log_start(self._bases[count])
            gone = self._segments[:count]
            del self._segments[:count]
            del self._bases[:count]
            for segment in gone:
                segment.remove()
        return count

    # -- the disk -------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Waits until all that was appended before is on the disk; moves the recovery point there. Raises LogDirFailed."""
        end = self.log_end_offset
        if self.recovery_point >= end or self.is_deleted:
            return
        behind = [s for s in self._segments if s.next_offset > self.recovery_point]
        try:
            with pinned(behind):
                await asyncio.get_running_loop().run_in_executor(None, _sync_all, behind)
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error
        if self.log_end_offset >= end:
            self.recovery_point = max(self.recovery_point, min(end, self.log_end_offset))

    def close(self) -> None:
        """Ends the time index and closes the files."""
        self._segments[-1].close_time_index()
        for segment in self._segments:
            segment.close()

    def mark_deleted(self) -> None:
        """The directory was renamed away: no more writes of checkpoints there."""
        self.is_deleted = True
        for segment in self._segments:
            segment.close()

    def _write_epochs(self) -> None:
        """Not synced: after a power loss the epochs are told by the batches (recovery)."""
        if self.is_deleted:
            return
        try:
            self._filesystem.write_atomically(
                f"{self.directory}/{LEADER_EPOCHS}", encode_epochs(self.leader_epochs.entries), sync=False
            )
        except OSError as error:
            raise LogDirFailed(self.log_dir, error) from error


@contextlib.contextmanager
def pinned(segments: Sequence[Segment]) -> Iterator[None]:
    """Keeps the segments' files open while a thread uses them, even if retention or a truncation drops them meanwhile."""
    for segment in segments:
        segment.pin()
    try:
        yield
    finally:
        for segment in segments:
            segment.unpin()


def _read_segment(
    segment: Segment, start: int, end: int, max_bytes: int, min_one_batch: bool, may_block: bool
) -> ReadResult:
    """Bytes [start, end) of a segment, at most `max_bytes`, but the first batch whole if it is asked for."""
    size = min(end - start, max_bytes)
    if size == end - start:
        data = segment.read(start, size, may_block=may_block)
        return ReadResult((data,), len(data))
    first = parse_header(segment.read(start, 61, may_block=may_block)).size_in_bytes
    if first > size:
        if not min_one_batch:
            return NOTHING
        size = first
    data = segment.read(start, size, may_block=may_block)
    return ReadResult((data,), len(data))


def _sync_all(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.sync()
