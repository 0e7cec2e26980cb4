"""All logs of a broker: opening, making, deleting, retention, flushing, checkpoints (LOG-1..3, LOG-6).

Log directories are independent: one that fails takes its own logs with it, and the `DirectoryListener` hears of it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.process.clock import Clock
from broker.settings.config import TopicConfig
from broker.storage import checkpoints, disk_history, future_logs, log_opening, recovery, topic_ids
from broker.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from broker.storage.disk.filesystem import FileSystem
from broker.storage.due_flushes import DueFlushes
from broker.storage.epoch_files import EpochFiles
from broker.storage.future_logs import FutureLogs
from broker.storage.log import Log, LogDirFailed, LogUnavailable, failure_of
from broker.storage.log_configs import LogConfigs
from broker.storage.log_directory import (
    DELETED_SUFFIX,
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    LogDirectoryError,
    path_of,
    path_of_renamed,
)
from broker.storage.log_schedule import DEFAULT_SCHEDULE, LogSchedule
from broker.storage.log_types import DirectoryListener, LogListener, LogParts
from broker.storage.lowered_points import LoweredPoints
from broker.storage.offset_checkpoints import OffsetCheckpoints, log_starts, recovery_points
from broker.storage.producers.log_producers import DEFAULT_EXPIRATION, ProducerExpiration, to_shrink
from broker.storage.removals import Removals
from broker.storage.unavailable_logs import UnavailableLogs
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

TICK_S = 1.0
PRODUCERS_LOOK_S = 10.0
"""Between two looks at how many idempotent producers all logs know."""
SYNCED_TO_REST_S = 0.8
"""Seconds of each second for syncing logs whose files are to be closed, while there are too many open files."""
LOGS_IN_A_PIECE = 64
"""What a thread takes at one time when the broker stops."""


class LogManager(LogListener):
    """Owns every Log; one per broker. `start` first, `run` as a task, `shutdown` last."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        topic_defaults: TopicConfig,
        filesystem: FileSystem,
        clock: Clock,
        *,
        schedule: LogSchedule = DEFAULT_SCHEDULE,
        producer_expiration: ProducerExpiration = DEFAULT_EXPIRATION,
    ) -> None:
        self.is_loading = False
        """A thread opens logs. It still does when `start` was cancelled."""
        self.high_watermark_of: Callable[[TopicPartition], int] | None = None
        self._server = DirectoryListener()
        self._directories = [LogDirectory(filesystem, path) for path in log_dirs]
        self._configs = LogConfigs(topic_defaults)
        self._filesystem = filesystem
        self._clock = clock
        self._schedule = schedule
        self.futures = FutureLogs(filesystem)
        self.disks_since = disk_history.ALWAYS
        """The broker epoch since when all disks have been there: a replica that is older may have had its log on another one."""
        self._logs: dict[TopicPartition, Log] = {}
        self.cleaned = CleanerCheckpoint(self._directories, self._logs.values)
        self._offline: dict[TopicPartition, str] = {}
        # Logs of each directory, None: to be counted again. A count over ten thousand logs for each new one is too much.
        self._counts: Counter[str] | None = None
        self._flushes = DueFlushes()
        self._epoch_files = EpochFiles(filesystem)
        self._checkpoints = OffsetCheckpoints(self._directories)
        self._points_are_behind = False
        self._lowered = LoweredPoints(self._write_points, self._write_points_now, self.report)
        self._removals = Removals(filesystem)
        self._unavailable = UnavailableLogs(clock.monotonic)
        now = clock.monotonic()
        self._next_recovery_points = now + schedule.recovery_points_s
        self._next_log_starts = now + schedule.log_starts_s
        self._next_retention = now + schedule.retention_s
        self.producer_expiration = producer_expiration
        self._next_expiration = now + producer_expiration.check_s
        self._next_producer_count = now + PRODUCERS_LOOK_S

    def serve(self, server: DirectoryListener, high_watermark_of: Callable[[TopicPartition], int]) -> None:
        """Who serves the logs from now on. Not in the constructor: the server needs this LogManager in its own."""
        self._server = server
        self.high_watermark_of = high_watermark_of

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the directories' locks and opens all logs, in threads. Raises LogDirectoryError when none can be used.

        When it raises, everything is given back; only directories whose logs were all opened are closed cleanly.
        """
        self.is_loading = True
        try:
            loop = asyncio.get_running_loop()
            failures = await loop.run_in_executor(None, log_opening.acquire_all, self._filesystem, self._directories)
            failures += [reason for directory in self._online() if (reason := await self._load(directory))]
            self._filesystem.in_use.belong_to_this_thread()
            self._align_futures()
            if not self._online():
                reasons = "; ".join(failures)
                raise LogDirectoryError(
                    f"no log directory can be used: {reasons}: set log.dirs to one that can be written"
                )
        except Exception:
            self.is_loading = False
            await self.shutdown()
            raise
        self.is_loading = False

    async def _load(self, directory: LogDirectory) -> str | None:
        """Opens all logs of a directory; returns why not when the disk refuses. Raises LogDirectoryError."""
        began = self._clock.monotonic()
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self._open_all, directory)
        except OSError as error:
            return log_opening.cannot_be_used(directory, error)
        for opened in found:
            tp = opened.topic_partition
            is_future = opened.directory.endswith(FUTURE_SUFFIX)
            known = self.futures.get(tp) if is_future else self._logs.get(tp)
            if known is not None:
                for one in found:
                    one.close()
                paths = f"{known.directory} and {opened.directory}"
                raise LogDirectoryError(f"{tp} is in {paths}: move one of them away by hand")
            if is_future:
                self.futures.add(opened)
            else:
                self._logs[tp] = opened
        directory.is_loaded = True
        log.info(
            "%d logs of %s opened in %.2f s, after %s stop",
            len(found),
            directory.path,
            self._clock.monotonic() - began,
            "a clean" if directory.was_clean else "no clean",
        )
        return None

    def _align_futures(self) -> None:
        """After a crash a log and its copy may have lost different things."""
        for current in list(self._logs.values()):
            with contextlib.suppress(LogDirFailed):
                self.futures.align(current)

    def _open_all(self, directory: LogDirectory) -> list[Log]:
        opened, forgotten = log_opening.open_all(
            self._filesystem,
            directory,
            lambda d, tp, path, *offsets: self._open(d, tp, path, self._configs.defaults, *offsets),
            keeps_deleted=bool(self.offline_dirs),
        )
        self.cleaned.restore(directory, opened)
        self._checkpoints.forgotten |= forgotten
        return opened

    def _open(
        self,
        directory: LogDirectory,
        tp: TopicPartition,
        path: str,
        config: TopicConfig,
        point: int,
        start: int,
        cleaned: int,
    ) -> Log:
        parts = recovery.open_log(
            self._filesystem,
            path,
            config,
            was_clean=directory.was_clean,
            recovery_point=point,
            log_start_offset=start,
            wall_ms=self._clock.wall_ms,
            cleaned_up_to=cleaned,
        )
        return self._new_log(directory, tp, path, config, parts)

    def _new_log(
        self, directory: LogDirectory, tp: TopicPartition, path: str, config: TopicConfig, parts: LogParts
    ) -> Log:
        opened = Log(tp, directory.path, path, config, self._filesystem, self._clock.wall_ms, parts, self)
        if opened.leader_epochs.is_changed:
            self._epoch_files.changed(opened)
        self._flushes.watch(opened)
        return opened

    def _let_go(self, found: Log) -> None:
        """It is not one of the broker's logs any more: nobody has anything left to do for it."""
        self._flushes.forget(found)
        self._epoch_files.forget(found)
        self._lowered.forget(found)
        self._counts = None

    # -- what the logs report -------------------------------------------------------------------------------------

    def failed(self, log: Log, failure: LogDirFailed) -> None:
        is_served = self._logs.get(log.topic_partition) is log
        # A failed directory takes all its replicas with it; only a log that fails alone is named.
        is_alone = is_served and isinstance(failure, LogUnavailable)
        self.report(failure, log.topic_partition if is_alone else None)

    def rolled(self, log: Log) -> None:
        self._flushes.rolled(log)

    def has_hole(self, log: Log) -> None:
        """What follows the hole is believed only below the recovery point."""
        self._flushes.rolled(log)
        self._points_are_behind = True

    def was_cut(self, log: Log) -> None:
        """The checkpointed recovery point may be beyond the log now: what will be written there is not synced."""
        self._points_are_behind = True
        if self._logs.get(log.topic_partition) is log:
            self.futures.follow(log)

    def point_lowered(self, log: Log) -> None:
        self._lowered.lowered(log)

    def before_write_after_cut(self, log: Log) -> None:
        self._lowered.needed(log)

    async def until_appendable(self, log: Log) -> None:
        await self._lowered.settled(log)

    def epochs_changed(self, log: Log) -> None:
        self._epoch_files.changed(log)

    def discard(self, log: Log, paths: Sequence[str]) -> None:
        self._removals.begin_files(paths)

    def report(self, failure: LogDirFailed, tp: TopicPartition | None = None) -> None:
        """Every failure comes here once, before it is raised. Only an error of the disk takes its directory offline.

        `tp` is the partition whose log failed alone, or could not be made, removed or replaced: its replica goes offline, unless
        the error passes. While logs are opened nobody serves them: the directory is just left out.
        """
        if self.is_loading:
            self.fail_directory(failure.directory)
            return
        if isinstance(failure, LogUnavailable):
            self._unavailable.tell(failure)
            if tp is not None and not failure.is_passing:
                self._server.replica_failed(tp)
            return
        if failure.directory not in self.offline_dirs:
            log.error("%s", failure)
        self._server.directory_failed(failure.directory, tp)
        self.fail_directory(failure.directory)

    def reported(self, directory: str, error: OSError, tp: TopicPartition | None = None) -> LogDirFailed:
        """Reports what the error means, and returns it for the caller to raise."""
        failure = failure_of(directory, error)
        self.report(failure, tp)
        return failure

    # -- checkpoints of logs that were cut ------------------------------------------------------------------------

    async def _write_points(self, path: str) -> None:
        """Of a directory some of whose logs were cut. Raises OSError."""
        for directory in self._directories:
            if directory.path == path and directory.is_online:
                await self._write_points_of(directory, recovery_points(self._logs_in(directory)))
            elif directory.path == path:
                self._lowered.written(self._lowered.behind(path))

    async def _write_points_of(self, directory: LogDirectory, points: dict[TopicPartition, int]) -> None:
        behind = self._lowered.behind(directory.path)
        if behind:
            await self.cleaned.lower(directory.path)
        # One that was overtaken by a later one is not what the disk has.
        if await self._checkpoints.write(directory, checkpoints.RECOVERY_POINTS, points):
            self._lowered.written(behind)

    def _write_points_now(self, path: str) -> None:
        for directory in self._online():
            if directory.path == path:
                self.cleaned.lower_now(path)
                self._checkpoints.write_points_now(directory, self._logs_in(directory))
                self._lowered.written(self._lowered.behind(path))

    def check_meta(self, broker_id: int, cluster_id: str) -> None:
        """Before anything is promised to anybody. Raises LogDirectoryError for another broker's or cluster's directory."""
        log_opening.of_each(self._directories, lambda d: d.check_meta(broker_id, cluster_id), self.report)

    def ensure_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks or writes every directory's `meta.properties`. Raises LogDirectoryError."""
        log_opening.of_each(self._directories, lambda d: d.ensure_meta(broker_id, cluster_id), self.report)

    def note_disks(self, broker_epoch: int) -> None:
        """Notes in every directory since when its disk has been there, for `disks_since`. Before `ensure_meta`."""
        histories = disk_history.DiskHistories(self._filesystem, self._directories, self.report)
        self.disks_since = histories.take_up(self._logs.keys(), broker_epoch)

    async def shutdown(self) -> None:
        """Flushes and closes every log, writes the checkpoints and, where all went well, the clean-shutdown marker.

        A directory that this process has not locked, or not loaded completely, stays as it is: another process may use it,
        and a marker there would keep the next start from its recovery (BUG-18). Once more does nothing.
        """
        await self._removals.wait()
        await self._lowered.done()
        await self._epoch_files.done()
        for directory in self._online():
            if not directory.is_loaded:
                continue
            mine = self._logs_in(directory)
            try:
                await _in_pieces(mine, Log.sync_to_close)
                await asyncio.get_running_loop().run_in_executor(None, self._filesystem.sync_directory, directory.path)
                await self._checkpoints.write(directory, checkpoints.RECOVERY_POINTS, recovery_points(mine))
                await self._checkpoints.write(directory, checkpoints.LOG_STARTS, log_starts(mine))
                await asyncio.get_running_loop().run_in_executor(None, directory.write_clean_marker)
            except OSError as error:
                log.error("log directory %s was not closed cleanly: %s", directory.path, error)
        for found in self._all():
            found.close()
        for directory in self._directories:
            # While a thread still repairs its logs, no other process may have it: the end of this one gives it back.
            if directory.is_loaded or not self.is_loading:
                directory.release()
        self._logs.clear()

    # -- logs -----------------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def is_of(self, tp: TopicPartition, topic_id: str | None) -> bool:
        """Whether the log, if there is one, can be that topic's, though one bit of its id is wrong. Raises LogDirFailed."""
        found = self._logs.get(tp)
        if found is None or topic_id is None:
            return True
        try:
            return topic_ids.is_of(self._filesystem, found, topic_id)
        except OSError as error:
            raise self.reported(found.log_dir, error, tp) from error

    def logs(self) -> Iterable[Log]:
        """Those that are served; copies that are to replace one are `futures.logs()`."""
        return self._logs.values()

    def _all(self) -> list[Log]:
        return [*self._logs.values(), *self.futures.logs()]

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [found for found in self._all() if found.log_dir == directory.path]

    @property
    def directories(self) -> tuple[str, ...]:
        """Paths of all that are configured."""
        return tuple(directory.path for directory in self._directories)

    @property
    def offline_dirs(self) -> tuple[str, ...]:
        """Paths of the directories that failed."""
        return tuple(directory.path for directory in self._directories if not directory.is_online)

    def disk_spaces(self) -> dict[str, tuple[int, int] | None]:
        """Path of each directory -> (bytes of its volume, bytes free), None for one that failed. Blocks: for a thread."""
        return {directory.path: directory.space() if directory.is_online else None for directory in self._directories}

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.is_online]

    def get_or_create(self, tp: TopicPartition, topic_id: str | None, overrides: Mapping[str, str]) -> Log:
        """The log, made in the directory that has the fewest when it is not there. Raises LogDirFailed, and KafkaError for
        a name that no directory can have.

        An id is written to a log that has none, or a damaged one; overrides that are not valid are left out, which is told. A log whose
        directory failed is not made anew: an empty one must not stand for what was acknowledged.
        """
        config, usable = self._configs.of_new(tp.topic, overrides)
        found = self._logs.get(tp)
        if found is None:
            found = self._create(tp, topic_id, config)
        elif topic_id is not None:
            try:
                topic_ids.adopt(self._filesystem, found, topic_id)
            except OSError as error:
                raise self.reported(found.log_dir, error, tp) from error
        found.config, found.overrides = config, usable
        self._flushes.watch(found)
        return found

    def _watch_flushes(self) -> None:
        for found in self._all():
            self._flushes.watch(found)

    def _create(self, tp: TopicPartition, topic_id: str | None, config: TopicConfig) -> Log:
        if tp in self._offline:
            raise self.reported(self._offline[tp], OSError(errno.EIO, "the directory is offline"), tp)
        if tp in self._checkpoints.forgotten:
            self._forget_cleaned(tp)
            self._checkpoints.forget_deleted(self.report)
        directory = self._directory_for_new(tp)
        try:
            created = self._make(directory, tp, "", topic_id, config)
        except OSError as error:
            raise self.reported(directory.path, error, tp) from error
        self._logs[tp] = created
        self.futures.preferred.pop(tp, None)
        self.futures.follow(created)
        return created

    def _forget_cleaned(self, tp: TopicPartition) -> None:
        for directory in self._online():
            try:
                self.cleaned.lower_now(directory.path)
            except OSError as error:
                failure = failure_of(directory.path, error)
                if isinstance(failure, LogUnavailable):
                    self.report(failure, tp)
                    raise failure from error
                self.report(failure)

    def _directory_for_new(self, tp: TopicPartition) -> LogDirectory:
        """Where an admin wanted it, else the one with the fewest logs. Raises LogDirFailed."""
        online = self._online()
        wanted = self.futures.preferred.get(tp)
        if wanted is not None:
            online = [directory for directory in online if directory.path == wanted]
        if not online:
            path = wanted or self._directories[0].path
            raise self.reported(path, OSError(errno.EIO, "the log directory is offline"), tp)
        if len(online) == 1:
            return online[0]
        if self._counts is None:
            self._counts = Counter(existing.log_dir for existing in self._all())
        counts = self._counts
        chosen = min(online, key=lambda directory: counts[directory.path])
        counts[chosen.path] += 1
        return chosen

    def _make(
        self, directory: LogDirectory, tp: TopicPartition, suffix: str, topic_id: str | None, config: TopicConfig
    ) -> Log:
        path = path_of(directory.path, tp, suffix)
        if self._filesystem.make_new_directory(path):
            parts = recovery.new_log(self._filesystem, path, config, topic_id=topic_id, wall_ms=self._clock.wall_ms)
            return self._new_log(directory, tp, path, config, parts)
        if topic_id is not None:
            topic_ids.write(self._filesystem, path, topic_id)
        return self._open(directory, tp, path, config, 0, 0, 0)

    # -- moves between directories: see `future_logs` -------------------------------------------------------------

    def make_future(self, tp: TopicPartition, path: str) -> Log:
        """An empty copy of the log, in the online directory `path`. Raises LogDirFailed."""
        self._counts = None
        current = self._logs[tp]
        (directory,) = [directory for directory in self._online() if directory.path == path]
        try:
            self._checkpoints.forget(directory, (tp,))
            self.cleaned.lower_now(path)
            future = self._make(directory, tp, future_logs.new_suffix(), current.topic_id, current.config)
        except OSError as error:
            raise self.reported(path, error) from error
        future.overrides = current.overrides
        self.futures.add(future)
        return future

    def drop_future(self, tp: TopicPartition) -> None:
        """The copy is not wanted any more. Raises LogDirFailed."""
        self._counts = None
        future = self.futures.remove(tp)
        if future is not None:
            self._removals.begin_renamed_tree(self._renamed_away(future, DELETED_SUFFIX, None))

    def swap(self, tp: TopicPartition) -> tuple[Log, str]:
        """The copy, which is complete, takes the log's place. Returns it, and what `futures.finish` removes. Raises LogDirFailed."""
        current = self._logs[tp]
        self._let_go(current)
        future = self.futures.get(tp)
        try:
            swapped, removed = self.futures.swap(current)
        except LogDirFailed as failure:
            # The copy waits for its disk's return; a log that was closed for it is opened at the next start.
            if future is not None:
                self._fail(future)
            if current.is_deleted:
                self._fail(current)
                self._offline[tp] = failure.directory
            self.report(failure, tp)
            raise
        self._logs[tp] = swapped
        self._points_are_behind = True
        return swapped, removed

    def topics(self) -> set[str]:
        """Those that have a log here."""
        return {tp.topic for tp in self._logs}

    def update_topic_configs(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """New overrides of topics, effective at once. Where a value is not allowed the earlier one stays, which is told."""
        if self._configs.update_topics(self._all(), overrides):
            self._watch_flushes()
            self._next_retention = self._clock.monotonic()

    def update_defaults(self, defaults: TopicConfig) -> None:
        """The broker's settings for topics have changed: effective at once wherever a topic has none of its own."""
        self._configs.update_defaults(self._all(), defaults)
        self._watch_flushes()
        self._next_retention = self._clock.monotonic()

    def delete(self, tp: TopicPartition) -> None:
        """Renames the directory away at once and removes it in a thread (LAI-6). Raises LogDirFailed."""
        self._removals.begin_renamed_tree(self._rename_away(tp, DELETED_SUFFIX))

    def set_aside(self, tp: TopicPartition) -> None:
        """Renames the directory of a stray replica away, where a person may look at it. Raises LogDirFailed."""
        path = self._rename_away(tp, STRAY_SUFFIX)
        log.warning("%s is set aside in %s: remove it by hand once nobody needs it", tp, path)

    def _rename_away(self, tp: TopicPartition, suffix: str) -> str:
        self.drop_future(tp)
        self._checkpoints.forgotten.add(tp)
        return self._renamed_away(self._logs.pop(tp), suffix, tp)

    def _renamed_away(self, found: Log, suffix: str, served: TopicPartition | None) -> str:
        target = path_of_renamed(found.log_dir, found.topic_partition, suffix)
        self._let_go(found)
        try:
            found.mark_deleted()
            self._filesystem.rename(found.directory, target)
        except OSError as error:
            raise self.reported(found.log_dir, error, served) from error
        self._points_are_behind = True
        return target

    def fail_directory(self, path: str) -> bool:
        """The disk under `path` failed: nothing there is touched any more until the next start (LOG-6). False: it is known."""
        for directory in self._directories:
            if directory.path == path and directory.is_online:
                log.error("log directory %s is offline from now on", path)
                directory.is_online = False
                for found in self._logs_in(directory):
                    self._fail(found)
                directory.release()
                return True
        return False

    def _fail(self, found: Log) -> None:
        """Forgets the log, and gives back its files, so that the volume can be taken away. A copy of it waits for its return."""
        tp = found.topic_partition
        if self._logs.get(tp) is found:
            del self._logs[tp]
            self._offline[tp] = found.log_dir
            future = self.futures.remove(tp)
            if future is not None:
                self._fail(future)
        else:
            self.futures.remove(tp)
        self._let_go(found)
        try:
            found.close()
        except OSError as error:
            log.warning("%s: %s", found.directory, error)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """A directory that cannot be read has failed."""
        return self._checkpoints.high_watermarks({tp: log.log_dir for tp, log in self._logs.items()}, self.report)

    async def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """`marks` of other directories' logs are not mixed up. Raises LogDirFailed."""

        def marks_of(found: Iterable[Log]) -> dict[TopicPartition, int]:
            served = (log.topic_partition for log in found if self._logs.get(log.topic_partition) is log)
            return {tp: marks[tp] for tp in served if tp in marks}

        await self._checkpoint(checkpoints.HIGH_WATERMARKS, marks_of)

    async def checkpoint_recovery_points(self) -> None:
        """Raises LogDirFailed, as the others."""
        await self._checkpoint(checkpoints.RECOVERY_POINTS, recovery_points)

    async def checkpoint_log_starts(self) -> None:
        await self._checkpoint(checkpoints.LOG_STARTS, log_starts)

    async def _checkpoint(self, name: str, offsets_of: Callable[[Iterable[Log]], dict[TopicPartition, int]]) -> None:
        failure: LogDirFailed | None = None
        for directory in self._online():
            offsets = offsets_of(self._logs_in(directory))
            try:
                if name == checkpoints.RECOVERY_POINTS:
                    await self._write_points_of(directory, offsets)
                else:
                    await self._checkpoints.write(directory, name, offsets)
            except OSError as error:
                failure = self.reported(directory.path, error)
                self._points_are_behind |= isinstance(failure, LogUnavailable)  # once more with the next tick
        if failure is not None:
            raise failure

    # -- in the background ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flushes, checkpoints and retention until cancelled. A directory that fails is reported and left out."""
        while True:
            await asyncio.sleep(TICK_S)
            self._filesystem.in_use.tick()
            self._filesystem.spare.fill()
            self._removals.retry()
            for duty in (
                self._files_due,
                self._flush_due,
                self._epochs_due,
                self._checkpoint_due,
                self._retention_due,
                self._expiration_due,
            ):
                with contextlib.suppress(LogDirFailed):  # what passes is tried again
                    await duty(self._clock.monotonic())

    async def _checkpoint_due(self, now: float) -> None:
        if now >= self._next_recovery_points or self._points_are_behind:
            self._next_recovery_points = now + self._schedule.recovery_points_s
            self._points_are_behind = False
            await self.checkpoint_recovery_points()
        if now >= self._next_log_starts:
            self._next_log_starts = now + self._schedule.log_starts_s
            await self.checkpoint_log_starts()

    async def _retention_due(self, now: float) -> None:
        if now >= self._next_retention:
            self._next_retention = now + self._schedule.retention_s
            for tp in list(self._logs):
                with contextlib.suppress(LogDirFailed):
                    await self._delete_old_segments_of(tp)
                await asyncio.sleep(0)

    async def _expiration_due(self, now: float) -> None:
        if now >= self._next_producer_count:
            self._next_producer_count = now + PRODUCERS_LOOK_S
            for producers, count in to_shrink([found.producers for found in self._logs.values()]):
                producers.shrink(count)
                await asyncio.sleep(0)
        if now >= self._next_expiration:
            self._next_expiration = now + self.producer_expiration.check_s
            for found in list(self._logs.values()):
                found.producers.expire(self._clock.wall_ms(), self.producer_expiration.after_ms)
                await asyncio.sleep(0)

    async def _files_due(self, now: float) -> None:
        """Log files that hold descriptors only because they are not synced: with too many, some are synced, and can rest."""
        in_use = self._filesystem.in_use
        if not (in_use.are_far_too_many or self._filesystem.spare.are_missing):
            return
        unsynced = [found for found in self._all() if any(segment.is_unsynced for segment in found.segments)]
        unsynced.sort(key=lambda found: found.is_in_use)
        for found in unsynced:
            if self._clock.monotonic() - now > SYNCED_TO_REST_S or len(in_use) <= in_use.share // 2:
                return
            try:
                await found.flush()
            except LogDirFailed:
                continue
            await asyncio.sleep(0)  # until the flush has unpinned the files
            for segment in found.segments:
                if segment.can_rest:
                    segment.rest()

    async def _flush_due(self, now: float) -> None:
        await self._flushes.flush(now)

    async def _epochs_due(self, now: float) -> None:
        await self._epoch_files.write_some()

    async def delete_old_segments(self) -> None:
        """Retention of every log, never past the high watermark (INV-22). Raises LogDirFailed."""
        for tp in list(self._logs):
            await self._delete_old_segments_of(tp)

    async def _delete_old_segments_of(self, tp: TopicPartition) -> None:
        found = self._logs.get(tp)
        if found is None or self.high_watermark_of is None:
            return
        found.delete_old_segments(self.high_watermark_of(tp), self._clock.wall_ms())
        if found.roll_if_old(self.high_watermark_of(tp), self._clock.wall_ms()):
            end = found.log_end_offset
            await found.flush()
            if self._logs.get(tp) is found and found.recovery_point >= end:
                found.delete_old_segments(self.high_watermark_of(tp), self._clock.wall_ms())


async def _in_pieces(logs: Sequence[Log], work: Callable[[Log], None]) -> None:
    """Does it in threads, for some of the logs at a time. All are tried; raises the first that failed."""

    def one_piece(piece: Sequence[Log]) -> None:
        failure: OSError | None = None
        for found in piece:
            try:
                work(found)
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    loop = asyncio.get_running_loop()
    pieces = (logs[at : at + LOGS_IN_A_PIECE] for at in range(0, len(logs), LOGS_IN_A_PIECE))
    results = await asyncio.gather(
        *(loop.run_in_executor(None, one_piece, piece) for piece in pieces), return_exceptions=True
    )
    for result in results:
        if result is not None:
            raise result
