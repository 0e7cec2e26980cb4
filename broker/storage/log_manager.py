"""All logs of a broker: opens, creates, moves and deletes them (LOG-1..3, LOG-6).

Log directories are independent: when one fails, only its own logs go offline, and the `DirectoryListener` is called.
`upkeep` runs the background work, `checkpoints` keeps the logs' offsets on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from broker.process.clock import Clock
from broker.settings.config import TopicConfig
from broker.settings.config_layers import believable
from broker.storage import recovery
from broker.storage.closed_logs import ClosedLog
from broker.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from broker.storage.directories import disk_history, future_logs, topic_ids
from broker.storage.directories.future_logs import FutureLogs
from broker.storage.directories.log_directories import LogDirectories, cannot_be_used, open_all
from broker.storage.directories.log_directory import (
    DELETED_SUFFIX,
    FUTURE_SUFFIX,
    STRAY_SUFFIX,
    LogDirectory,
    LogDirectoryError,
    path_of,
    path_of_renamed,
)
from broker.storage.directories.offset_checkpoints import OffsetCheckpoints
from broker.storage.disk.filesystem import FileSystem
from broker.storage.disk.removals import Renamed
from broker.storage.failures import LogDirFailed, LogUnavailable, failure_of, is_passing
from broker.storage.listeners import DirectoryListener
from broker.storage.log import Log
from broker.storage.log_types import LogParts, UnavailableLogs
from broker.storage.producers.log_producers import DEFAULT_EXPIRATION, ProducerExpiration
from broker.storage.upkeep import DEFAULT_SCHEDULE, LogSchedule, LogUpkeep
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

LOGS_IN_A_PIECE = 64
"""Logs per thread job when the broker stops."""

Overrides = Mapping[str, str]


class LogConfigs:
    """The settings of each log: its topic's overrides on top of the broker's defaults. Changes take effect at once.

    An invalid value is logged. The earlier value stays, if there is one.
    """

    def __init__(self, defaults: TopicConfig) -> None:
        self.defaults = defaults
        self._newest: tuple[str, Overrides, TopicConfig, Overrides] | None = None

    def of_new(self, topic: str, overrides: Overrides) -> tuple[TopicConfig, Overrides]:
        """`of` without earlier overrides. A topic's logs are created one after the other, and share the result."""
        if self._newest is None or self._newest[:2] != (topic, overrides):
            self._newest = (topic, dict(overrides), *self.of(topic, overrides, {}))
        return self._newest[2:]

    def of(self, topic: str, overrides: Overrides, earlier: Overrides) -> tuple[TopicConfig, Overrides]:
        """The config, and the overrides that it contains."""
        if not overrides:
            return self.defaults, {}
        usable, complaints = believable(TopicConfig, overrides, earlier, f"topic {topic}")
        for complaint in complaints:
            log.warning("%s", complaint)
        return self.defaults.with_overrides(usable), usable

    def update_topics(self, logs: Iterable[Log], overrides: Mapping[str, Overrides]) -> bool:
        """Applies new overrides of topics. False when they concern none of these logs."""
        updated: dict[str, tuple[TopicConfig, Overrides]] = {}
        for found in logs:
            topic = found.topic_partition.topic
            if topic not in overrides:
                continue
            if topic not in updated:
                updated[topic] = self.of(topic, overrides[topic], found.overrides)
            found.config, found.overrides = updated[topic]
        return bool(updated)

    def update_defaults(self, logs: Iterable[Log], defaults: TopicConfig) -> None:
        """The broker's settings for topics have changed."""
        self.defaults = defaults
        self._newest = None
        updated: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        for found in logs:
            key = tuple(found.overrides.items())
            if key not in updated:
                updated[key] = defaults.with_overrides(found.overrides)
            found.config = updated[key]


class LogManager:
    """Owns every Log; one per broker. `start` first, `upkeep.run` as a task, `shutdown` last."""

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
        """A thread is opening logs. Stays True when `start` is cancelled, as the thread continues."""
        self.high_watermark_of: Callable[[TopicPartition], int] | None = None
        self._server = DirectoryListener()
        self._on_more_claimable: Callable[[TopicPartition], None] = lambda tp: None
        self._configs = LogConfigs(topic_defaults)
        self._filesystem = filesystem
        self._clock = clock
        self._unavailable = UnavailableLogs(clock.monotonic)
        self.log_directories = LogDirectories(filesystem, log_dirs, self.report)
        self.futures = FutureLogs(filesystem)
        self.disks_since = disk_history.ALWAYS
        """The broker epoch since which all disks have been present. The log of an older replica may be on a lost disk."""
        self._logs: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, str] = {}
        self.cleaned = CleanerCheckpoint(self.log_directories, self._logs.values)
        self.checkpoints = OffsetCheckpoints(
            self.log_directories,
            self.cleaned,
            self._logs_in,
            lambda found: self._logs.get(found.topic_partition) is found,
            self.report,
        )
        self.upkeep = LogUpkeep(self, self.checkpoints, filesystem, clock, schedule, producer_expiration)

    def serve(
        self,
        server: DirectoryListener,
        high_watermark_of: Callable[[TopicPartition], int],
        pause: Callable[[], Awaitable[None]] | None = None,
        on_more_claimable: Callable[[TopicPartition], None] | None = None,
    ) -> None:
        """Sets who serves the logs, and the pause of long work on them. The server's constructor needs this LogManager.

        `on_more_claimable` is called when the `claimable_end` of a served log moves after a flush. From now on, such flushes start at
        once, and not at the next tick: call this on the loop.
        """
        self.upkeep.pause = pause or self.upkeep.pause
        if on_more_claimable is not None:
            self._on_more_claimable = on_more_claimable
            self.upkeep.owed_flushes.serve()
        self._server = server
        self.high_watermark_of = high_watermark_of

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Locks the directories and opens all logs, in threads. Raises LogDirectoryError when no directory can be used.

        After an error, all files are closed and all locks released. Directories whose logs were all opened are closed cleanly.
        """
        self.is_loading = True
        try:
            loop = asyncio.get_running_loop()
            failures = await loop.run_in_executor(None, self.log_directories.acquire)
            failures += [
                reason for directory in self.log_directories.online() if (reason := await self._load(directory))
            ]
            self._filesystem.in_use.belong_to_this_thread()
            self._align_futures()
            if not self.log_directories.online():
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
        """Opens all logs of a directory. Returns the reason when the disk fails. Raises LogDirectoryError."""
        began = self._clock.monotonic()
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self._open_all, directory)
        except OSError as error:
            return cannot_be_used(directory, error)
        except LogDirFailed as failure:
            return cannot_be_used(directory, failure.error)
        for opened in found:
            tp = opened.topic_partition
            is_future = opened.directory.endswith(FUTURE_SUFFIX)
            if is_future and not self.futures.add(opened):
                log.warning("%s: another copy of it is in %s, this one is removed", tp, opened.directory)
                self._remove_copy(opened)
                continue
            known = None if is_future else self._logs.get(tp)
            if known is not None:
                for each in found:
                    each.close()
                paths = f"{known.directory} and {opened.directory}"
                raise LogDirectoryError(f"{tp} is in {paths}: move one of them away by hand")
            if not is_future:
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
        """Cuts copies that differ from their log: in a crash the two may have lost different records."""
        for current in list(self._logs.values()):
            with contextlib.suppress(LogDirFailed):
                self.futures.align(current)

    def _open_all(self, directory: LogDirectory) -> list[Log]:
        opened, forgotten = open_all(
            self._filesystem,
            directory,
            lambda d, tp, path, *offsets: self._open(d, tp, path, self._configs.defaults, *offsets),
            keeps_deleted=bool(self.offline_dirs),
        )
        self.cleaned.restore(directory, opened)
        self.checkpoints.forgotten |= forgotten
        return opened

    def _open(
        self,
        directory: LogDirectory,
        tp: TopicPartition,
        path: str,
        config: TopicConfig,
        point: int,
        start: int,
        holes: int,
        closed: ClosedLog | None = None,
    ) -> Log:
        wall_ms = self._clock.wall_ms
        parts = None
        if closed is not None:
            parts = recovery.reopen_log(
                self._filesystem,
                path,
                config,
                closed,
                recovery_point=point,
                log_start_offset=start,
                wall_ms=wall_ms,
            )
        if parts is None:
            parts = recovery.open_log(
                self._filesystem,
                path,
                config,
                was_clean=directory.was_clean,
                recovery_point=point,
                log_start_offset=start,
                wall_ms=wall_ms,
                holes_up_to=holes,
            )
        return self._new_log(directory, tp, path, config, parts)

    def _new_log(
        self, directory: LogDirectory, tp: TopicPartition, path: str, config: TopicConfig, parts: LogParts
    ) -> Log:
        opened = Log(tp, directory.path, path, config, self._clock.wall_ms, parts, self.upkeep)
        self.upkeep.opened(opened)
        return opened

    def _let_go(self, found: Log) -> None:
        """The log no longer belongs to the broker: its background work is dropped."""
        self.upkeep.forget(found)
        self.log_directories.count_again()

    # -- what the logs report -------------------------------------------------------------------------------------

    def log_failed(self, log: Log, failure: LogDirFailed) -> None:
        is_served = self._logs.get(log.topic_partition) is log
        # When a directory fails, all its replicas go offline. The partition is named only when its log fails alone.
        is_alone = is_served and isinstance(failure, LogUnavailable)
        self.report(failure, log.topic_partition if is_alone else None)

    def log_was_cut(self, log: Log) -> None:
        if self._logs.get(log.topic_partition) is log:
            self._cut_copy(log)

    def may_claim_more(self, log: Log) -> None:
        if self._logs.get(log.topic_partition) is log:
            self._on_more_claimable(log.topic_partition)

    def _cut_copy(self, current: Log) -> None:
        """Cuts the copy of the log, if there is one. A copy that cannot be cut now is cut before anything is copied again."""
        with contextlib.suppress(LogDirFailed):
            self.futures.follow(current)

    def report(self, failure: LogDirFailed, tp: TopicPartition | None = None) -> None:
        """Handles a failure before it is raised. Only an error of the disk takes its directory offline.

        `tp` is the partition whose log failed alone, or could not be read, created, removed or replaced. Its replica goes
        offline unless the error is temporary. While logs are being opened, every failure takes its directory offline, and the
        `DirectoryListener` is not called.
        """
        if self.is_loading:
            self.fail_directory(failure.directory)
            return
        if isinstance(failure, LogUnavailable):
            self._unavailable.report(failure)
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

    @contextlib.contextmanager
    def reporting(self, directory: str, tp: TopicPartition | None = None) -> Iterator[None]:
        """Reports an OSError inside, and raises LogDirFailed in its place."""
        try:
            yield
        except OSError as error:
            raise self.reported(directory, error, tp) from error

    # -- disk histories, and the stop -----------------------------------------------------------------------------

    def note_disks(self, broker_epoch: int) -> None:
        """Sets `disks_since`, and writes every directory's disk history. Call before `ensure_meta`."""
        histories = disk_history.DiskHistories(self._filesystem, list(self.log_directories), self.report)
        self.disks_since = histories.update(self._logs.keys(), broker_epoch)

    async def shutdown(self) -> None:
        """Flushes and closes every log, writes the checkpoints and, if all succeeded, the clean-shutdown marker.

        A directory that this process has not locked, or not loaded completely, does not change: another process may use it, and
        with a marker the next start would skip its recovery (BUG-18). A second call does nothing.
        """
        await self.upkeep.finished()
        for directory in self.log_directories.online():
            if not directory.is_loaded:
                continue
            try:
                await _in_pieces(self._logs_in(directory), Log.sync_to_close)
                await asyncio.get_running_loop().run_in_executor(None, self._filesystem.sync_directory, directory.path)
                await self.checkpoints.write_at_stop(directory)
                closed = partial(_closed, self._logs_in(directory))
                await asyncio.get_running_loop().run_in_executor(None, directory.write_clean_marker, closed)
            except OSError as error:
                log.error("log directory %s was not closed cleanly: %s", directory.path, error)
        for found in self.all_logs():
            found.close()
        for directory in self.log_directories:
            # A thread may still repair the directory's logs. It then stays locked until this process ends.
            if directory.is_loaded or not self.is_loading:
                directory.release()
        self._logs.clear()

    # -- logs -----------------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def is_of(self, tp: TopicPartition, topic_id: str | None) -> bool:
        """False when the log belongs to another topic. One wrong bit in its topic id is allowed. Raises LogDirFailed."""
        found = self._logs.get(tp)
        if found is None or topic_id is None:
            return True
        with self.reporting(found.log_dir, tp):
            return topic_ids.is_of(self._filesystem, found, topic_id)

    def logs(self) -> Iterable[Log]:
        """The logs that are served. Future copies (KIP-113) are in `futures.logs()`."""
        return self._logs.values()

    def all_logs(self) -> list[Log]:
        return [*self._logs.values(), *self.futures.logs()]

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [found for found in self.all_logs() if found.log_dir == directory.path]

    @property
    def directories(self) -> tuple[str, ...]:
        """Paths of all configured directories."""
        return self.log_directories.paths

    @property
    def offline_dirs(self) -> tuple[str, ...]:
        """Paths of the directories that failed."""
        return self.log_directories.offline_paths

    def get_or_create(self, tp: TopicPartition, topic_id: str | None, overrides: Mapping[str, str]) -> Log:
        """The log. A missing one is created in the directory that an admin chose, else in the one with the fewest logs.

        `topic_id` is written to a log that has none, or a damaged one. Invalid overrides are logged and left out. A log whose
        directory failed is not created again: an empty log must not replace acknowledged records. Raises LogDirFailed, and
        KafkaError for a name that no directory can have.
        """
        config, usable = self._configs.of_new(tp.topic, overrides)
        found = self._logs.get(tp)
        if found is None:
            found = self._create(tp, topic_id, config)
        elif topic_id is not None:
            self.adopt(tp, topic_id)
        found.config, found.overrides = config, usable
        self.upkeep.configured((found,))
        return found

    def adopt(self, tp: TopicPartition, topic_id: str) -> None:
        """Writes the topic id of a log that has none, or a damaged one, and of its future copy. Raises LogDirFailed."""
        future, served = self.futures.get(tp), self._logs.get(tp)
        for found in (future, served):
            if found is None:
                continue
            try:
                with self.reporting(found.log_dir, tp if found is served else None):
                    topic_ids.adopt(self._filesystem, found, topic_id)
            except LogDirFailed as failure:
                if found is served or is_passing(failure):
                    raise  # else the disk of the copy failed, and the move ends

    def _create(self, tp: TopicPartition, topic_id: str | None, config: TopicConfig) -> Log:
        if tp in self._offline:
            raise self.reported(self._offline[tp], OSError(errno.EIO, "the directory is offline"), tp)
        if tp in self.checkpoints.forgotten:
            self._forget_cleaned(tp)
            self.checkpoints.forget_removed()
        directory = self._directory_for_new(tp)
        with self.reporting(directory.path, tp):
            created = self._make(directory, tp, "", topic_id, config)
        self._logs[tp] = created
        self.futures.preferred.pop(tp, None)
        self._cut_copy(created)
        return created

    def _forget_cleaned(self, tp: TopicPartition) -> None:
        for directory in self.log_directories.online():
            try:
                self.cleaned.lower_now(directory.path)
            except OSError as error:
                failure = failure_of(directory.path, error)
                if isinstance(failure, LogUnavailable):
                    self.report(failure, tp)
                    raise failure from error
                self.report(failure)

    def _directory_for_new(self, tp: TopicPartition) -> LogDirectory:
        """Where a power loss would bring back an earlier log of the partition, else where an admin wants it. Raises LogDirFailed."""
        wanted = self.futures.preferred.get(tp)
        earlier = self.upkeep.removals.returns_to(tp)
        if earlier is not None and earlier not in self.offline_dirs:
            if wanted not in (None, earlier):
                log.warning(
                    "%s is made in %s and not in %s: its removal there is not on the disk yet", tp, earlier, wanted
                )
            wanted = earlier
        directory = self.log_directories.for_new(wanted, self.all_logs)
        if directory is None:
            offline = OSError(errno.EIO, "the log directory is offline")
            raise self.reported(wanted or self.directories[0], offline, tp)
        return directory

    def _make(
        self, directory: LogDirectory, tp: TopicPartition, suffix: str, topic_id: str | None, config: TopicConfig
    ) -> Log:
        path = path_of(directory.path, tp, suffix)
        if self._filesystem.make_new_directory(path):
            try:
                parts = recovery.new_log(self._filesystem, path, config, topic_id=topic_id, wall_ms=self._clock.wall_ms)
            except OSError:
                self._undo_make(directory, tp, path)
                raise
            return self._new_log(directory, tp, path, config, parts)
        if topic_id is not None:
            topic_ids.write(self._filesystem, path, topic_id)
        return self._open(directory, tp, path, config, 0, 0, 0)

    def _undo_make(self, directory: LogDirectory, tp: TopicPartition, path: str) -> None:
        """Removes a log that could not be created. The next attempt may use another directory once a power loss cannot bring it back: no
        start accepts a log in two."""
        try:
            self._filesystem.remove_tree(path)
        except OSError as error:
            log.warning("%s stays: %s", path, error)
            if tp not in self._logs:
                self.futures.prefer(tp, directory.path)
        else:
            is_copy = tp in self._logs
            self.upkeep.removals.begin_renamed(Renamed(path, None if is_copy else tp, is_kept=True))

    # -- moves between directories: see `future_logs` -------------------------------------------------------------

    def make_future(self, tp: TopicPartition, path: str) -> Log:
        """An empty copy of the log, in the online directory `path`. Raises LogDirFailed."""
        self.log_directories.count_again()
        current = self._logs[tp]
        (directory,) = [directory for directory in self.log_directories.online() if directory.path == path]
        with self.reporting(path):
            self.checkpoints.forget(directory, (tp,))
            self.cleaned.lower_now(path)
            future = self._make(directory, tp, future_logs.new_suffix(), current.topic_id, current.config)
        future.overrides = current.overrides
        self.futures.add(future)
        return future

    def drop_future(self, tp: TopicPartition) -> None:
        """Removes the copy, if there is one. Raises LogDirFailed."""
        self.log_directories.count_again()
        future = self.futures.get(tp)
        if future is not None:
            self._remove_copy(future)
            self.futures.remove(tp)

    def _remove_copy(self, copy: Log) -> None:
        """Raises LogDirFailed."""
        path = self._renamed_away(copy, DELETED_SUFFIX, None)
        self.upkeep.removals.begin_renamed(Renamed(path))

    def swap(self, tp: TopicPartition) -> tuple[Log, str]:
        """Replaces the log by its complete copy. Returns the copy, and the path for `futures.finish`. Raises LogDirFailed."""
        current = self._logs[tp]
        claimable_end = current.claimable_end if current.owes_flush else None
        self._let_go(current)
        future = self.futures.get(tp)
        try:
            swapped, removed = self.futures.swap(current)
        except LogDirFailed as failure:
            # The copy is out of use until the next start, and so is the log if it was closed for the swap.
            if future is not None:
                self._fail(future)
            if current.is_deleted:
                self._fail(current)
                self._offline[tp] = failure.directory
            self.report(failure, tp)
            raise
        self._logs[tp] = swapped
        # A copy that a start has opened has the broker's defaults: a LeaderAndIsr brings the topic's settings for the log only.
        swapped.config, swapped.overrides = current.config, current.overrides
        self.upkeep.configured((swapped,))
        if claimable_end is not None:
            swapped.owe_flush(claimable_end)  # whoever waits for the log's flush waits for the copy's
        self.checkpoints.are_behind = True
        return swapped, removed

    def topics(self) -> set[str]:
        """The topics that have a log here."""
        return {tp.topic for tp in self._logs}

    def update_topic_configs(self, overrides: Mapping[str, Overrides]) -> None:
        """Applies new overrides of topics at once. An invalid value is logged, and the earlier one stays."""
        if self._configs.update_topics(self.all_logs(), overrides):
            self.upkeep.configured(self.all_logs())
            self.upkeep.retention_is_due()

    def update_defaults(self, defaults: TopicConfig) -> None:
        """Applies the broker's new topic defaults at once, wherever a topic has no override."""
        self._configs.update_defaults(self.all_logs(), defaults)
        self.upkeep.configured(self.all_logs())
        self.upkeep.retention_is_due()

    def delete(self, tp: TopicPartition) -> None:
        """Renames the log's directory away at once and removes it in a thread (LAI-6). Raises LogDirFailed."""
        self.upkeep.removals.begin_renamed(Renamed(self._rename_away(tp, DELETED_SUFFIX), tp))

    def set_aside(self, tp: TopicPartition) -> None:
        """Renames the directory of a stray replica, and keeps it for an admin to examine. Raises LogDirFailed."""
        path = self._rename_away(tp, STRAY_SUFFIX)
        self.upkeep.removals.begin_renamed(Renamed(path, tp, is_kept=True))
        log.warning("%s is set aside in %s: remove it by hand once nobody needs it", tp, path)

    def _rename_away(self, tp: TopicPartition, suffix: str) -> str:
        self.drop_future(tp)
        target = self._renamed_away(self._logs[tp], suffix, tp)
        del self._logs[tp]
        self.checkpoints.forgotten.add(tp)
        return target

    def _renamed_away(self, found: Log, suffix: str, served: TopicPartition | None) -> str:
        """After a temporary error the log is as before, so that the call can be repeated. A log that was forgotten while its directory
        keeps its name would be opened for the next topic of that name (FLT-36).
        """
        target = path_of_renamed(found.log_dir, found.topic_partition, suffix)
        try:
            with self.reporting(found.log_dir, served):
                self._filesystem.rename(found.directory, target)
        except LogDirFailed as failure:
            if not is_passing(failure):
                self._fail(found)
            raise
        self._let_go(found)
        found.mark_deleted()
        self.checkpoints.are_behind = True
        return target

    def fail_directory(self, path: str) -> bool:
        """Takes the log directory offline until the next start (LOG-6). False when it is offline already."""
        for directory in self.log_directories:
            if directory.path == path and directory.is_online:
                log.error("log directory %s is offline from now on", path)
                directory.is_online = False
                for found in self._logs_in(directory):
                    self._fail(found)
                directory.release()
                return True
        return False

    def _fail(self, found: Log) -> None:
        """Forgets the log and closes its files, so that the volume can be unmounted. The log's copy is closed, too."""
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
        found.close()


def _closed(logs: Iterable[Log]) -> dict[str, ClosedLog]:
    """By directory name, those of the logs that can be described. For a thread. Raises OSError."""
    closed = ((found.directory.rpartition("/")[2], found.closed()) for found in logs)
    return {name: one for name, one in closed if one is not None}


async def _in_pieces(logs: Sequence[Log], work: Callable[[Log], None]) -> None:
    """Runs `work` in threads, for LOGS_IN_A_PIECE logs each. Tries all logs, then raises one of the errors."""

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
