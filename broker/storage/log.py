"""One partition's log on disk: segments, log start and end, leader epochs (LOG-1..3).

Most methods work on the page cache; `flush` and `read_cold` wait for the disk in a thread. LEO is the log end offset. The
high watermark belongs to the partition, which passes it as an argument.

After a power loss the disk has everything below the recovery point (INV-21). `flush` syncs segments, indexes, leader epochs and
directory entries, and then advances the recovery point. A truncation moves it back.

`claimable_end` is how far this replica may claim to have the records: to producers, to its leader, and in the high watermark. It is
the LEO. An append that makes `flush.messages` records unflushed stops it at the LEO before, and the log then *owes* a flush, which
is started at once. It moves on when that flush is done (Kafka flushes within the append). Appends meanwhile are not claimed either:
the next flush syncs them together.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from struct import Struct
from typing import Final

from broker.settings.config import TopicConfig
from broker.storage import closed_logs, timestamps
from broker.storage.aborted_transactions import AbortedIndex, AbortedTransaction
from broker.storage.checkpoints import LEADER_EPOCHS, encode_epochs
from broker.storage.closed_logs import ClosedLog, ClosedSegment
from broker.storage.compaction import segment_swap
from broker.storage.disk.disk_threads import READS
from broker.storage.disk.filesystem import HeldDirectory
from broker.storage.failures import LogDirFailed, LogUnavailable, failure_of, is_passing
from broker.storage.listeners import LogListener
from broker.storage.log_types import NOTHING, PARTITION_METADATA, AppendInfo, AppendOrigin, LogParts, ReadResult
from broker.storage.producers import produced_batches, producer_snapshots
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance, PlainBatch
from broker.storage.retention import deletable_segments, must_roll
from broker.storage.segment import NO_TIMESTAMP, Segment, WouldBlock
from broker.storage.sparse_index import RELATIVE_OFFSET_MAX
from broker.storage.stored_records import StoredRecords
from broker.storage.unsynced import Unsynced, in_thread
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.control_records import Marker, marker_in, parse_marker
from protocol.kafka.record_batch import (
    CONTROL_BIT,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_is_valid,
    iter_batches,
    patch,
    set_log_append_time,
    validate_produced,
)
from protocol.types import Buffer, TopicPartition

log = logging.getLogger(__name__)

WARM_TRIES: Final = 6
"""Attempts of a cold read. After each, a thread reads the missing bytes (of an index or the log) into the page cache. If all
fail, the loop waits for the disk."""
LISTS_READ_AT_ONCE: Final = 64
"""Segments whose lists of aborted transactions a thread reads together: with one at a time, WARM_TRIES would not suffice."""
SEGMENTS_SYNCED_AT_ONCE: Final = 16
"""Segments that a flush writes and syncs together. Each takes a descriptor, and up to a millisecond of the loop if its indexes were made
again: after a start without a recovery point those of all segments are."""
SEGMENTS_CUT_AT_ONCE: Final = 4
"""Segments that a cut drops without a pause. One takes a millisecond or more: its files are renamed."""
BASE_OFFSET_MAX: Final = 2**63 - 1 - 2**31
"""Largest base offset of a fetched batch. With any last offset delta, the offset after the batch fits in 64 bits."""
ASSIGNED: Final = Struct(">qii")
"""Base offset, length and leader epoch: the bytes of a producer's batch that the leader replaces."""
_UNCOVERED: Final = Struct(">qiibI")
"""What the CRC of a batch does not cover: base offset, length, leader epoch, magic and the CRC."""

__all__ = [
    "AppendInfo",
    "Log",
    "LogDirFailed",
    "LogUnavailable",
    "ReadResult",
    "WouldBlock",
    "failure_of",
    "is_passing",
]


class Log:
    """One replica's log. Made by the LogManager, which listens to it."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_dir: str,
        directory: str,
        config: TopicConfig,
        wall_ms: Callable[[], int],
        parts: LogParts,
        listener: LogListener,
    ) -> None:
        self._listener = listener
        self.topic_partition = topic_partition
        self.log_dir = log_dir
        self.directory = directory
        self.config = config
        self.overrides: Mapping[str, str] = {}
        self._sealed_bytes = 0
        self.topic_id = parts.topic_id
        self.log_start_offset = parts.log_start_offset
        self.log_end_offset = parts.segments[-1].next_offset
        self.recovery_point = min(parts.recovery_point, self.log_end_offset)
        self.claimable_end = self.log_end_offset
        self.owes_flush = False
        self._owed_end = 0
        """Up to where the records must be synced before no flush is owed any more."""
        self.leader_epochs = parts.epochs
        self.leader_epochs.on_cut = self._epochs_cut
        self.producers = parts.producers
        self.files = parts.files
        self.files.on_error = self.failed
        self.producers.discard = self.discard
        self._wall_ms = wall_ms
        self._segments = parts.segments
        self._bases = [segment.base_offset for segment in parts.segments]
        self._names_are_synced = parts.is_synced
        self._has_aborted = any(segment.aborted is not None for segment in parts.segments)
        self._failure: OSError | None = None
        self._is_half_done = False
        self._is_closed = False
        self._flush_lock = asyncio.Lock()
        self.cuts = 0
        self.cleaned_up_to = 0
        self.holes_up_to = 0
        """Compaction made the holes below this offset: all of the log below it was on the disk once. See `CleanerCheckpoint`."""
        self.is_deleted = False
        self.is_uncleanable = False
        """It cannot be read by the log cleaner, which leaves it alone from then on."""
        self.is_point_behind = False

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first. The last is the active segment."""
        return self._segments

    @property
    def is_in_use(self) -> bool:
        """The active segment was read or written since open files were last checked (`OpenFiles`)."""
        return self._segments[-1].is_used

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def appended_bytes(self) -> int:
        """Grows by the size of each append, and by nothing else until the log is cut. Only differences mean something."""
        return self._sealed_bytes + self._segments[-1].size

    # -- appending ------------------------------------------------------------------------------------------------

    def accepting(
        self, records: Buffer, allowance: Allowance, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> produced_batches.Steps:
        """The checks and changes of `append_as_leader`, in steps. The result is valid only for the current `config`."""
        header = validate_produced(
            records,
            max_message_bytes=self.config.max_message_bytes,
            is_of_client=origin is AppendOrigin.CLIENT,
        )[0][1]
        return produced_batches.accepting(records, header, self.config, self._wall_ms, allowance)

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        allowance: Allowance | None = None,
        accepted: AcceptedBefore | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Validates a batch of a client or a coordinator, assigns its offsets and leader epoch, and appends it.

        A duplicate returns the offsets of the batch in the log, and `size_bytes` 0. `accepted` is the result of `accepting`, if
        the caller ran it. Raises KafkaError for an invalid batch (nothing is written), LogDirFailed for the disk, and
        TakesLong when the caller must run `accepting` first, with the log's current config.
        """
        config = self.config
        is_of_client = origin is AppendOrigin.CLIENT
        if accepted is None or accepted.config is not config:
            header = validate_produced(records, max_message_bytes=config.max_message_bytes, is_of_client=is_of_client)[
                0
            ][1]
            records, header = produced_batches.accept(records, header, config, self._wall_ms, allowance)
        else:
            records, header = accepted.batch
        size = len(records)
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes is larger than segment.bytes={config.segment_bytes}",
            )
        markers: dict[int, Marker] | None = None
        if header.producer_id >= 0:
            if not is_of_client:
                markers = self._check_coordinated(records, header, origin)
            elif (known := self.producers.check(header)) is not None:
                self._check_usable()
                return AppendInfo(*known, self.log_start_offset, known.timestamp, 0)
        first_offset = self.log_end_offset
        # `_replace` takes twice as long as `_make`.
        header = BatchHeader._make((first_offset, header.batch_length, leader_epoch, *header[3:]))
        append_time = -1
        if config.message_timestamp_type == "LogAppendTime":
            append_time = self._wall_ms()
            whole = bytearray(records)
            set_log_append_time(whole, 0, append_time)
            header = header._replace(max_timestamp=append_time)
            patch(whole, 0, first_offset, leader_epoch)
            parts: tuple[Buffer, ...] = (whole,)
        else:
            # The record bytes go from the network buffer to the file: only the first 16 bytes are new.
            head = ASSIGNED.pack(first_offset, header.batch_length, leader_epoch)
            parts = (head, memoryview(records)[ASSIGNED.size :])
        self._write(parts, (header,), size, markers, is_epoch_raised=origin is AppendOrigin.RAISED_EPOCH)
        if leader_epoch > self.leader_epochs.latest_epoch():
            self.leader_epochs.assign(leader_epoch, first_offset)
        return AppendInfo(
            first_offset, header.last_offset, append_time, self.log_start_offset, header.max_timestamp, size
        )

    def append_plain(self, batches: Sequence[PlainBatch], leader_epoch: int) -> Sequence[int]:
        """Appends batches that `produced_batches.plain` has accepted for the current config, with one write.

        Returns the base offsets of those that are appended, the first ones. The next one, if any, needs `append_as_leader`: it is a
        duplicate or out of order, for example. Raises KafkaError and LogDirFailed for the disk, and then nothing is appended.
        """
        first_offset = offset = self.log_end_offset
        size_max = self.config.segment_bytes
        size = 0
        offsets: list[int] = []
        parts: list[Buffer] = []
        last_timestamp = NO_TIMESTAMP
        following: dict[int, tuple[int, int]] = {}
        state = self.producers.state
        for body, crc, delta, newest, producer in batches:
            length = len(body) + CRC_START - LOG_OVERHEAD
            size_after = size + length + LOG_OVERHEAD
            if size_after > size_max:
                break
            if producer is not None:
                producer_id, epoch, sequence = producer
                expected = following.get(producer_id)
                if not state.continues(producer) if expected is None else expected != (epoch, sequence):
                    break
                following[producer_id] = (epoch, sequence + delta + 1)
            # The record bytes go from the network buffer to the file: only what the CRC does not cover is new.
            parts.append(_UNCOVERED.pack(offset, length, leader_epoch, MAGIC, crc))
            parts.append(body)
            offsets.append(offset)
            offset += delta + 1
            size = size_after
            last_timestamp = newest
        if offsets:
            segment = self._segment_for(offset - 1, last_timestamp, size)
            segment.append_plain(parts, batches, offsets)
            self.producers.note_plain(batches, offsets, offset)
            self._wrote(segment)
            if leader_epoch > self.leader_epochs.latest_epoch():
                self.leader_epochs.assign(leader_epoch, first_offset)
        return offsets

    def _check_coordinated(
        self, records: Buffer, header: BatchHeader, origin: AppendOrigin
    ) -> dict[int, Marker] | None:
        """The checks of a coordinator's batch. Returns its marker as the argument of `_write`. Raises KafkaError."""
        if not header.is_control:
            self.producers.state.check_coordinated(header, None)
            return None
        marker = parse_marker(records)
        if marker is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a control batch without the marker of a transaction")
        self.producers.state.check_coordinated(header, marker, is_epoch_raised=origin is AppendOrigin.RAISED_EPOCH)
        return {0: marker}

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        """Appends the leader's batches byte for byte, without a partial batch at the end.

        Raises KafkaError(CORRUPT_MESSAGE) for broken bytes, KafkaError(OFFSET_OUT_OF_RANGE) for a batch before the LEO
        (nothing is written in both cases), and LogDirFailed for the disk. If the log is empty and its start is inside the
        first batch (the leader's records were deleted up to there), the log starts with that batch.
        """
        expected = self.log_end_offset
        if expected == self.log_start_offset:
            expected = _start_inside(records, expected)
        headers, end, markers = _check_fetched(records, expected)
        first_offset = headers[0].base_offset if headers else self.log_end_offset
        if headers:
            if first_offset < self.log_end_offset:
                start = self.log_start_offset
                self.truncate_fully_and_start_at(first_offset)
                self.log_start_offset = start
            before = headers[-2].next_offset if len(headers) > 1 else self.log_end_offset
            self._write((records[:end],), headers, end, markers)
            if headers[-1].base_offset > before:
                self._listener.has_hole(self)
            for header in headers:
                if header.partition_leader_epoch > self.leader_epochs.latest_epoch():
                    self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        newest = max((header.max_timestamp for header in headers), default=NO_TIMESTAMP)
        return AppendInfo(first_offset, self.log_end_offset - 1, -1, self.log_start_offset, newest, end)

    def _write(
        self,
        parts: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        size: int,
        markers: Mapping[int, Marker] | None = None,
        *,
        is_epoch_raised: bool = False,
    ) -> None:
        """`markers`, `is_epoch_raised`: as of `LogProducers.note`."""
        if markers is not None:
            self._check_usable()
            self._segments[-1].load_aborted()  # what may fail comes before the write
        segment = self._segment_for(headers[-1].last_offset, headers[-1].max_timestamp, size)
        segment.append(parts, headers)
        for ended in self.producers.note(headers, markers, is_epoch_raised=is_epoch_raised):
            if not ended.is_commit and segment.note_aborted(AbortedTransaction(*ended[:4])):
                self._has_aborted = True
                self._names_are_synced = False
        self._wrote(segment)

    def _segment_for(self, last_offset: int, newest: int, size: int) -> Segment:
        """Where to append batches of `size` bytes, the last of which has that last offset and that largest timestamp (ms)."""
        self._check_usable()
        segment = self._segments[-1]
        if not segment.index.is_loaded:
            segment.prepare_append(size)
        if self.is_point_behind:
            self._checkpoint(self._listener.before_write_after_cut)
        if (segment.size or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX) and must_roll(
            segment, last_offset, newest, size, self.config, self._wall_ms, self.topic_partition
        ):
            # The segment starts at the LEO, even if a hole precedes the first batch. Recovery treats a gap between two
            # segments as damage.
            segment = self._roll(max(self.log_end_offset, last_offset - RELATIVE_OFFSET_MAX))
        return segment

    def _wrote(self, segment: Segment) -> None:
        # Set last: a reader never sees an end that is not written (BUG-19).
        self.log_end_offset = end = segment.next_offset
        if self.owes_flush:
            return
        if end - self.recovery_point < self.config.flush_messages:
            self.claimable_end = end
        else:
            self.owe_flush(self.claimable_end)

    def _check_usable(self) -> None:
        """Raises LogDirFailed after a failure: data that a failed fsync did not write is lost, so nothing is retried (FLT-29).

        Raises KafkaError(NOT_LEADER_OR_FOLLOWER) for a log that was deleted or closed: the caller is late, the disk works.
        """
        if self._failure is not None:
            raise self._reported(failure_of(self.log_dir, self._failure, is_lasting=True))
        if self._is_closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {self.topic_partition} is closed")

    @contextmanager
    def _half_done(self) -> Iterator[None]:
        """An error of the disk inside leaves the work half done, so the log stays unusable even if the error is temporary."""
        self._is_half_done = True
        try:
            yield
        finally:
            self._is_half_done = False

    def failed(self, error: OSError) -> LogDirFailed:
        """Reports the failure, and returns it for the caller to raise. The log is unusable from now on.

        A temporary error (`is_passing`) leaves the log usable, so the caller may retry. `files` calls it for every error of the disk.
        """
        failure = failure_of(self.log_dir, error, is_lasting=self._is_half_done)
        if not is_passing(failure):
            self._failure = error
        return self._reported(failure)

    def _reported(self, failure: LogDirFailed) -> LogDirFailed:
        """Reports the failure to the listener. Afterwards the log is not served any more, and may be closed."""
        self._listener.failed(self, failure)
        return failure

    def _checkpoint(self, write: Callable[[Log], None]) -> None:
        """Has the listener write a checkpoint of the log. Raises LogDirFailed."""
        try:
            write(self)
        except OSError as error:
            raise self.failed(error) from error

    async def _in_thread(
        self,
        segments: Sequence[Segment],
        work: Callable[[], object],
        threads: ThreadPoolExecutor | None = None,
        *,
        directory: HeldDirectory | None = None,
    ) -> None:
        """`unsynced.in_thread`, but raises LogDirFailed in place of OSError."""
        try:
            await in_thread(segments, work, threads, directory=directory)
        except OSError as error:
            raise self.failed(error) from error

    def _roll(self, base_offset: int) -> Segment:
        """Ends the last segment and starts one at `base_offset`. Raises LogDirFailed."""
        sealed = self._segments[-1]
        sealed.seal()
        self.producers.roll(base_offset)
        segment = self._begin_segment(base_offset)
        self._sealed_bytes += sealed.size
        return segment

    def _begin_segment(self, base_offset: int) -> Segment:
        segment = self._new_segment(base_offset)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._listener.rolled(self)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(
            self.files,
            self.directory,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            created_ms=self._wall_ms(),
            is_new=True,
            must_open=self._is_half_done,
        )
        self._names_are_synced = False
        return segment

    # -- reading --------------------------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset up to which all transactions have ended, with replicated markers; at most `high_watermark`, the log's own.

        Kafka's UnifiedLog.fetchLastStableOffsetMetadata.
        """
        state = self.producers.state
        if not (state.ongoing or state.unreplicated):
            return high_watermark
        first = state.first_unstable(high_watermark)
        return high_watermark if first is None else min(high_watermark, max(first, self.log_start_offset))

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_batch: bool,
        with_aborted: bool = False,
        *,
        may_be_stored: bool = False,
    ) -> ReadResult:
        """Batches from the one that holds `offset`, all below `max_offset`, at most `max_bytes`.

        With `min_one_batch` the first batch is returned whole even if it is larger. `with_aborted`: also the aborted transactions that
        have records in them. `may_be_stored`: the caller sends the records at once, so they may be `stored`. Raises
        KafkaError(OFFSET_OUT_OF_RANGE or CORRUPT_MESSAGE), LogDirFailed, and WouldBlock when the data is not in the page cache (then
        call `read_cold`).
        """
        return self._read(offset, max_bytes, max_offset, min_one_batch, with_aborted, may_be_stored, may_block=False)

    async def read_cold(
        self, offset: int, max_bytes: int, max_offset: int, min_one_batch: bool, with_aborted: bool = False
    ) -> ReadResult:
        """`read` after a thread has brought the pages into the page cache, so that the loop does not wait for the disk.

        The thread reads no state of the log; each try afterwards checks everything again (BUG-12).
        """
        for _ in range(WARM_TRIES):
            try:
                return self._read(offset, max_bytes, max_offset, min_one_batch, with_aborted, False, may_block=False)
            except WouldBlock as cold:
                await self._in_thread((cold.segment,), cold.warm, READS)
        return self._read(offset, max_bytes, max_offset, min_one_batch, with_aborted, False, may_block=True)

    def _read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_batch: bool,
        with_aborted: bool,
        may_be_stored: bool,
        *,
        may_block: bool,
    ) -> ReadResult:
        self._check_usable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside of the log: {self.log_start_offset} to {self.log_end_offset}",
            )
        if offset >= max_offset:
            return NOTHING
        segments = self._segments
        for number in range(max(bisect_right(self._bases, offset) - 1, 0), len(segments)):
            segment = segments[number]
            if segment.base_offset >= max_offset:
                break
            start = segment.position_of(offset, may_block=may_block)
            end = segment.position_of(max_offset, may_block=may_block)
            if start < end:
                records: tuple[Buffer, ...] = ()
                stored = None
                size = segment.bytes_to_send(start, end, max_bytes, min_one_batch) if may_be_stored else 0
                if size:
                    stored = StoredRecords(segment, start, size)
                else:
                    data = segment.read_batches(start, end, max_bytes, min_one_batch, may_block=may_block)
                    if not data:
                        return NOTHING
                    records, size = (data,), len(data)
                if with_aborted and self._has_aborted:
                    upper = min(max_offset, segment.offset_bound(start + size))
                    return ReadResult(records, size, self._aborted(segment, offset, upper, may_block), stored)
                return ReadResult(records, size, (), stored)
        return NOTHING

    def _aborted(self, first: Segment, offset: int, upper_offset: int, may_block: bool) -> Sequence[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with records in [offset, upper_offset), which starts in `first`.

        Their markers are in that segment or in later ones (Kafka's LocalLog.collectAbortedTransactions). Raises WouldBlock.
        """
        found: list[tuple[int, int]] = []
        for number in range(bisect_right(self._bases, first.base_offset) - 1, len(self._segments)):
            try:
                if self._segments[number].collect_aborted(offset, upper_offset, found, may_block=may_block):
                    break
            except WouldBlock as cold:
                following = self._segments[number : number + LISTS_READ_AT_ONCE]
                lists = [one.aborted for one in following if one.aborted is not None and not one.aborted.is_prepared]
                raise WouldBlock(cold.segment, partial(_prepare, lists)) from None
        return found

    def offset_for_timestamp(self, timestamp_ms: int, max_offset: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with at least that timestamp; None if it is not below `max_offset`.

        Raises LogDirFailed, and KafkaError(CORRUPT_MESSAGE) for a batch that cannot be unpacked.
        """
        return timestamps.at_once(self.searching(timestamp_ms, max_offset))

    def searching(self, timestamp_ms: int, max_offset: int) -> timestamps.Search:
        """As `offset_for_timestamp`, in steps. The log may change between two steps."""
        offset = 0
        while True:
            offset = max(offset, self.log_start_offset)
            self._check_usable()
            step = timestamps.batch_since(self._segments, self._bases, timestamp_ms, offset)
            if step.batch is None:
                if step.offset < 0:
                    return None
                offset = step.offset
            else:
                found = yield from timestamps.searching(*step.batch, timestamp_ms, offset)
                if found is None:
                    offset = step.batch[1].next_offset
                elif found[1] >= self.log_start_offset:
                    return found if found[1] < max_offset else None
                # Otherwise the log start has moved past the record: the search continues there.
            yield None

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the largest timestamp (KIP-734), None if no record has one."""
        return timestamps.at_once(self.searching_newest())

    def searching_newest(self) -> timestamps.Search:
        """As `max_timestamp_offset`, in steps. Records before the log start do not count, even if their batch is still there."""
        start = self.log_start_offset
        newest = yield from self._newest_since(start)
        if newest == NO_TIMESTAMP:
            return None
        found = yield from self.searching(newest, self.log_end_offset)
        if found is not None:
            return found
        # The record was before the log start, in the batch that holds it.
        first = timestamps.batch_since(self._segments, self._bases, NO_TIMESTAMP, start).batch
        if first is None:
            return None
        newest = yield from timestamps.newest_in(*first, start)
        newest = max(newest, (yield from self._newest_since(first[1].next_offset)))
        return None if newest == NO_TIMESTAMP else (yield from self.searching(newest, self.log_end_offset))

    def _newest_since(self, offset: int) -> Generator[None, None, int]:
        """The largest timestamp of the batches that end at `offset` or later, in steps."""
        newest = NO_TIMESTAMP
        while True:
            self._check_usable()
            time, offset = timestamps.newest_part(self._segments, self._bases, offset)
            newest = max(newest, time)
            if offset < 0:
                return newest
            yield None

    # -- cutting --------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drops the batch that holds `offset` and all later ones (REP-6). Raises LogDirFailed, and KafkaError(CORRUPT_MESSAGE).

        If `offset` is below the first segment, the log becomes empty and continues there.
        """
        if offset >= self.log_end_offset:
            return
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        self._check_usable()
        self.files.check_spare()
        # Before anything is removed: the file may be broken where it is to be cut.
        last = max(bisect_left(self._bases, offset) - 1, 0)
        self._segments[last].prepare_cut(offset)
        with self._half_done():
            drops_segments = last + 1 < len(self._bases)
            if offset < self.recovery_point or (offset == self.recovery_point and drops_segments):
                # Appends go to this segment from now on, even if the cut is at its end, and a power loss may bring the next one back.
                self._lower_recovery_point(self._bases[last])
            # The newest segments are removed first: a crash in between leaves the start of the log, not a log with a hole.
            while len(self._segments) > 1 and self._bases[-1] >= offset:
                self._remove(self._segments.pop())
                self._bases.pop()
            if not self._segments[-1].truncate_to(offset) and self._segments[-1].next_offset < offset:
                # Compaction left a hole before `offset`. The name of an empty segment keeps the LEO, so that the hole's offsets
                # are not assigned again.
                self._segments[-1].seal()
                self._begin_segment(offset)
                self._listener.has_hole(self)
            self._end_moved_back()

    def next_cut(self, offset: int) -> int:
        """Where to cut first on the way to a cut at `offset`, -1: to an empty log. That cut drops SEGMENTS_CUT_AT_ONCE segments.

        When all but a few segments are dropped it is `offset`. After each cut the log is whole, only longer than it should be.
        """
        at = len(self._bases) - SEGMENTS_CUT_AT_ONCE
        return max(offset, self._bases[at]) if at > 0 else offset

    def is_long_cut(self, offset: int) -> bool:
        """Whether a cut at `offset`, -1: of everything, would take long. Then cut at `next_cut` first, and `read_for_cut` before each."""
        return self.next_cut(offset) > offset or (offset >= 0 and self.producers.must_read(self._bases, offset))

    async def read_for_cut(self, offset: int) -> None:
        """Reads what a cut at `offset` would read on the loop, in a thread. The log may change meanwhile. Raises LogDirFailed."""
        if offset < 0 or not self.producers.must_read(self._bases, offset):
            return
        self._check_usable()
        cuts = self.cuts
        reading = self.producers.reading(self._bases[0], offset)
        try:
            await in_thread((), reading.begin, READS)
            while self._is_as_before(cuts) and (segment := reading.next_segment(self._segments)) is not None:
                await in_thread((segment,), partial(reading.read, segment), READS)
        except OSError as error:
            raise self.failed(error) from error
        if self._is_as_before(cuts) and reading.is_complete:
            self.producers.was_read(reading)

    def _is_as_before(self, cuts: int) -> bool:
        """Whether the log still has the records that it had when this was its number of cuts."""
        return not self._is_closed and self._failure is None and self.cuts == cuts

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything; the log continues at `offset`. Raises LogDirFailed."""
        self._check_usable()
        self.files.check_spare()
        with self._half_done():
            if offset < self.log_start_offset:
                # The checkpoints are written before anything is removed. Otherwise the log would continue at its old log start
                # after a crash.
                self.log_start_offset = offset
                self._lower_recovery_point(min(offset, self.recovery_point))
                self._checkpoint(self._listener.before_write_after_cut)
            elif offset < self.recovery_point:
                self._lower_recovery_point(offset)
            for segment in reversed(self._segments):
                self._remove(segment)
            self._segments[:] = [self._new_segment(offset)]
            self._bases[:] = [offset]
            self.leader_epochs.clear()
            self.producers.restart_at(offset)
            self.log_start_offset = offset
            self.claimable_end = max(self.claimable_end, offset)  # nothing is left to be flushed
            self._end_moved_back()

    def _lower_recovery_point(self, offset: int) -> None:
        """Called before a cut: later writes there must not count as synced after a power loss (INV-21, `LoweredPoints`).

        Recovery verifies whole segments, so the caller passes the start of a segment, or of the new log. Between there and the cut, the
        log may have holes.
        """
        if "compact" in self.config.cleanup_policy or self.holes_up_to:
            self.holes_up_to = max(self.holes_up_to, self.recovery_point)
        self.recovery_point = offset
        self.is_point_behind = True
        self._checkpoint(self._listener.point_lowered)

    async def appendable(self) -> None:
        """Waits for the checkpoint that the next append needs after a cut. Without this wait, the append writes it on the loop."""
        if self.is_point_behind:
            await self._listener.until_appendable(self)

    def _end_moved_back(self) -> None:
        self.cuts += 1
        self.log_end_offset = end = self._segments[-1].next_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.recovery_point = min(self.recovery_point, end)
        if self.owes_flush and self.claimable_end < end:
            self._owed_end = min(self._owed_end, end)
        else:
            self.owes_flush = False
            self.claimable_end = end
        self.leader_epochs.truncate_from_end(end)
        self.producers.cut(self._segments, end)
        if self.cleaned_up_to > end or self.holes_up_to > end:
            self.cleaned_up_to = min(self.cleaned_up_to, end)
            self.holes_up_to = min(self.holes_up_to, end)
            self.is_point_behind = True
            self._checkpoint(self._listener.point_lowered)
        self._listener.was_cut(self)

    def _remove(self, segment: Segment) -> None:
        self._names_are_synced = False
        self.discard(segment.remove())

    def discard(self, paths: Sequence[str]) -> None:
        """Removes files through the listener, which may use a thread: unlinking a large file takes long."""
        self._listener.discard(self, paths)

    def unlink(self, paths: Sequence[str]) -> None:
        """Removes files now."""
        for path in paths:
            self.files.remove(path)

    def increment_log_start(self, offset: int) -> None:
        """Records below `offset` are not served any more. The next retention check removes their segments."""
        if offset > self.log_start_offset:
            self.log_start_offset = min(offset, self.log_end_offset)
            self.leader_epochs.truncate_from_start(self.log_start_offset)

    def delete_old_segments(self, high_watermark: int, now_ms: int, at_most: int | None = None) -> int:
        """Applies retention (LOG-1, INV-22): deletes old segments, and advances the log start. Raises LogDirFailed.

        Returns the number of deleted segments, `at_most` the oldest ones: each takes a millisecond or more. The active segment stays, see
        `roll_if_old`.
        """
        self._check_usable()
        count = min(self._deletable(high_watermark, now_ms, at_most), len(self._segments) - 1)
        if count:
            self._drop_oldest(count)
        return count

    def forget_indexes(self, first: int, end: int) -> None:
        """Frees the memory of the indexes of the inactive segments with the numbers [first, end). Raises LogDirFailed."""
        self._check_usable()
        for segment in self._segments[first : min(end, len(self._segments) - 1)]:
            segment.forget_indexes()

    def roll_if_old(self, high_watermark: int, now_ms: int) -> bool:
        """Rolls when retention would delete the log's only segment. Returns True if it rolled. Raises LogDirFailed.

        The caller flushes the log before it deletes the old segment: only the name of the new one keeps the LEO.
        """
        if len(self._segments) > 1:
            return False
        self._check_usable()
        if not self._deletable(high_watermark, now_ms, 1):
            return False
        self._roll(self.log_end_offset)
        return True

    def _deletable(self, high_watermark: int, now_ms: int, at_most: int | None) -> int:
        return deletable_segments(
            self._segments,
            self.config,
            at_most=at_most,
            high_watermark=high_watermark,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            now_ms=now_ms,
        )

    def _drop_oldest(self, count: int) -> None:
        for _ in range(count):
            # A segment is in the log until its log file has another name: else a start would bring it back (FLT-31).
            oldest = self._segments[0]
            removed = oldest.remove_log_file()
            del self._segments[0], self._bases[0]
            self._names_are_synced = False
            self.increment_log_start(self._bases[0])
            with self._half_done():
                self.discard([removed, *oldest.remove()])
        self.producers.drop_before(self._bases[0])

    def holds(self, segments: Sequence[Segment], cuts: int) -> bool:
        """True when these segments are still adjacent and inactive, and the log was not cut since `cuts`."""
        if self._is_closed or self._failure is not None or self.cuts != cuts:
            return False
        at = bisect_right(self._bases, segments[0].base_offset) - 1
        return at >= 0 and self._segments[at : min(at + len(segments), len(self._segments) - 1)] == list(segments)

    def replace_segments(self, cleaned: Segment, sources: Sequence[Segment]) -> None:
        """Replaces `sources`, for which `holds` is true, by the compacted segment. Raises LogDirFailed."""
        self._check_usable()
        at = self._segments.index(sources[0])
        with self._half_done():
            removed = segment_swap.swap_files(cleaned, sources)
        self._segments[at : at + len(sources)] = [cleaned]
        self._bases[at : at + len(sources)] = [cleaned.base_offset]
        self._names_are_synced = False
        self.discard(removed)
        self.producers.drop_strays(self._bases)

    # -- the disk -------------------------------------------------------------------------------------------------

    def owe_flush(self, claimable_end: int) -> None:
        """Everything in the log must be flushed before more than `claimable_end` is claimed. The listener starts the flush."""
        self.claimable_end = min(self.claimable_end, claimable_end)
        self._owed_end = self.log_end_offset
        if not self.owes_flush:
            self.owes_flush = True
            self._listener.flush_is_owed(self)

    def was_configured(self) -> None:
        """`config` has changed, or the log was opened with it. A larger `flush.messages` frees no record from its flush."""
        if self.owes_flush:
            self.owe_flush(self.claimable_end)
        elif self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.owe_flush(self.recovery_point)

    async def flush(self, threads: ThreadPoolExecutor | None = None) -> None:
        """Waits until everything appended so far is on the disk, then advances the recovery point. Raises LogDirFailed.

        In parts, the oldest segments first. The recovery point follows each part.
        """
        async with self._flush_lock:
            end, cuts, synced_up_to = self.log_end_offset, self.cuts, -1
            while synced_up_to < min(end, self.log_end_offset) and not self._is_closed:
                self._check_usable()
                unsynced = self._take_unsynced(synced_up_to)
                try:
                    if unsynced:
                        with self._listener.timed_flush():
                            directory = self.held_directory() if unsynced.is_in_directory else None
                            work = partial(unsynced.sync, self.files.disk, directory)
                            await self._in_thread(unsynced.segments, work, threads, directory=directory)
                except BaseException:
                    self._is_unsynced_again(unsynced)
                    raise
                if self._is_closed:
                    return  # the log was deleted meanwhile
                self._check_usable()
                self.producers.written(unsynced.snapshots)
                synced_up_to = unsynced.end_offset
                # After a cut meanwhile, the records below may not be the ones that were synced.
                if cuts == self.cuts:
                    self.recovery_point = max(self.recovery_point, synced_up_to)
                if self.owes_flush:
                    self._claim_flushed()

    def _claim_flushed(self) -> None:
        unflushed = self.log_end_offset - self.recovery_point
        if self.recovery_point < self._owed_end or unflushed >= self.config.flush_messages:
            self.claimable_end = max(self.claimable_end, self.recovery_point)
        else:
            self.owes_flush = False
            self.claimable_end = self.log_end_offset
        self._listener.may_claim_more(self)

    def without_flushes(self) -> asyncio.Lock:
        """A context in which no flush runs, so the recovery point does not advance."""
        return self._flush_lock

    def _take_unsynced(self, start: int) -> Unsynced:
        """The next part for a flush: the oldest unsynced segments from offset `start` on, and all that is unsynced beside segments."""
        first = max(bisect_right(self._bases, start) - 1, 0)
        unsynced = (segment for segment in islice(self._segments, first, None) if segment.has_unsynced)
        part = list(islice(unsynced, SEGMENTS_SYNCED_AT_ONCE))
        following = next(unsynced, None)
        end = self.log_end_offset if following is None else following.base_offset
        segments: list[Segment] = []
        names: list[str] = []
        log_dir = ""
        for segment in part:
            segment.write_out_unsynced()  # may fail, so it runs before anything is taken
        for segment in part:
            is_unsynced, index_paths = segment.take_unsynced()
            names += [path.rpartition("/")[2] for path in index_paths]
            if is_unsynced:
                segments.append(segment)
        names_changed, snapshots, unwritten = self.producers.take_unsynced()
        names += snapshots
        epochs = self._take_epochs()
        if names_changed or not self._names_are_synced:
            self._names_are_synced = following is None  # the next part may make index files
            names += (LEADER_EPOCHS, PARTITION_METADATA)
            log_dir = self.log_dir
        return Unsynced(segments, names, unwritten, epochs, log_dir, end)

    def _take_epochs(self) -> bytes | None:
        """The content of the file of the leader epochs, None when it is up to date."""
        if not self.leader_epochs.is_changed:
            return None
        self.leader_epochs.is_changed = self._names_are_synced = False
        return encode_epochs(self.leader_epochs.entries)

    def held_directory(self) -> HeldDirectory | None:
        """The log's directory, for a thread; the caller releases it. None: the log is closed, its path may be another's."""
        return None if self._is_closed else self.files.hold(self.directory)

    def epochs_write(self) -> EpochsWriting:
        """Gives the content to write to the file of the leader epochs, or None. No flush runs until the caller leaves the context.

        After an exception in the context, the epochs count as unwritten again.
        """
        return EpochsWriting(self)

    def _epochs_cut(self) -> None:
        self._listener.epochs_cut(self)

    def _is_unsynced_again(self, unsynced: Unsynced) -> None:
        """Undoes `_take_unsynced` after a failed sync: its data may not be on the disk."""
        self._names_are_synced = False
        self.leader_epochs.cut()
        self.producers.all_is_unsynced()
        segments, names = set(unsynced.segments), set(unsynced.names)
        for segment in self._segments:
            segment.is_unsynced |= segment in segments
            for index in segment.indexes:
                index.is_unsynced |= index.path.rpartition("/")[2] in names

    def sync_to_close(self) -> None:
        """The last flush, when nothing else uses the log. Also writes the indexes and a producer snapshot, for a quick start.

        The caller syncs the log directory. Blocks: for a thread. Raises OSError, also if the log failed earlier. Failures are not
        reported to the listener, as the broker stops.
        """
        self.files.on_error = None
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            return
        self._segments[-1].write_indexes()
        self.producers.snapshot()
        synced_up_to = -1
        while synced_up_to < self.log_end_offset:
            unsynced = self._take_unsynced(synced_up_to)
            with ExitStack() as stack:
                for segment in unsynced.segments:
                    segment.pin()
                    stack.callback(segment.unpin)
                directory = self.held_directory() if unsynced.is_in_directory else None
                if directory is not None:
                    stack.callback(directory.release)
                unsynced.sync(self.files.disk, directory, with_log_dir=False)
            self.producers.written(unsynced.snapshots)
            synced_up_to = unsynced.end_offset
        self.recovery_point = self.log_end_offset

    def closed(self) -> ClosedLog | None:
        """What a start needs to open the log without its files. Call it after `sync_to_close`. Blocks: for a thread. Raises OSError.

        None: the log has something that a start must read, or its last flush did not write everything.
        """
        state = self.producers.state
        if (
            self._is_closed
            or self._failure is not None
            or self._has_aborted
            or self.leader_epochs.is_changed
            or not self.recovery_point == self.log_end_offset == state.end_offset
            or len(state.producers) > closed_logs.PRODUCERS_MAX
            or self.directory != f"{self.log_dir}/{self.topic_partition}"
        ):
            return None
        segments = []
        for segment in self._segments:
            stamp = self.files.stamp_of(segment.path)
            if stamp.size != segment.size:
                return None
            segments.append(ClosedSegment(segment.base_offset, stamp.size, stamp.modified_ns))
        producers = producer_snapshots.encode(state) if state.producers else b""
        end = self._segments[-1].end
        return ClosedLog(self.topic_id, self.leader_epochs.entries, segments, end, self.producers.snapshots, producers)

    def close(self) -> None:
        """Closes the files, without a flush."""
        self._is_closed = True
        self.owes_flush = False
        self.files.on_error = None
        for segment in self._segments:
            try:
                segment.close()
            except OSError as error:
                # What counts is a flush that failed. The file is closed all the same.
                log.warning("%s: %s", segment.path, error)

    def moved_to(self, directory: str) -> None:
        """The log's directory was renamed. The next flush syncs the new name."""
        self.directory = self.producers.directory = directory
        self._names_are_synced = False
        self.leader_epochs.cut()
        for segment in self._segments:
            segment.moved_to(directory)

    def mark_deleted(self) -> None:
        """Closes the log, as its directory is renamed. Nothing is written there any more."""
        self.is_deleted = True
        self.cleaned_up_to = self.holes_up_to = 0
        self.close()


def _prepare(lists: Sequence[AbortedIndex]) -> None:
    """Reads lists of aborted transactions. For a thread."""
    for one in lists:
        one.prepare()


def _check_fetched(records: Buffer, expected: int) -> tuple[list[BatchHeader], int, dict[int, Marker] | None]:
    """The checks of a follower before it appends the leader's batches (REP-9).

    Returns (headers, size in bytes, markers as for `_write`) of the whole batches. None of them starts before the offset `expected`.

    Raises KafkaError(CORRUPT_MESSAGE) for broken bytes, KafkaError(OFFSET_OUT_OF_RANGE) for a batch before `expected`.
    """
    headers: list[BatchHeader] = []
    markers: dict[int, Marker] | None = None
    end = 0
    for position, header in iter_batches(records):
        if header.base_offset < expected:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"batch at {header.base_offset}, the log ends at {expected}"
            )
        if (
            header.last_offset_delta < 0
            or header.base_offset > BASE_OFFSET_MAX
            or not crc_is_valid(records, position, header)
        ):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset} is broken")
        if header.attributes & CONTROL_BIT:
            markers = {} if markers is None else markers
            if (marker := marker_in(records, position)) is not None:
                markers[len(headers)] = marker
        headers.append(header)
        expected = header.next_offset
        end = position + header.size_in_bytes
    return headers, end, markers


def _start_inside(records: Buffer, start: int) -> int:
    """Where an empty log starts: at the first batch if it holds `start`, else at `start`."""
    first = next(iter_batches(records), None)
    return first[1].base_offset if first and first[1].base_offset < start <= first[1].last_offset else start


class EpochsWriting:
    """The context of `Log.epochs_write`. (A class, because mypyc compiles no asynchronous generator.)"""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._content: bytes | None = None

    async def __aenter__(self) -> bytes | None:
        log = self._log
        await log._flush_lock.acquire()
        if not log._is_closed and log._failure is None:
            self._content = log._take_epochs()
        return self._content

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._content is not None:
            self._log.leader_epochs.cut()
        self._log._flush_lock.release()
