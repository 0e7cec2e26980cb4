"""The checkpoints of all log directories: which directory's file has the offset of which log (LOG-3).

A log's offsets are in the files of its own directory only. An entry of a log that was deleted, or moved to another directory,
must not be taken for that of a log which is made there later: after a crash that one would not be verified (BUG-24).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from broker.storage import checkpoints
from broker.storage.disk.disk_errors import is_passing
from broker.storage.log import Log, LogDirFailed, failure_of
from broker.storage.log_directory import LogDirectory
from protocol.types import TopicPartition

Report = Callable[[LogDirFailed], None]
"""Is told of a log directory that failed."""

ALL = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS)


class OffsetCheckpoints:
    """Reads and writes them. `forgotten` are logs that are gone, which the files may still name."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self.forgotten: set[TopicPartition] = set()
        self._directories = directories
        self._turns = itertools.count(1)

    def high_watermarks(self, directories: Mapping[TopicPartition, str], report: Report) -> dict[TopicPartition, int]:
        """Of the logs that lie where `directories` says. A directory that cannot be read is reported, and left out.

        Raises LogUnavailable when it can be read later.
        """
        marks: dict[TopicPartition, int] = {}
        for directory in self._directories:
            if directory.is_online:
                try:
                    offsets = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
                except OSError as error:
                    _report(directory, error, report)
                    continue
                marks |= {tp: mark for tp, mark in offsets.items() if directories.get(tp) == directory.path}
        return marks

    async def write(self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """In a thread. False: a later one was faster, and is on the disk. Raises OSError."""
        turn = next(self._turns)
        return await asyncio.get_running_loop().run_in_executor(None, directory.write_offsets, name, offsets, turn)

    def write_points_now(self, directory: LogDirectory, logs: Sequence[Log]) -> None:
        """Recovery points and log starts, in this thread. Raises OSError."""
        directory.write_offsets(checkpoints.RECOVERY_POINTS, recovery_points(logs), next(self._turns))
        directory.write_offsets(checkpoints.LOG_STARTS, log_starts(logs), next(self._turns))

    def forget_deleted(self, report: Report) -> None:
        """Before a log is made. A directory where that is not possible is reported: nothing is made there any more.

        Raises LogUnavailable when it is possible later.
        """
        for directory in self._directories:
            if directory.is_online:
                try:
                    self.forget(directory, self.forgotten)
                except OSError as error:
                    _report(directory, error, report)
        self.forgotten.clear()

    def forget(self, directory: LogDirectory, partitions: Collection[TopicPartition]) -> None:
        """These have no log in that directory. Raises OSError."""
        for name in ALL:
            offsets = directory.read_offsets(name)
            kept = {tp: offset for tp, offset in offsets.items() if tp not in partitions}
            if len(kept) < len(offsets):
                directory.overwrite_offsets(name, kept, next(self._turns))


def _report(directory: LogDirectory, error: OSError, report: Report) -> None:
    failure = failure_of(directory.path, error) if is_passing(error) else LogDirFailed(directory.path, error)
    report(failure)
    if is_passing(error):
        raise failure from error


def recovery_points(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """What is written of these logs."""
    return {found.topic_partition: found.recovery_point for found in logs}


def log_starts(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Only starts that the first segment's name does not tell, as Kafka does."""
    return {
        found.topic_partition: found.log_start_offset
        for found in logs
        if found.log_start_offset > found.segments[0].base_offset
    }
