"""The checkpoints of all log directories: recovery points, log starts, high watermarks (LOG-3).

A log's offsets are in the files of its own directory only. The entry of a log that was deleted or moved to another directory
must not be used for a log that is created there later: after a crash the new log would not be verified (BUG-24).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from broker.storage import checkpoints
from broker.storage.compaction.cleaner_checkpoint import CleanerCheckpoint
from broker.storage.directories.log_directories import LogDirectories
from broker.storage.directories.log_directory import LogDirectory
from broker.storage.disk.disk_errors import is_passing
from broker.storage.log import Log, LogDirFailed, LogUnavailable, failure_of
from protocol.types import TopicPartition

Report = Callable[[LogDirFailed], None]
OffsetsOf = Callable[[Iterable[Log]], dict[TopicPartition, int]]

ALL = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS)
PAUSE_S = 0.02
"""Pause between two checkpoints after cuts. Cuts come in slices, and each checkpoint names all logs of its directory."""


class OffsetCheckpoints:
    """Reads and writes the checkpoints.

    `logs_in` returns the logs in a directory, including future copies; `is_served` is False for copies. `report` is called for
    each failure before it is raised. `forgotten` are removed logs that the files may still name.
    """

    def __init__(
        self,
        directories: LogDirectories,
        cleaned: CleanerCheckpoint,
        logs_in: Callable[[LogDirectory], list[Log]],
        is_served: Callable[[Log], bool],
        report: Report,
    ) -> None:
        self.forgotten: set[TopicPartition] = set()
        self.are_behind = False
        """The next tick writes the recovery points."""
        self.lowered = LoweredPoints(self._write_points, self._write_points_now, report)
        self._directories = directories
        self._cleaned = cleaned
        self._logs_in = logs_in
        self._is_served = is_served
        self._report = report
        self._turns = itertools.count(1)

    # -- high watermarks ------------------------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks of the logs that are served. A directory whose checkpoint cannot be read fails.

        Raises LogUnavailable if the error is temporary.
        """
        marks: dict[TopicPartition, int] = {}
        for directory in self._directories.online():
            try:
                offsets = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
            except OSError as error:
                self._failed(directory, error)
                continue
            served = (log.topic_partition for log in self._logs_in(directory) if self._is_served(log))
            marks |= {tp: offsets[tp] for tp in served if tp in offsets}
        return marks

    async def write_high_watermarks(self, mark_of: Callable[[TopicPartition], int | None]) -> None:
        """Writes the high watermark of each log into the file of its directory. `mark_of`: None if it is unknown. Raises LogDirFailed."""

        is_served = self._is_served

        def marks_of(found: Iterable[Log]) -> dict[TopicPartition, int]:
            return {
                tp: mark for log in found if (mark := mark_of(tp := log.topic_partition)) is not None and is_served(log)
            }

        await self._write_all(checkpoints.HIGH_WATERMARKS, marks_of)

    # -- recovery points and log starts ---------------------------------------------------------------------------

    async def write_recovery_points(self) -> None:
        """Raises LogDirFailed."""
        await self._write_all(checkpoints.RECOVERY_POINTS, _recovery_points)

    async def write_log_starts(self) -> None:
        """Raises LogDirFailed."""
        await self._write_all(checkpoints.LOG_STARTS, _log_starts)

    async def write_at_stop(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        await self._write(directory, checkpoints.RECOVERY_POINTS, _recovery_points)
        await self._write(directory, checkpoints.LOG_STARTS, _log_starts)

    async def _write_all(self, name: str, offsets_of: OffsetsOf) -> None:
        failure: LogDirFailed | None = None
        for directory in self._directories.online():
            try:
                if name == checkpoints.RECOVERY_POINTS:
                    await self._write_points_of(directory)
                else:
                    await self._write(directory, name, offsets_of)
            except OSError as error:
                failure = failure_of(directory.path, error)
                self._report(failure)
                self.are_behind |= isinstance(failure, LogUnavailable)  # retried with the next tick
        if failure is not None:
            raise failure

    async def _write(self, directory: LogDirectory, name: str, offsets_of: OffsetsOf) -> None:
        """Writes the offsets of the directory's logs, in a thread. Raises OSError.

        A write that was started later, and was faster, may have been one that only removes entries (`forget`): it does not have these
        offsets, and a compaction needs them. Logs may have been deleted and made again meanwhile, so the offsets are collected again.
        """
        is_written = False
        while directory.is_online and not is_written:
            offsets, turn = offsets_of(self._logs_in(directory)), next(self._turns)
            write = asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, name, offsets, turn)
            is_written = await write

    async def _write_points_of(self, directory: LogDirectory) -> None:
        behind: dict[Log, int] = {}
        # What a lowered point must find on the disk comes first. Meanwhile another log may be cut.
        while (newer := self.lowered.behind(directory.path)).keys() - behind.keys():
            behind = newer
            await self._cleaned.lower(directory.path)
        await self._write(directory, checkpoints.RECOVERY_POINTS, _recovery_points)
        self.lowered.written(behind)

    async def _write_points(self, path: str) -> None:
        """Writes the recovery points of a directory in which logs were cut. Raises OSError."""
        for directory in self._directories:
            if directory.path == path:
                await self._write_points_of(directory)

    def _write_points_now(self, path: str) -> None:
        """As `_write_points`, but on the loop, and with the log starts. Raises OSError."""
        for directory in self._directories.online():
            if directory.path == path:
                self._cleaned.lower_now(path)
                logs = self._logs_in(directory)
                directory.write_offsets(checkpoints.RECOVERY_POINTS, _recovery_points(logs), next(self._turns))
                directory.write_offsets(checkpoints.LOG_STARTS, _log_starts(logs), next(self._turns))
                self.lowered.written(self.lowered.behind(path))

    # -- logs that were removed -----------------------------------------------------------------------------------

    def forget_removed(self) -> None:
        """Removes the entries of `forgotten` logs. Call before a log is created. A directory that fails is reported.

        Raises LogUnavailable if the error is temporary.
        """
        for directory in self._directories.online():
            try:
                self.forget(directory, self.forgotten)
            except OSError as error:
                self._failed(directory, error)
        self.forgotten.clear()

    def forget(self, directory: LogDirectory, partitions: Collection[TopicPartition]) -> None:
        """Removes the entries of partitions that have no log in the directory. Raises OSError."""
        for name in ALL:
            offsets = directory.read_offsets(name)
            kept = {tp: offset for tp, offset in offsets.items() if tp not in partitions}
            if len(kept) < len(offsets):
                directory.overwrite_offsets(name, kept, next(self._turns))

    def _failed(self, directory: LogDirectory, error: OSError) -> None:
        failure = failure_of(directory.path, error) if is_passing(error) else LogDirFailed(directory.path, error)
        self._report(failure)
        if is_passing(error):
            raise failure from error


def _recovery_points(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """The recovery points to write for these logs."""
    return {found.topic_partition: found.recovery_point for found in logs}


def _log_starts(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """The log starts that are above the first segment's base offset. As in Kafka, others are not written."""
    return {
        found.topic_partition: found.log_start_offset
        for found in logs
        if found.log_start_offset > found.segments[0].base_offset
    }


class LoweredPoints:
    """Logs whose recovery point a cut has lowered. The lower point is on the disk before anything is appended (INV-21).

    The same holds for the offset up to which a log is clean (LOG-4). Records appended after a cut below the recovery point are
    not synced, so a power loss must not bring back a checkpoint with the old point. The cut itself needs no checkpoint: the rest
    of the log is synced, and a point beyond the log's end counts as its end. A cut therefore only adds the log here. In a rolling
    restart thousands of partitions are cut at about the same time; a thread writes one checkpoint for all logs of a directory.
    An append that does not wait for the thread writes that checkpoint itself.

    `write` writes a directory's checkpoint in a thread, `write_now` on the loop. Both call `written`, and raise OSError.
    """

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        write_now: Callable[[str], None],
        report: Callable[[LogDirFailed], None],
    ) -> None:
        self._write = write
        self._write_now = write_now
        self._report = report
        self._behind: dict[Log, None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._wrote = asyncio.Event()

    def lowered(self, log: Log) -> None:
        """The log's point was lowered. Without a running loop it is written at once, which raises OSError."""
        self._behind[log] = None
        if self._writing is None or self._writing.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._write_now(log.log_dir)
                return
            self._writing = loop.create_task(self._write_all())

    def needed(self, log: Log) -> None:
        """Writes the checkpoint now, because the log is about to be written. Raises OSError."""
        self._write_now(log.log_dir)
        log.is_point_behind = False
        self._behind.pop(log, None)

    async def settled(self, log: Log) -> None:
        """Waits for the checkpoint that the log's next append needs, unless the write fails."""
        while log in self._behind and self._writing is not None and not self._writing.done():
            await self._wrote.wait()

    async def done(self) -> None:
        """Waits for running writes."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    def forget(self, log: Log) -> None:
        """The log was removed, or failed."""
        self._behind.pop(log, None)

    def behind(self, log_dir: str) -> dict[Log, int]:
        """The directory's logs that wait for a checkpoint, and how often each was cut."""
        return {log: log.cuts for log in self._behind if log.log_dir == log_dir}

    def written(self, behind: Mapping[Log, int]) -> None:
        """The points that these logs had when `behind` returned them are on the disk, or their directory has failed."""
        for log, cuts in behind.items():
            # A log that was cut again meanwhile waits for the next checkpoint.
            if log in self._behind and log.cuts == cuts:
                log.is_point_behind = False
                del self._behind[log]

    async def _write_all(self) -> None:
        is_first = True
        while self._behind:
            if not is_first:
                await asyncio.sleep(PAUSE_S)
            is_first = False
            try:
                for log_dir in {log.log_dir for log in self._behind}:
                    await self._write_one(log_dir)
            finally:
                self._wrote.set()
                self._wrote = asyncio.Event()

    async def _write_one(self, log_dir: str) -> None:
        try:
            await self._write(log_dir)
        except OSError as error:
            # `is_point_behind` stays set: the log's next append writes the checkpoint itself.
            for log in self.behind(log_dir):
                del self._behind[log]
            self._report(failure_of(log_dir, error))
