"""Compaction of logs with `cleanup.policy=compact`, one at a time, in slices between the broker's other work (LOG-4).

1. The dirtiest log that is due is chosen (`compaction.cleanable`) and flushed, and its recovery point is checkpointed.
   Otherwise recovery would treat the holes that compaction makes as damage.
2. The dirty part is read: the last offset of each key, as far as `log.cleaner.dedupe.buffer.size` reaches.
3. All segments up to there are copied, group by group, without replaced records (`batch_cleaning`). Each new segment is
   synced, then takes the place of its group in one step on the loop (`segment_swap`).
4. `cleaner-offset-checkpoint` records up to which offset the log is clean.

A thread reads, unpacks and writes one slice at a time. After each slice the loop checks the log again. If the log was cut, closed
or deleted, moves to another directory, or has another policy, the cleaning is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.process.clock import Clock
from broker.process.event_log import EventWriter
from broker.settings.config import LONG_MAX, BrokerConfig
from broker.storage.compaction import compaction
from broker.storage.compaction.batch_cleaning import BatchCleaner, LastOfProducer, Transactions, checked, note_keys
from broker.storage.compaction.compaction import Cleanable, OffsetMap, SegmentFacts
from broker.storage.compaction.segment_swap import CLEANED_SUFFIX, remove_cleaned
from broker.storage.disk.disk_threads import CLEANING
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_manager import LogManager
from broker.storage.segment import Segment
from broker.storage.unsynced import in_thread
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import LOG_OVERHEAD, BatchHeader, iter_batches, parse_header
from protocol.types import Buffer

log = logging.getLogger(__name__)

SLICE_BYTES = 64 * 1024
SLICE_RECORDS = 1000
"""Limits of one slice: about a millisecond of work for a thread."""

TIMES_READ_AT_ONCE = 10
"""Segments whose times are read without a pause. One takes a tenth of a millisecond or more: an index and a batch are read."""

EachBatch = Callable[[Buffer, int, BatchHeader], bool]
"""(buffer, position, header) -> False to stop before this batch"""


class CleanerSettings(NamedTuple):
    """The broker's `log.cleaner.*` settings, in bytes, bytes per second and seconds."""

    is_enabled: bool = True
    backoff_s: float = 15.0
    dedupe_bytes: int = 128 * 1024**2
    load_factor: float = 0.9
    max_bytes_per_s: float = float("inf")

    @classmethod
    def of(cls, config: BrokerConfig) -> CleanerSettings:
        return cls(
            config.log_cleaner_enable and config.log_cleaner_threads > 0,
            config.log_cleaner_backoff_ms / 1000,
            config.log_cleaner_dedupe_buffer_size,
            config.log_cleaner_io_buffer_load_factor,
            config.log_cleaner_io_max_bytes_per_second,
        )


class GaveUp(Exception):
    """The log changed meanwhile: the cleaning is discarded."""


class NeedsMarkers(Exception):
    """The log has transactions. Their markers must be read before it is cleaned."""


class LogCleaner:
    """One per broker: `run` as a task."""

    def __init__(
        self,
        manager: LogManager,
        clock: Clock,
        settings: CleanerSettings,
        write_event: EventWriter,
    ) -> None:
        self.settings = settings
        self.manager = manager
        self.clock = clock
        self._write_event = write_event

    async def run(self) -> None:
        """Cleans logs that are due, until cancelled."""
        while True:
            if not (self.settings.is_enabled and await self.clean_next()):
                await asyncio.sleep(self.settings.backoff_s)

    async def clean_next(self) -> bool:
        """Cleans the dirtiest log that is due. False when no log is due, or the cleaning did not succeed."""
        try:
            chosen = await self._choose()
            if chosen is None:
                return False
            return await self._clean(*chosen)
        except LogDirFailed:
            return False

    async def _choose(self) -> tuple[Log, Cleanable] | None:
        """The dirtiest log that is due. Examines all logs, with pauses. Raises LogDirFailed."""
        due: list[tuple[float, Log]] = []
        for found in list(self.manager.logs()):
            await self.manager.upkeep.pause()
            await self._read_times(found)
            if self._may_clean(found):
                work = self._look_at(found)
                if work.is_due(found.config.min_cleanable_dirty_ratio):
                    due.append((work.ratio, found))
        for _, found in sorted(due, key=lambda pair: pair[0], reverse=True):
            # The log may have changed in the pauses.
            if self._may_clean(found) and (work := self._look_at(found)).is_due(found.config.min_cleanable_dirty_ratio):
                return found, work
        return None

    def _may_clean(self, found: Log) -> bool:
        return (
            self.manager.get(found.topic_partition) is found
            and "compact" in found.config.cleanup_policy
            and not found.is_uncleanable
            and self.manager.futures.get(found.topic_partition) is None
        )

    async def _read_times(self, found: Log) -> None:
        """Has each segment of the log know the times that `_look_at` needs, which it may have to read from the disk."""
        at = 0
        while self._may_clean(found) and _needs_times(found) and at < len(found.segments):
            _facts_of(found, found.segments[at : at + TIMES_READ_AT_ONCE])
            at += TIMES_READ_AT_ONCE
            await self.manager.upkeep.pause()

    def _look_at(self, found: Log) -> Cleanable:
        config = found.config
        return compaction.cleanable(
            _facts_of(found, found.segments),
            cleaned_up_to=found.cleaned_up_to,
            log_start_offset=found.log_start_offset,
            log_end_offset=found.log_end_offset,
            stable_offset=self._stable_offset(found),
            min_lag_ms=config.min_compaction_lag_ms,
            max_lag_ms=config.max_compaction_lag_ms,
            now_ms=self.clock.wall_ms(),
        )

    def _stable_offset(self, found: Log) -> int:
        """The log's last stable offset. 0 while the high watermark is unknown."""
        if self.manager.high_watermark_of is None:
            return 0
        return found.last_stable_offset(self.manager.high_watermark_of(found.topic_partition))

    async def _clean(self, found: Log, work: Cleanable) -> bool:
        try:
            await Cleaning(self, found, work).run()
        except GaveUp as why:
            log.info("the compaction of %s is discarded: %s", found.topic_partition, why)
            return False
        except LogDirFailed:
            raise
        except OSError as error:
            raise found.failed(error) from error
        except KafkaError as error:
            log.error("%s is not compacted any more, because it cannot be read: %s", found.topic_partition, error)
            self._leave_alone(found, error)
            return False
        except Exception as error:
            # The boundary of the task: the content of one log must not stop the cleaning of the others.
            log.exception("%s is not compacted any more", found.topic_partition)
            self._leave_alone(found, error)
            return False
        return True

    def _leave_alone(self, found: Log, error: Exception) -> None:
        found.is_uncleanable = True
        self._write_event("log_uncleanable", topic_partition=str(found.topic_partition), error=str(error))


def _needs_times(found: Log) -> bool:
    return found.config.min_compaction_lag_ms > 0 or found.config.max_compaction_lag_ms < LONG_MAX


def _facts_of(found: Log, segments: Sequence[Segment]) -> list[SegmentFacts]:
    return _facts(segments, found.config.min_compaction_lag_ms, found.config.max_compaction_lag_ms)


def _facts(segments: Sequence[Segment], min_lag_ms: int = 0, max_lag_ms: int = LONG_MAX) -> list[SegmentFacts]:
    """Looks up times only if a lag setting needs them, as this may read the disk."""
    return [
        SegmentFacts(
            segment.base_offset,
            segment.size,
            segment.size // max(segment.index_interval_bytes, 1) + 1,
            segment.first_batch_timestamp() if max_lag_ms < LONG_MAX else compaction.NO_TIMESTAMP,
            segment.newest_timestamp() if min_lag_ms > 0 else compaction.NO_TIMESTAMP,
        )
        for segment in segments
    ]


class Cleaning:
    """One cleaning of one log. Raises GaveUp, KafkaError for a batch that cannot be read, OSError of a thread, LogDirFailed."""

    def __init__(self, cleaner: LogCleaner, cleaned: Log, work: Cleanable) -> None:
        self._manager = cleaner.manager
        self._clock = cleaner.clock
        self._settings = cleaner.settings
        self._log = cleaned
        self._work = work
        self._cuts = cleaned.cuts
        self._sources = [s for s in cleaned.segments[:-1] if s.base_offset < work.first_uncleanable]
        self._map = OffsetMap(self._settings.dedupe_bytes, self._settings.load_factor)
        self._transactions: Transactions | None = None
        self._bytes = 0

    async def run(self) -> None:
        try:
            await self._run()
        except LogDirFailed:
            raise
        except (OSError, KafkaError):
            # The thread works with paths and sizes of before its slice. Those of a log that has changed meanwhile say nothing about the
            # disk, and nothing about the log.
            self._look_again(self._sources)
            raise

    async def _run(self) -> None:
        began = self._clock.monotonic()
        await self._make_safe()
        before = sum(source.size for source in self._sources)
        try:
            await self._read_dirty_part()
            after, dropped = await self._copy()
        except NeedsMarkers:
            self._transactions = await self._read_markers()
            await self._read_dirty_part()
            after, dropped = await self._copy()
        self._look_again(self._sources)
        self._log.cleaned_up_to = self._map.latest_offset + 1
        with self._manager.reporting(self._log.log_dir):
            await self._manager.cleaned.write(self._log.log_dir)
        log.info(
            "%s compacted up to %d: %d records dropped, %d of %d bytes are left, in %.2f s",
            self._log.topic_partition,
            self._log.cleaned_up_to,
            dropped,
            after,
            before,
            self._clock.monotonic() - began,
        )

    async def _make_safe(self) -> None:
        """Step 1: flushes the part to be cleaned, and checkpoints the recovery point and where holes will be."""
        if self._log.recovery_point < self._work.first_uncleanable:
            await self._log.flush()
            self._look_again(self._sources)
        if self._log.recovery_point < self._work.first_uncleanable:
            raise GaveUp("it is not flushed yet")
        await self._manager.checkpoints.write_recovery_points()
        self._look_again(self._sources)
        self._log.holes_up_to = max(self._log.holes_up_to, self._work.first_uncleanable)
        with self._manager.reporting(self._log.log_dir):
            await self._manager.cleaned.write(self._log.log_dir)
        self._look_again(self._sources)

    def _look_again(self, sources: Sequence[Segment]) -> None:
        """Checks that the log can still be cleaned. Call after every await. Raises GaveUp."""
        if self._manager.get(self._log.topic_partition) is not self._log:
            raise GaveUp("it was removed")
        if "compact" not in self._log.config.cleanup_policy:
            raise GaveUp("its cleanup.policy changed")
        if self._manager.futures.get(self._log.topic_partition) is not None:
            # The copy may have a value whose tombstone it has not read yet. If the tombstone is removed now, the copy keeps the
            # value for good (KIP-113).
            raise GaveUp("it moves to another log directory")
        if not self._log.holds(sources, self._cuts):
            raise GaveUp("its segments changed")

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read_dirty_part(self) -> None:
        """Step 2: fills the offset map from the dirty part."""
        first_dirty = self._work.first_dirty
        self._map = OffsetMap(self._settings.dedupe_bytes, self._settings.load_factor)
        is_full = False

        def note(data: Buffer, at: int, header: BatchHeader) -> bool:
            nonlocal is_full
            if header.last_offset < first_dirty:
                return True
            transactions = self._transactions_for(header)
            if header.is_control or (transactions is not None and transactions.is_aborted(header)):
                self._map.reached(header.last_offset)
                return True
            is_full = not note_keys(self._map, data, at, header, first_dirty)
            return not is_full

        bases = [source.base_offset for source in self._sources]
        for source, following in zip(self._sources, [*bases[1:], self._work.first_uncleanable], strict=True):
            if following > first_dirty:
                await self._walk(source, (source,), note)
                if is_full:
                    return
                self._map.reached(following - 1)

    def _transactions_for(self, header: BatchHeader) -> Transactions | None:
        if self._transactions is None and (header.is_transactional or header.is_control):
            raise NeedsMarkers
        return self._transactions

    async def _read_markers(self) -> Transactions:
        """Reads the markers up to the high watermark, as a transaction in the part to clean may end beyond that part.

        The cleaning stops before the segment of a transaction whose marker is missing or not replicated.
        """
        high_watermark_of = self._manager.high_watermark_of
        high_watermark = high_watermark_of(self._log.topic_partition) if high_watermark_of is not None else 0
        found = Transactions()

        def note(data: Buffer, at: int, header: BatchHeader) -> bool:
            if header.next_offset > high_watermark:
                return False
            found.note(data, at, header)
            return True

        following = [s for s in self._log.segments if s.base_offset >= self._work.first_uncleanable]
        for source in [*self._sources, *following]:
            await self._walk(source, (source,), note)
        self._stop_before(found.first_open(self._work.first_uncleanable))
        return found

    def _stop_before(self, offset: int) -> None:
        """Limits the cleaning to whole segments before `offset`. Raises GaveUp when none of them is dirty."""
        bases = [*(source.base_offset for source in self._sources), self._work.first_uncleanable]
        end = max((base for base in bases if base <= offset), default=0)
        self._work = self._work._replace(first_uncleanable=end)
        self._sources = [source for source in self._sources if source.base_offset < end]
        if end <= self._work.first_dirty:
            raise GaveUp("one of its transactions has no replicated marker")

    async def _walk(self, source: Segment, pinned: Sequence[Segment], each: EachBatch) -> None:
        """Calls `each` for the batches of a segment, in a thread, slice by slice."""
        position = 0
        end = source.size  # later appends to the active segment may be half written
        goes_on = True

        def work() -> None:
            nonlocal position, goes_on
            position, goes_on = _slice(source, position, end, each)

        while goes_on and position < end:
            start = position
            await in_thread(pinned, work, CLEANING)
            self._look_again(self._sources)
            self._bytes += position - start
            await self._throttle(position - start)

    async def _throttle(self, size: int) -> None:
        pause = size / self._settings.max_bytes_per_s if self._settings.max_bytes_per_s > 0 else 0
        if pause > 1e-6:
            await asyncio.sleep(pause)
            self._look_again(self._sources)

    # -- copying --------------------------------------------------------------------------------------------------

    async def _copy(self) -> tuple[int, int]:
        """Step 3: copies the segments. Returns the bytes that are left, and the number of records dropped."""
        read_up_to = self._map.latest_offset + 1
        # A copy costs little, and the thread looks up those that it needs: a walk over 50,000 producers takes 50 ms.
        producers = self._log.producers.state.freeze().producers

        def last_of(producer_id: int) -> LastOfProducer | None:
            entry = producers.get(producer_id)
            if entry is None:
                return None
            return LastOfProducer(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)

        batches = BatchCleaner(
            self._map,
            self._transactions or Transactions(),
            last_of,
            now_ms=self._clock.wall_ms(),
            delete_retention_ms=self._log.config.delete_retention_ms,
        )
        sources = [source for source in self._sources if source.base_offset < read_up_to]
        following = self._sources[len(sources) : len(sources) + 1]
        runs = compaction.grouped(
            _facts(sources),
            # The last segment is copied as a whole, even if the map does not have all its keys.
            end_offset=following[0].base_offset if following else self._work.first_uncleanable,
            segment_bytes=self._log.config.segment_bytes,
            index_bytes=self._log.config.segment_index_bytes,
        )
        left = 0
        for first, end in runs:
            left += await self._copy_group(sources[first:end], batches)
        return left, batches.records_dropped

    async def _copy_group(self, group: Sequence[Segment], batches: BatchCleaner) -> int:
        """Makes one new segment of a group, and swaps it in. Returns its size."""
        directory, base = self._log.directory, group[0].base_offset
        target: Segment | None = None

        def create() -> None:
            nonlocal target
            remove_cleaned(self._log.files, directory, base)
            target = Segment(
                self._log.files,
                directory,
                base,
                index_interval_bytes=self._log.config.index_interval_bytes,
                created_ms=group[-1].created_ms,
                suffix=CLEANED_SUFFIX,
                is_new=True,
            )
            target.rebuild_indexes()

        is_in_place = False
        try:
            await in_thread((), create, CLEANING)
            assert target is not None
            self._look_again(self._sources)
            for source in group:
                await self._copy_segment(source, target, batches)
            await self._finish(target, group)
            self._look_again(group)
            # From here on, these files may be the only copy of the records, even if the swap fails half-way.
            is_in_place = True
            self._log.replace_segments(target, group)
        finally:
            if not is_in_place:
                # By the thread that makes them: the next attempt gives its files the same names.
                await in_thread((), lambda: self._remove_cleaned(directory, base), CLEANING)
                if target is not None:
                    target.close()
        replaced = set(group)
        at = self._sources.index(group[0])
        self._sources = [*self._sources[:at], target, *(s for s in self._sources[at:] if s not in replaced)]
        await in_thread((), lambda: self._log.files.sync_directory(directory), CLEANING)
        self._look_again(self._sources)
        return target.size

    def _remove_cleaned(self, directory: str, base_offset: int) -> None:
        try:
            remove_cleaned(self._log.files.disk, directory, base_offset)
        except OSError as error:
            log.warning("files of a cleaning stay until the next one, or the next start: %s", error)

    async def _copy_segment(self, source: Segment, target: Segment, batches: BatchCleaner) -> None:
        parts: list[Buffer] = []
        headers: list[BatchHeader] = []

        def copy(data: Buffer, at: int, header: BatchHeader) -> bool:
            self._transactions_for(header)
            kept = batches.cleaned(data, at, header)
            if kept is not None:
                parts.append(kept)
                headers.append(parse_header(kept))
            return True

        position = 0

        def work() -> None:
            nonlocal position
            position, _ = _slice(source, position, source.size, copy)
            if parts:
                target.append((b"".join(parts),), headers)
                parts.clear()
                headers.clear()

        while position < source.size:
            start, size = position, target.size
            await in_thread((source, target), work, CLEANING)
            self._look_again(self._sources)
            await self._throttle(position - start + target.size - size)

    async def _finish(self, target: Segment, group: Sequence[Segment]) -> None:
        """Completes and syncs the new segment before it is swapped in."""
        directory = self._log.directory
        still_aborted = self._transactions.still_aborted if self._transactions is not None else ()

        def sync() -> None:
            for source in group:
                for entry in source.stored_aborted():
                    if entry.last_offset in still_aborted:
                        target.note_aborted(entry)
            target.seal()
            target.write_out_unsynced()
            target.take_unsynced()
            target.sync()
            for index in target.indexes:
                self._log.files.sync_path(index.path)
            self._log.files.sync_directory(directory)

        await in_thread((target,), sync, CLEANING)


def _slice(source: Segment, position: int, end_position: int, each: EachBatch) -> tuple[int, bool]:
    """Calls `each` for some batches of [position, end_position). Returns the next slice's position, and False if `each` stopped.

    For a thread. Raises KafkaError(CORRUPT_MESSAGE) for bytes that are not a batch.
    """
    left = end_position - position
    data = source.read(position, min(SLICE_BYTES, left), may_block=True)
    if len(data) >= LOG_OVERHEAD:
        first = int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
        if len(data) < first <= left:
            data = source.read(position, first, may_block=True)
    records = 0
    end = 0
    for at, header in iter_batches(data):
        if not each(data, at, checked(data, at, header)):
            return position, False
        end = at + header.size_in_bytes
        records += header.record_count
        if records >= SLICE_RECORDS:
            break
    if end == 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{source.path}: no batch at position {position}")
    return position + end, True
