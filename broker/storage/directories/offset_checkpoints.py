"""The checkpoints of all log directories: recovery points, log starts, high watermarks (LOG-3).

A log's offsets are in the files of its own directory only. An entry of a log that was deleted, or moved to another directory,
must not be taken for that of a log which is made there later: after a crash that one would not be verified (BUG-24).
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

ALL = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS)
PAUSE_S = 0.02
"""Between two checkpoints: cuts come in slices, and each checkpoint names all logs of its directory."""


class OffsetCheckpoints:
    """Reads and writes them.

    `logs_in` are the logs in a directory, copies included. `is_served` leaves out the copies. `report` is called for each
    failure, before it is raised. `forgotten` are logs that were removed, which the files may still name.
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
        """The recovery points are to be written with the next tick."""
        self.lowered = LoweredPoints(self._write_points, self._write_points_now, report)
        self._directories = directories
        self._cleaned = cleaned
        self._logs_in = logs_in
        self._is_served = is_served
        self._report = report
        self._turns = itertools.count(1)

    # -- high watermarks ------------------------------------------------------------------------------------------

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """Of the logs that are served. A directory that cannot be read has failed, and is left out.

        Raises LogUnavailable when it can be read later.
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

    async def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """`marks` of other directories' logs are not mixed up. Raises LogDirFailed."""

        def marks_of(found: Iterable[Log]) -> dict[TopicPartition, int]:
            served = (log.topic_partition for log in found if self._is_served(log))
            return {tp: marks[tp] for tp in served if tp in marks}

        await self._write_all(checkpoints.HIGH_WATERMARKS, marks_of)

    # -- recovery points and log starts ---------------------------------------------------------------------------

    async def write_recovery_points(self) -> None:
        """Raises LogDirFailed, as the others."""
        await self._write_all(checkpoints.RECOVERY_POINTS, _recovery_points)

    async def write_log_starts(self) -> None:
        await self._write_all(checkpoints.LOG_STARTS, _log_starts)

    async def write_at_stop(self, directory: LogDirectory) -> None:
        """Raises OSError."""
        logs = self._logs_in(directory)
        await self._write(directory, checkpoints.RECOVERY_POINTS, _recovery_points(logs))
        await self._write(directory, checkpoints.LOG_STARTS, _log_starts(logs))

    async def _write_all(self, name: str, offsets_of: Callable[[Iterable[Log]], dict[TopicPartition, int]]) -> None:
        failure: LogDirFailed | None = None
        for directory in self._directories.online():
            offsets = offsets_of(self._logs_in(directory))
            try:
                if name == checkpoints.RECOVERY_POINTS:
                    await self._write_points_of(directory, offsets)
                else:
                    await self._write(directory, name, offsets)
            except OSError as error:
                failure = failure_of(directory.path, error)
                self._report(failure)
                self.are_behind |= isinstance(failure, LogUnavailable)  # once more with the next tick
        if failure is not None:
            raise failure

    async def _write(self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """In a thread. False: a later one was faster, and is on the disk. Raises OSError."""
        turn = next(self._turns)
        return await asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, name, offsets, turn)

    async def _write_points_of(self, directory: LogDirectory, points: dict[TopicPartition, int]) -> None:
        behind = self.lowered.behind(directory.path)
        if behind:
            await self._cleaned.lower(directory.path)
        # One that was overtaken by a later one is not what the disk has.
        if await self._write(directory, checkpoints.RECOVERY_POINTS, points):
            self.lowered.written(behind)

    async def _write_points(self, path: str) -> None:
        """Of a directory some of whose logs were cut. Raises OSError."""
        for directory in self._directories:
            if directory.path == path and directory.is_online:
                await self._write_points_of(directory, _recovery_points(self._logs_in(directory)))
            elif directory.path == path:
                self.lowered.written(self.lowered.behind(path))

    def _write_points_now(self, path: str) -> None:
        """The same on the loop, with the log starts. Raises OSError."""
        for directory in self._directories.online():
            if directory.path == path:
                self._cleaned.lower_now(path)
                logs = self._logs_in(directory)
                directory.write_offsets(checkpoints.RECOVERY_POINTS, _recovery_points(logs), next(self._turns))
                directory.write_offsets(checkpoints.LOG_STARTS, _log_starts(logs), next(self._turns))
                self.lowered.written(self.lowered.behind(path))

    # -- logs that were removed -----------------------------------------------------------------------------------

    def forget_removed(self) -> None:
        """Before a log is made. A directory where that is not possible is reported: nothing is made there any more.

        Raises LogUnavailable when it is possible later.
        """
        for directory in self._directories.online():
            try:
                self.forget(directory, self.forgotten)
            except OSError as error:
                self._failed(directory, error)
        self.forgotten.clear()

    def forget(self, directory: LogDirectory, partitions: Collection[TopicPartition]) -> None:
        """These have no log in that directory. Raises OSError."""
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
    """What is written of these logs."""
    return {found.topic_partition: found.recovery_point for found in logs}


def _log_starts(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Only starts that differ from the first segment's name, as Kafka does."""
    return {
        found.topic_partition: found.log_start_offset
        for found in logs
        if found.log_start_offset > found.segments[0].base_offset
    }


class LoweredPoints:
    """Recovery points that a cut has lowered: on the disk before anything is appended to such a log (INV-21).

    The same holds for the offset up to which a log is clean (LOG-4). What is written after a cut below the recovery point is not
    synced, so a power loss must not bring back a checkpoint with the old point. The cut itself needs no such care: all that is
    left of the log was synced, and a point beyond the log's end is taken for its end. So a cut only notes the log here. In a
    rolling restart thousands of partitions are cut at about the same time; they wait together for one checkpoint of each
    directory, which a thread writes. An append that comes earlier writes the checkpoint itself, for all of them.

    `write` a directory's checkpoint in a thread, or `write_now`; both call `written`. Either raises OSError.
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
        """Its point was lowered. Raises OSError where there is no loop to write it later."""
        self._behind[log] = None
        if self._writing is None or self._writing.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._write_now(log.log_dir)
                return
            self._writing = loop.create_task(self._write_all())

    def needed(self, log: Log) -> None:
        """It is going to be written. Raises OSError."""
        self._write_now(log.log_dir)
        log.is_point_behind = False
        self._behind.pop(log, None)

    async def settled(self, log: Log) -> None:
        """Waits until appending to the log needs no checkpoint any more."""
        while log in self._behind and self._writing is not None and not self._writing.done():
            await self._wrote.wait()

    async def done(self) -> None:
        """Waits for what is being written."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    def forget(self, log: Log) -> None:
        """The log was removed, or failed."""
        self._behind.pop(log, None)

    def behind(self, log_dir: str) -> dict[Log, int]:
        """The directory's logs that wait for a checkpoint, and how often each was cut."""
        return {log: log.cuts for log in self._behind if log.log_dir == log_dir}

    def written(self, behind: Mapping[Log, int]) -> None:
        """What these logs said when `behind` gave them is on the disk; or their directory has failed."""
        for log, cuts in behind.items():
            # One that was cut again meanwhile waits for the next.
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
            # Each still knows that it is behind: the append that comes next writes the checkpoint itself.
            for log in self.behind(log_dir):
                del self._behind[log]
            self._report(failure_of(log_dir, error))
