"""All logs of a broker: opening, making, deleting, retention, flushing, checkpoints (LOG-1..3, LOG-6).

Log directories are independent: one that fails takes its own logs with it, and `on_log_dir_failure` tells whose they are.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.clock import Clock
from broker.config import TopicConfig
from broker.config_layers import believable
from broker.storage import checkpoints, recovery
from broker.storage.filesystem import FileSystem
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_directory import DELETED_SUFFIX, STRAY_SUFFIX, LogDirectory, LogDirectoryError
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RETENTION_CHECK_S = 300.0
CHECKPOINT_S = 60.0
TICK_S = 1.0


class LogManager:
    """Owns every Log; one per broker. `start` first, `run` as a task, `shutdown` last."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        topic_defaults: TopicConfig,
        filesystem: FileSystem,
        clock: Clock,
        *,
        retention_check_s: float = RETENTION_CHECK_S,
        checkpoint_s: float = CHECKPOINT_S,
    ) -> None:
        self.on_log_dir_failure: Callable[[str], None] = lambda directory: None
        self.high_watermark_of: Callable[[TopicPartition], int] | None = None
        self._directories = [LogDirectory(filesystem, path) for path in log_dirs]
        self._defaults = topic_defaults
        self._filesystem = filesystem
        self._clock = clock
        self._retention_check_s = retention_check_s
        self._checkpoint_s = checkpoint_s
        self._logs: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._rolled: set[Log] = set()
        self._forgotten: set[TopicPartition] = set()
        self._points_are_behind = False
        self._turns = itertools.count(1)
        self._last_flush: dict[TopicPartition, float] = {}
        self._removals: set[asyncio.Future[None]] = set()
        self._next_checkpoint = clock.monotonic() + checkpoint_s
        self._next_retention = clock.monotonic() + retention_check_s

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the directories' locks and opens all logs, in threads. Raises LogDirectoryError when none can be used."""
        try:
            failures = [reason for directory in self._directories if (reason := await self._load(directory))]
            if not self._online():
                reasons = "; ".join(failures)
                raise LogDirectoryError(
                    f"no log directory can be used: {reasons}: set log.dirs to one that can be written"
                )
        except LogDirectoryError:
            for directory in self._directories:
                directory.release()
            raise

    async def _load(self, directory: LogDirectory) -> str | None:
        """Opens all logs of a directory; returns why not when the disk refuses. Raises LogDirectoryError."""
        began = self._clock.monotonic()
        try:
            directory.acquire()
            found = await asyncio.get_running_loop().run_in_executor(None, self._open_all, directory)
        except OSError as error:
            log.error("log directory %s cannot be used: %s", directory.path, error)
            directory.is_online = False
            return f"{directory.path}: {error.strerror or error}"
        for opened in found:
            tp = opened.topic_partition
            if tp in self._logs:
                paths = f"{self._logs[tp].directory} and {opened.directory}"
                raise LogDirectoryError(f"{tp} is in {paths}: move one of them away by hand")
            self._logs[tp] = opened
        log.info(
            "%d logs of %s opened in %.2f s, after %s stop",
            len(found),
            directory.path,
            self._clock.monotonic() - began,
            "a clean" if directory.was_clean else "no clean",
        )
        return None

    def _open_all(self, directory: LogDirectory) -> list[Log]:
        directory.take_clean_marker()
        points = directory.read_offsets(checkpoints.RECOVERY_POINTS)
        starts = directory.read_offsets(checkpoints.LOG_STARTS)
        marks = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
        opened = [
            self._open(directory, tp, path, self._defaults, points.get(tp, 0), starts.get(tp, 0))
            for tp, path in directory.partitions()
        ]
        self._forgotten |= (points.keys() | starts.keys() | marks.keys()) - {found.topic_partition for found in opened}
        return opened

    def _open(
        self, directory: LogDirectory, tp: TopicPartition, path: str, config: TopicConfig, point: int, start: int
    ) -> Log:
        parts = recovery.open_log(
            self._filesystem,
            path,
            config,
            was_clean=directory.was_clean,
            recovery_point=point,
            log_start_offset=start,
            wall_ms=self._clock.wall_ms,
        )
        opened = Log(tp, directory.path, path, config, self._filesystem, self._clock.wall_ms, parts)
        opened.on_roll = self._rolled.add
        opened.on_cut = self._was_cut
        opened.dispose = self._dispose
        return opened

    def _was_cut(self, cut: Log) -> None:
        """The checkpointed recovery point may be beyond the log now: what will be written there is not synced."""
        self._points_are_behind = True

    def check_meta(self, broker_id: int, cluster_id: str) -> None:
        """Before anything is promised to anybody. Raises LogDirectoryError for another broker's or cluster's directory."""
        for directory in self._online():
            directory.check_meta(broker_id, cluster_id)

    def ensure_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks or writes every directory's `meta.properties`. Raises LogDirectoryError."""
        for directory in self._online():
            directory.ensure_meta(broker_id, cluster_id)

    async def shutdown(self) -> None:
        """Flushes and closes every log, writes the checkpoints and, where all went well, the clean-shutdown marker."""
        await asyncio.gather(*self._removals, return_exceptions=True)
        for directory in self._online():
            mine = [found for found in self._logs.values() if found.log_dir == directory.path]
            for found in mine:
                found.segments[-1].close_time_index()
            results = await asyncio.gather(*(found.flush() for found in mine), return_exceptions=True)
            failures = [result for result in results if result is not None]
            try:
                if failures:
                    raise failures[0]
                await self._write_checkpoint(directory, checkpoints.RECOVERY_POINTS, self._recovery_points())
                await self._write_checkpoint(directory, checkpoints.LOG_STARTS, self._log_starts())
                await asyncio.get_running_loop().run_in_executor(None, directory.write_clean_marker)
            except (OSError, LogDirFailed) as error:
                log.error("log directory %s was not closed cleanly: %s", directory.path, error)
        for found in self._logs.values():
            found.close()
        for directory in self._directories:
            directory.release()
        self._logs.clear()

    # -- logs -----------------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Log | None:
        return self._logs.get(tp)

    def logs(self) -> Iterable[Log]:
        return self._logs.values()

    @property
    def offline_dirs(self) -> tuple[str, ...]:
        """Paths of the directories that failed."""
        return tuple(directory.path for directory in self._directories if not directory.is_online)

    def disk_spaces(self) -> dict[str, tuple[int, int] | None]:
        """Path of each directory -> (bytes of its volume, bytes free), None for one that failed. Blocks: for a thread."""
        spaces: dict[str, tuple[int, int] | None] = {}
        for directory in self._directories:
            spaces[directory.path] = None
            if directory.is_online:
                try:
                    spaces[directory.path] = self._filesystem.space(directory.path)
                except OSError as error:
                    log.warning("%s does not tell how much room it has: %s", directory.path, error)
        return spaces

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.is_online]

    def get_or_create(self, tp: TopicPartition, topic_id: str | None, overrides: Mapping[str, str]) -> Log:
        """The log, made in the directory that has the fewest when it is not there. Raises LogDirFailed.

        An id is written to a log that has none; overrides that are not valid are left out, which is told. A log whose
        directory failed is not made anew: an empty one must not stand for what was acknowledged.
        """
        usable = self._usable(tp.topic, overrides, {})
        config = self._defaults.with_overrides(usable)
        found = self._logs.get(tp)
        if found is None:
            found = self._create(tp, topic_id, config)
        elif found.topic_id is None and topic_id is not None:
            try:
                recovery.write_topic_id(self._filesystem, found.directory, topic_id)
            except OSError as error:
                raise LogDirFailed(found.log_dir, error) from error
            found.topic_id = topic_id
        found.config, found.overrides = config, usable
        return found

    def _create(self, tp: TopicPartition, topic_id: str | None, config: TopicConfig) -> Log:
        if tp in self._offline:
            raise LogDirFailed(self._offline[tp], OSError(errno.EIO, "the directory is offline"))
        counts = {directory.path: 0 for directory in self._online()}
        if not counts:
            raise LogDirFailed(self._directories[0].path, OSError(errno.EIO, "no log directory is online"))
        for existing in self._logs.values():
            counts[existing.log_dir] += 1
        directory = min(self._online(), key=lambda d: counts[d.path])
        path = f"{directory.path}/{tp}"
        try:
            if tp in self._forgotten:
                self._forget_checkpoints()
            self._filesystem.make_directory(path)
            if topic_id is not None:
                recovery.write_topic_id(self._filesystem, path, topic_id)
            created = self._open(directory, tp, path, config, 0, 0)
        except OSError as error:
            raise LogDirFailed(directory.path, error) from error
        self._logs[tp] = created
        return created

    def _forget_checkpoints(self) -> None:
        """A log of that name was there before: its offsets must not be taken for the new one's after a crash."""
        for directory in self._online():
            for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS):
                offsets = directory.read_offsets(name)
                kept = {tp: offset for tp, offset in offsets.items() if tp not in self._forgotten}
                if len(kept) < len(offsets):
                    directory.overwrite_offsets(name, kept, next(self._turns))
        self._forgotten.clear()

    def _usable(self, topic: str, overrides: Mapping[str, str], earlier: Mapping[str, str]) -> Mapping[str, str]:
        usable, complaints = believable(TopicConfig, overrides, earlier, f"topic {topic}")
        for complaint in complaints:
            log.warning("%s", complaint)
        return usable

    def topics(self) -> set[str]:
        """Those that have a log here."""
        return {tp.topic for tp in self._logs}

    def update_topic_configs(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        """New overrides of topics, effective at once. Where a value is not allowed the earlier one stays, which is told."""
        updated: dict[str, tuple[TopicConfig, Mapping[str, str]]] = {}
        for tp, found in self._logs.items():
            if tp.topic not in overrides:
                continue
            if tp.topic not in updated:
                usable = self._usable(tp.topic, overrides[tp.topic], found.overrides)
                updated[tp.topic] = (self._defaults.with_overrides(usable), usable)
            found.config, found.overrides = updated[tp.topic]
        if updated:
            self._next_retention = self._clock.monotonic()

    def update_defaults(self, defaults: TopicConfig) -> None:
        """The broker's settings for topics have changed: effective at once wherever a topic has none of its own."""
        self._defaults = defaults
        updated: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        for found in self._logs.values():
            key = tuple(found.overrides.items())
            if key not in updated:
                updated[key] = defaults.with_overrides(found.overrides)
            found.config = updated[key]
        self._next_retention = self._clock.monotonic()

    def delete(self, tp: TopicPartition) -> None:
        """Renames the directory away at once and removes it in a thread (LAI-6). Raises LogDirFailed."""
        self._in_thread(self._filesystem.remove_tree, self._rename_away(tp, DELETED_SUFFIX))

    def set_aside(self, tp: TopicPartition) -> None:
        """Renames the directory of a stray replica away, where a person may look at it. Raises LogDirFailed."""
        path = self._rename_away(tp, STRAY_SUFFIX)
        log.warning("%s is set aside in %s: remove it by hand once nobody needs it", tp, path)

    def _rename_away(self, tp: TopicPartition, suffix: str) -> str:
        found = self._logs.pop(tp)
        self._rolled.discard(found)
        self._last_flush.pop(tp, None)
        self._forgotten.add(tp)
        target = f"{found.log_dir}/{tp.topic[:150]}-{tp.partition}.{uuid.uuid4().hex}{suffix}"
        try:
            found.mark_deleted()
            self._filesystem.rename(found.directory, target)
        except OSError as error:
            raise LogDirFailed(found.log_dir, error) from error
        self._points_are_behind = True
        return target

    def _dispose(self, paths: Sequence[str]) -> None:
        """Unlinks what a log does not need any more."""
        for path in paths:
            self._in_thread(self._filesystem.remove, path)

    def _in_thread(self, remove: Callable[[str], None], path: str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # at start, and in tools: there is no loop to wait
            remove(path)
            return
        removal = loop.run_in_executor(None, remove, path)
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and (error := removal.exception()) is not None:
            log.warning("a removed file stays on the disk until the next start: %s", error)

    def fail_directory(self, path: str) -> None:
        """The disk under `path` failed: its logs are not served any more (LOG-6)."""
        for directory in self._directories:
            if directory.path == path and directory.is_online:
                log.error("log directory %s is offline from now on", path)
                directory.is_online = False
                for tp in [tp for tp, found in self._logs.items() if found.log_dir == path]:
                    del self._logs[tp]
                    self._offline[tp] = path

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        marks: dict[TopicPartition, int] = {}
        for directory in self._online():
            marks.update(directory.read_offsets(checkpoints.HIGH_WATERMARKS))
        return marks

    async def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """`marks` of other directories' logs are not mixed up. Raises LogDirFailed."""
        await self._checkpoint(checkpoints.HIGH_WATERMARKS, marks)

    async def checkpoint_recovery_points(self) -> None:
        """Raises LogDirFailed, as the others."""
        await self._checkpoint(checkpoints.RECOVERY_POINTS, self._recovery_points())

    async def checkpoint_log_starts(self) -> None:
        await self._checkpoint(checkpoints.LOG_STARTS, self._log_starts())

    async def _checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        failure: LogDirFailed | None = None
        for directory in self._online():
            try:
                await self._write_checkpoint(directory, name, offsets)
            except OSError as error:
                failure = LogDirFailed(directory.path, error)
        if failure is not None:
            raise failure

    async def _write_checkpoint(
        self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        mine = {
            tp: offset
            for tp, offset in offsets.items()
            if (found := self._logs.get(tp)) is not None and found.log_dir == directory.path
        }
        turn = next(self._turns)
        await asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, name, mine, turn)

    def _recovery_points(self) -> dict[TopicPartition, int]:
        return {tp: found.recovery_point for tp, found in self._logs.items()}

    def _log_starts(self) -> dict[TopicPartition, int]:
        """Only starts that the first segment's name does not tell, as Kafka does."""
        return {
            tp: found.log_start_offset
            for tp, found in self._logs.items()
            if found.log_start_offset > found.segments[0].base_offset
        }

    # -- in the background ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flushes, checkpoints and retention until cancelled. A directory that fails is reported and left out."""
        while True:
            await asyncio.sleep(TICK_S)
            for duty in (self._flush_due, self._checkpoint_due, self._retention_due):
                try:
                    await duty(self._clock.monotonic())
                except LogDirFailed as error:
                    log.error("%s", error)
                    self.on_log_dir_failure(error.directory)

    async def _checkpoint_due(self, now: float) -> None:
        is_time = now >= self._next_checkpoint
        if is_time:
            self._next_checkpoint = now + self._checkpoint_s
        if is_time or self._points_are_behind:
            self._points_are_behind = False
            await self.checkpoint_recovery_points()
        if is_time:
            await self.checkpoint_log_starts()

    async def _retention_due(self, now: float) -> None:
        if now >= self._next_retention:
            self._next_retention = now + self._retention_check_s
            for tp in list(self._logs):
                self._delete_old_segments_of(tp)
                await asyncio.sleep(0)

    async def _flush_due(self, now: float) -> None:
        """Logs that rolled, and those whose flush interval in messages or time is over."""
        failure: LogDirFailed | None = None
        for tp, found in list(self._logs.items()):
            unflushed = found.log_end_offset - found.recovery_point
            since = self._last_flush.setdefault(tp, now)
            if unflushed == 0:
                self._last_flush[tp] = now
            elif (
                found in self._rolled
                or unflushed >= found.config.flush_messages
                or (now - since) * 1000 >= found.config.flush_ms
            ):
                self._rolled.discard(found)
                self._last_flush[tp] = now
                try:
                    await found.flush()
                except LogDirFailed as error:
                    failure = error
        if failure is not None:
            raise failure

    def delete_old_segments(self) -> int:
        """Retention of every log, never past the high watermark (INV-22). Returns how many segments went.

        Raises LogDirFailed.
        """
        return sum(self._delete_old_segments_of(tp) for tp in list(self._logs))

    def _delete_old_segments_of(self, tp: TopicPartition) -> int:
        found = self._logs.get(tp)
        if found is None or self.high_watermark_of is None:
            return 0
        return found.delete_old_segments(self.high_watermark_of(tp), self._clock.wall_ms())
