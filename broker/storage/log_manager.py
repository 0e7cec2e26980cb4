"""All logs of a broker: opening, making, deleting, retention, flushing, checkpoints (LOG-1..3, LOG-6).

Log directories are independent: one that fails takes its own logs with it, and `on_log_dir_failure` tells whose they are.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from broker.clock import Clock
from broker.config import ConfigError, TopicConfig
from broker.storage import checkpoints, recovery
from broker.storage.filesystem import FileSystem
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_directory import DELETED_SUFFIX, LogDirectory, LogDirectoryError
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RETENTION_CHECK_S = 300.0
CHECKPOINT_S = 60.0
FLUSH_CHECK_S = 1.0


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
        self._rolled: set[Log] = set()
        self._last_flush: dict[TopicPartition, float] = {}
        self._removals: set[asyncio.Future[None]] = set()

    # -- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the directories' locks and opens all logs. Raises LogDirectoryError when no directory can be used."""
        for directory in self._directories:
            try:
                directory.acquire()
                await self._load(directory)
            except OSError as error:
                log.error("log directory %s cannot be used: %s", directory.path, error)
                directory.is_online = False
        if not any(directory.is_online for directory in self._directories):
            raise LogDirectoryError(
                f"none of log.dirs can be used: {', '.join(d.path for d in self._directories)}; see the errors above"
            )

    async def _load(self, directory: LogDirectory) -> None:
        directory.take_clean_marker()
        points = directory.read_offsets(checkpoints.RECOVERY_POINTS)
        starts = directory.read_offsets(checkpoints.LOG_STARTS)
        for count, (tp, path) in enumerate(directory.partitions()):
            if tp in self._logs:
                raise LogDirectoryError(
                    f"{tp} is in {self._logs[tp].directory} and in {path}: move one of them away by hand"
                )
            self._logs[tp] = self._open(directory, tp, path, self._defaults, points.get(tp, 0), starts.get(tp, 0))
            if count % 50 == 49:
                await asyncio.sleep(0)

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
        return opened

    def ensure_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks or writes every directory's `meta.properties`. Raises LogDirectoryError."""
        for directory in self._online():
            directory.ensure_meta(broker_id, cluster_id)

    async def shutdown(self) -> None:
        """Flushes and closes every log, writes the checkpoints and, where all went well, the clean-shutdown marker."""
        await asyncio.gather(*self._removals, return_exceptions=True)
        for directory in self._online():
            mine = [found for found in self._logs.values() if found.log_dir == directory.path]
            try:
                for found in mine:
                    found.segments[-1].close_time_index()
                    await found.flush()
                self._write_recovery_points(directory)
                self._write_log_starts(directory)
                for found in mine:
                    found.close()
                directory.write_clean_marker()
            except (OSError, LogDirFailed) as error:
                log.error("log directory %s was not closed cleanly: %s", directory.path, error)
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

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.is_online]

    def get_or_create(self, tp: TopicPartition, topic_id: str | None, overrides: Mapping[str, str]) -> Log:
        """The log, made in the directory that has the fewest when it is not there. Raises LogDirFailed.

        An id is written to a log that has none; overrides that are not valid are left out, which is told.
        """
        config = self._config_of(tp.topic, overrides)
        found = self._logs.get(tp)
        directory_path = found.log_dir if found else ""
        try:
            if found is None:
                counts = {d.path: 0 for d in self._online()}
                for existing in self._logs.values():
                    if existing.log_dir in counts:
                        counts[existing.log_dir] += 1
                directory = min(self._online(), key=lambda d: counts[d.path])
                directory_path = directory.path
                path = f"{directory.path}/{tp}"
                self._filesystem.make_directory(path)
                if topic_id is not None:
                    recovery.write_topic_id(self._filesystem, path, topic_id)
                found = self._open(directory, tp, path, config, 0, 0)
                self._logs[tp] = found
            elif found.topic_id is None and topic_id is not None:
                recovery.write_topic_id(self._filesystem, found.directory, topic_id)
                found.topic_id = topic_id
        except OSError as error:
            raise LogDirFailed(directory_path, error) from error
        found.config = config
        return found

    def _config_of(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        config = self._defaults
        for key, value in overrides.items():
            try:
                config = config.with_overrides({key: value})
            except ConfigError as error:
                log.warning("topic %s: %s: left out", topic, error)
        return config

    def update_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """New overrides of a topic, effective at once."""
        config = self._config_of(topic, overrides)
        for tp, found in self._logs.items():
            if tp.topic == topic:
                found.config = config

    def delete(self, tp: TopicPartition) -> None:
        """Renames the directory away at once and removes it in a thread (LAI-6). Raises LogDirFailed."""
        found = self._logs.pop(tp)
        self._rolled.discard(found)
        target = f"{found.log_dir}/{tp.topic[:150]}-{tp.partition}.{uuid.uuid4().hex}{DELETED_SUFFIX}"
        try:
            found.mark_deleted()
            self._filesystem.rename(found.directory, target)
        except OSError as error:
            raise LogDirFailed(found.log_dir, error) from error
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._filesystem.remove_tree(target)
            return
        removal = loop.run_in_executor(None, self._filesystem.remove_tree, target)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def fail_directory(self, path: str) -> None:
        """The disk under `path` failed: its logs are not served any more (LOG-6)."""
        for directory in self._directories:
            if directory.path == path and directory.is_online:
                log.error("log directory %s is offline from now on", path)
                directory.is_online = False
                for tp in [tp for tp, found in self._logs.items() if found.log_dir == path]:
                    del self._logs[tp]

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
        await self._checkpoint(checkpoints.RECOVERY_POINTS, {tp: f.recovery_point for tp, f in self._logs.items()})

    async def checkpoint_log_starts(self) -> None:
        starts = {tp: f.log_start_offset for tp, f in self._logs.items()}
        await self._checkpoint(checkpoints.LOG_STARTS, self._log_starts_to_keep(starts))

    async def _checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        loop = asyncio.get_running_loop()
        for directory in self._online():
            mine = {tp: o for tp, o in offsets.items() if tp in self._logs and self._logs[tp].log_dir == directory.path}
            try:
                await loop.run_in_executor(None, directory.write_offsets, name, mine)
            except OSError as error:
                raise LogDirFailed(directory.path, error) from error

    def _log_starts_to_keep(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Only starts that the first segment's name does not tell, as Kafka does."""
        return {tp: start for tp, start in starts.items() if start > self._logs[tp].segments[0].base_offset}

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        points = {tp: f.recovery_point for tp, f in self._logs.items() if f.log_dir == directory.path}
        directory.write_offsets(checkpoints.RECOVERY_POINTS, points)

    def _write_log_starts(self, directory: LogDirectory) -> None:
        starts = {tp: f.log_start_offset for tp, f in self._logs.items() if f.log_dir == directory.path}
        directory.write_offsets(checkpoints.LOG_STARTS, self._log_starts_to_keep(starts))

    # -- in the background ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Flushes, checkpoints and retention until cancelled. A directory that fails is reported and left out."""
        next_checkpoint = next_retention = self._clock.monotonic()
        next_checkpoint += self._checkpoint_s
        next_retention += self._retention_check_s
        while True:
            await asyncio.sleep(FLUSH_CHECK_S)
            now = self._clock.monotonic()
            try:
                await self._flush_due(now)
                if now >= next_checkpoint:
                    next_checkpoint = now + self._checkpoint_s
                    await self.checkpoint_recovery_points()
                    await self.checkpoint_log_starts()
                if now >= next_retention:
                    next_retention = now + self._retention_check_s
                    self.delete_old_segments()
            except LogDirFailed as error:
                log.error("%s", error)
                self.on_log_dir_failure(error.directory)

    async def _flush_due(self, now: float) -> None:
        """Logs that rolled, and those whose flush interval in messages or time is over."""
        rolled, self._rolled = self._rolled, set()
        for tp, found in list(self._logs.items()):
            unflushed = found.log_end_offset - found.recovery_point
            since = self._last_flush.setdefault(tp, now)
            if unflushed == 0:
                self._last_flush[tp] = now
            elif (
                found in rolled
                or unflushed >= found.config.flush_messages
                or (now - since) * 1000 >= found.config.flush_ms
            ):
                await found.flush()
                self._last_flush[tp] = now

    def delete_old_segments(self) -> int:
        """Retention of every log, never past the high watermark (INV-22). Returns how many segments went."""
        if self.high_watermark_of is None:
            return 0
        count = 0
        for tp, found in list(self._logs.items()):
            try:
                count += found.delete_old_segments(self.high_watermark_of(tp), self._clock.wall_ms())
            except OSError as error:
                raise LogDirFailed(found.log_dir, error) from error
        return count
