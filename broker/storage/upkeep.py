"""What the broker does for its logs in the background: flushes, checkpoints, retention, expiry of producers (LOG-1..3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.process.clock import Clock
from broker.settings.config import BrokerConfig
from broker.storage.directories.offset_checkpoints import OffsetCheckpoints
from broker.storage.disk.filesystem import FileSystem
from broker.storage.disk.removals import Removals
from broker.storage.flushing import DueFlushes, EpochFiles, OwedFlushes
from broker.storage.listeners import LogListener
from broker.storage.log import Log, LogDirFailed
from broker.storage.producers.log_producers import ProducerExpiration, to_shrink
from protocol.time_histogram import TimeHistogram
from protocol.types import TopicPartition

TICK_S = 1.0
PRODUCERS_LOOK_S = 10.0
"""Interval of the checks that all logs together do not know too many idempotent producers."""
SYNCED_TO_REST_S = 0.8
"""Time limit in each tick for syncing logs, so that their files can be closed when too many are open."""

SEGMENTS_DELETED_AT_ONCE = 4
"""Old segments of a log that are deleted without a pause. One takes a millisecond or more: its files are renamed."""
INDEXES_FORGOTTEN_AT_ONCE = 20
"""Segments whose indexes are freed without a pause. One takes a tenth of a millisecond if its indexes were made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchedule:
    """Intervals in seconds: `log.retention.check.interval.ms`, `log.flush.offset.checkpoint.interval.ms`, and
    `log.flush.start.offset.checkpoint.interval.ms`. An interval below a tick acts as one tick."""

    retention_s: float = 300.0
    recovery_points_s: float = 60.0
    log_starts_s: float = 60.0

    @classmethod
    def of(cls, config: BrokerConfig) -> LogSchedule:
        return cls(
            retention_s=config.log_retention_check_interval_ms / 1000,
            recovery_points_s=config.log_flush_offset_checkpoint_interval_ms / 1000,
            log_starts_s=config.log_flush_start_offset_checkpoint_interval_ms / 1000,
        )


DEFAULT_SCHEDULE = LogSchedule()


async def _one_turn() -> None:
    await asyncio.sleep(0)


class Logs(Protocol):
    """The LogManager."""

    high_watermark_of: Callable[[TopicPartition], int] | None

    def get(self, tp: TopicPartition) -> Log | None: ...

    def logs(self) -> Iterable[Log]: ...

    def all_logs(self) -> list[Log]: ...

    def log_failed(self, log: Log, failure: LogDirFailed) -> None: ...

    def log_was_cut(self, log: Log) -> None: ...

    def may_claim_more(self, log: Log) -> None: ...


class LogUpkeep(LogListener):
    """Listens to all logs, and does their background work. The log reports a failure itself; a temporary one is retried."""

    def __init__(
        self,
        logs: Logs,
        checkpoints: OffsetCheckpoints,
        filesystem: FileSystem,
        clock: Clock,
        schedule: LogSchedule,
        producer_expiration: ProducerExpiration,
    ) -> None:
        self.producer_expiration = producer_expiration
        self.removals = Removals(filesystem)
        self.pause: Callable[[], Awaitable[None]] = _one_turn
        """Lets other work run, between two pieces of work on a log."""
        self._logs = logs
        self._checkpoints = checkpoints
        self._filesystem = filesystem
        self._clock = clock
        self._schedule = schedule
        self._flushes = DueFlushes()
        self.owed_flushes = OwedFlushes()
        self.flush_times = TimeHistogram()
        """Flushes of logs, with the time until a thread is free."""
        self._epoch_files = EpochFiles()
        now = clock.monotonic()
        self._next_recovery_points = now + schedule.recovery_points_s
        self._next_log_starts = now + schedule.log_starts_s
        self._next_retention = now + schedule.retention_s
        self._next_expiration = now + producer_expiration.check_s
        self._next_producer_count = now + PRODUCERS_LOOK_S

    @contextlib.contextmanager
    def timed_flush(self) -> Iterator[None]:
        began = self._clock.monotonic()
        yield
        now = self._clock.monotonic()
        self.flush_times.add(now - began, now)

    # -- which logs there are -------------------------------------------------------------------------------------

    def opened(self, log: Log) -> None:
        """Starts background work for the log."""
        if log.leader_epochs.is_changed:
            self._epoch_files.cut(log)
        self._flushes.watch(log)

    def configured(self, logs: Iterable[Log]) -> None:
        """The logs' settings have changed."""
        for found in logs:
            self._flushes.watch(found)
            found.was_configured()

    def forget(self, log: Log) -> None:
        """The log no longer belongs to the broker: drops its pending work."""
        self._flushes.forget(log)
        self.owed_flushes.forget(log)
        self._epoch_files.forget(log)
        self._checkpoints.lowered.forget(log)

    # -- what the logs report -------------------------------------------------------------------------------------

    def failed(self, log: Log, failure: LogDirFailed) -> None:
        self._logs.log_failed(log, failure)

    def flush_is_owed(self, log: Log) -> None:
        self.owed_flushes.owed(log)

    def may_claim_more(self, log: Log) -> None:
        self._logs.may_claim_more(log)

    def rolled(self, log: Log) -> None:
        self._flushes.rolled(log)

    def has_hole(self, log: Log) -> None:
        """Recovery accepts what follows the hole only below the recovery point, so the log must be flushed soon."""
        self._flushes.rolled(log)
        self._checkpoints.are_behind = True

    def was_cut(self, log: Log) -> None:
        """The recovery point in the checkpoint may be beyond the LEO now, where later records will not be synced."""
        self._checkpoints.are_behind = True
        self._logs.log_was_cut(log)

    def point_lowered(self, log: Log) -> None:
        self._checkpoints.lowered.lowered(log)

    def before_write_after_cut(self, log: Log) -> None:
        self._checkpoints.lowered.needed(log)

    async def until_appendable(self, log: Log) -> None:
        await self._checkpoints.lowered.settled(log)

    def epochs_cut(self, log: Log) -> None:
        self._epoch_files.cut(log)

    def discard(self, log: Log, paths: Sequence[str]) -> None:
        self.removals.begin_files(paths)

    # -- background work ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Does what is due in each tick, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """Does what is due now. A disk that fails ends its duty, and is reported."""
        self._filesystem.in_use.tick()
        self._filesystem.spare.fill()
        self.removals.retry()
        for duty in (
            self._files_due,
            self._flush_due,
            self._epochs_due,
            self._checkpoint_due,
            self._retention_due,
            self._expiration_due,
        ):
            with contextlib.suppress(LogDirFailed):
                await duty(self._clock.monotonic())

    async def finished(self) -> None:
        """Waits for the removals, flushes and writes that threads are doing."""
        await self.owed_flushes.close()
        await self.removals.wait()
        await self._checkpoints.lowered.done()
        await self._epoch_files.done()

    def retention_is_due(self) -> None:
        """Makes the next tick check retention."""
        self._next_retention = self._clock.monotonic()

    async def _checkpoint_due(self, now: float) -> None:
        if now >= self._next_recovery_points or self._checkpoints.are_behind:
            self._next_recovery_points = now + self._schedule.recovery_points_s
            self._checkpoints.are_behind = False
            await self._checkpoints.write_recovery_points()
        if now >= self._next_log_starts:
            self._next_log_starts = now + self._schedule.log_starts_s
            await self._checkpoints.write_log_starts()

    async def _retention_due(self, now: float) -> None:
        if now >= self._next_retention:
            self._next_retention = now + self._schedule.retention_s
            for tp in [found.topic_partition for found in self._logs.logs()]:
                with contextlib.suppress(LogDirFailed):
                    await self._delete_old_segments_of(tp)

    async def _expiration_due(self, now: float) -> None:
        if now >= self._next_producer_count:
            self._next_producer_count = now + PRODUCERS_LOOK_S
            for producers, count in to_shrink([found.producers for found in self._logs.logs()]):
                producers.shrink(count)
                await asyncio.sleep(0)
        if now >= self._next_expiration:
            self._next_expiration = now + self.producer_expiration.check_s
            for found in list(self._logs.logs()):
                found.producers.expire(self._clock.wall_ms(), self.producer_expiration.after_ms)
                await asyncio.sleep(0)

    async def _files_due(self, now: float) -> None:
        """If too many files are open, syncs some unsynced logs and closes their files. Unused logs come first."""
        in_use = self._filesystem.in_use
        if not (in_use.are_far_too_many or self._filesystem.spare.are_missing):
            return
        unsynced = [found for found in self._logs.all_logs() if any(segment.is_unsynced for segment in found.segments)]
        unsynced.sort(key=lambda found: found.is_in_use)
        for found in unsynced:
            if self._clock.monotonic() - now > SYNCED_TO_REST_S or len(in_use) <= in_use.share // 2:
                return
            try:
                await found.flush()
            except LogDirFailed:
                continue
            await asyncio.sleep(0)  # the flush unpins the files
            for segment in found.segments:
                if segment.can_rest:
                    segment.rest()

    async def _flush_due(self, now: float) -> None:
        await self.owed_flushes.tick()
        await self._flushes.flush(now)

    async def _epochs_due(self, now: float) -> None:
        await self._epoch_files.write_some()

    async def delete_old_segments(self) -> None:
        """Applies retention to every log, never past the high watermark (INV-22). Raises LogDirFailed."""
        for tp in [found.topic_partition for found in self._logs.logs()]:
            await self._delete_old_segments_of(tp)

    async def _delete_old_segments_of(self, tp: TopicPartition) -> None:
        """In pieces. In each pause the log may be deleted, cut or replaced: the next piece looks at the log that there is then."""
        await self._delete_pieces(tp)
        found = self._logs.get(tp)
        if found is None or self._logs.high_watermark_of is None:
            return
        if found.roll_if_old(self._logs.high_watermark_of(tp), self._clock.wall_ms()):
            end = found.log_end_offset
            await found.flush()
            if self._logs.get(tp) is found and found.recovery_point >= end:
                await self._delete_pieces(tp)
        await self._forget_indexes_of(tp)

    async def _delete_pieces(self, tp: TopicPartition) -> None:
        while (found := self._logs.get(tp)) is not None and self._logs.high_watermark_of is not None:
            high_watermark = self._logs.high_watermark_of(tp)
            count = found.delete_old_segments(high_watermark, self._clock.wall_ms(), SEGMENTS_DELETED_AT_ONCE)
            await self.pause()
            if count < SEGMENTS_DELETED_AT_ONCE:
                return

    async def _forget_indexes_of(self, tp: TopicPartition) -> None:
        first = 0
        while (found := self._logs.get(tp)) is not None and first < len(found.segments) - 1:
            found.forget_indexes(first, first + INDEXES_FORGOTTEN_AT_ONCE)
            first += INDEXES_FORGOTTEN_AT_ONCE
            await self.pause()
