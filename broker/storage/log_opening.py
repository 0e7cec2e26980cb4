"""Taking the log directories at start: locks, what a crash interrupted between two of them, and all logs in one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.storage import checkpoints, future_logs
from broker.storage.disk.disk_errors import is_of_one_path
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log, LogDirFailed
from broker.storage.log_directory import LogDirectory, LogDirectoryError
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

OpenLog = Callable[[LogDirectory, TopicPartition, str, int, int, int], Log]
"""(directory, partition, path, recovery point, log start, up to where it was compacted)"""


def acquire_all(filesystem: FileSystem, directories: Sequence[LogDirectory]) -> list[str]:
    """Locks them, and finishes interrupted moves. Returns why some cannot be used, which are offline. Raises LogDirectoryError."""
    failures = []
    for directory in directories:
        try:
            directory.acquire()
        except OSError as error:
            failures.append(cannot_be_used(directory, error))
    if not failures:
        try:
            future_logs.settle(filesystem, directories)
        except LogDirFailed as failed:
            broken = (directory for directory in directories if directory.path == failed.directory)
            failures += [cannot_be_used(directory, failed.error) for directory in broken]
    return failures


def cannot_be_used(directory: LogDirectory, error: OSError) -> str:
    """The directory is offline. Returns why, for people."""
    log.error("log directory %s cannot be used: %s", directory.path, error)
    directory.is_online = False
    directory.release()
    return f"{directory.path}: {error.strerror or error}"


def of_each(
    directories: Sequence[LogDirectory],
    look: Callable[[LogDirectory], object],
    report: Callable[[LogDirFailed], None],
) -> None:
    """Those that are online; what fails is reported. Raises LogDirectoryError when none is left, and what `look` raises."""
    for directory in directories:
        if directory.is_online:
            try:
                look(directory)
            except OSError as error:
                report(LogDirFailed(directory.path, error))
    if not any(directory.is_online for directory in directories):
        paths = ", ".join(directory.path for directory in directories)
        raise LogDirectoryError(f"no log directory can be used any more: {paths} have failed")


def open_all(
    filesystem: FileSystem, directory: LogDirectory, open_log: OpenLog, *, keeps_deleted: bool
) -> tuple[list[Log], set[TopicPartition]]:
    """All logs in the directory, and the partitions that only its checkpoints name. Raises OSError."""
    directory.take_clean_marker()
    points = directory.read_offsets(checkpoints.RECOVERY_POINTS)
    starts = directory.read_offsets(checkpoints.LOG_STARTS)
    marks = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
    cleaned = directory.read_offsets(checkpoints.CLEANED)
    opened: list[Log] = []
    try:
        for tp, path in directory.partitions(keeps_deleted=keeps_deleted):
            try:
                opened.append(open_log(directory, tp, path, points.get(tp, 0), starts.get(tp, 0), cleaned.get(tp, 0)))
            except OSError as error:
                if not is_of_one_path(error):
                    raise
                log.error("%s cannot be opened, and is left alone; the others are: %s", path, error)
                continue
            last = opened[-1].segments[-1]
            # Most are not used at once, and a process may not have so many files open.
            if not last.rest() and filesystem.in_use.are_far_too_many:
                last.sync_to_rest()
    except BaseException:
        for found in opened:
            found.close()
        raise
    if any(found.recovery_point < points.get(found.topic_partition, 0) for found in opened):
        # Before anything is appended: what comes there is not synced.
        lowered = {found.topic_partition: found.recovery_point for found in opened}
        directory.write_offsets(checkpoints.RECOVERY_POINTS, lowered, 0)
    return opened, (points.keys() | starts.keys() | marks.keys() | cleaned.keys()) - {
        found.topic_partition for found in opened
    }
