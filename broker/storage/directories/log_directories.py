"""All directories of `log.dirs` (LOG-6): locks them, chooses the one for a new log, and opens the logs in them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from broker.storage import checkpoints
from broker.storage.closed_logs import ClosedLog
from broker.storage.compaction import cleaner_checkpoint
from broker.storage.directories import future_logs
from broker.storage.directories.log_directory import LogDirectory, LogDirectoryError
from broker.storage.disk.disk_errors import is_of_one_path
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log, LogDirFailed
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

OpenLog = Callable[[LogDirectory, TopicPartition, str, int, int, int, ClosedLog | None], Log]
"""(directory, partition, path, recovery point, log start, offset up to which the log may have holes, the log as it was closed) -> the
open log"""


class LogDirectories:
    """The directories are independent: when one fails, only its own logs go offline, and `report` is called."""

    def __init__(self, filesystem: FileSystem, paths: Sequence[str], report: Callable[[LogDirFailed], None]) -> None:
        self._filesystem = filesystem
        self._directories = [LogDirectory(filesystem, path) for path in paths]
        self._report = report
        # Number of logs in each directory, or None to count again. Counting ten thousand logs for each new one is too slow.
        self._counts: Counter[str] | None = None

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if directory.is_online]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all configured directories."""
        return tuple(directory.path for directory in self._directories)

    @property
    def offline_paths(self) -> tuple[str, ...]:
        """The paths of the directories that failed."""
        return tuple(directory.path for directory in self._directories if not directory.is_online)

    def spaces(self) -> dict[str, tuple[int, int] | None]:
        """Path of each directory -> (bytes of its volume, bytes free), None for one that failed. Blocks: for a thread."""
        return {directory.path: directory.space() if directory.is_online else None for directory in self._directories}

    # -- at a start -----------------------------------------------------------------------------------------------

    def acquire(self) -> list[str]:
        """Locks the directories, and finishes interrupted moves. Blocks: for a thread. Raises LogDirectoryError.

        Returns a reason for each directory that cannot be used; these are offline.
        """
        failures = []
        for directory in self._directories:
            try:
                directory.acquire()
            except OSError as error:
                failures.append(cannot_be_used(directory, error))
        if not failures:
            try:
                future_logs.settle(self._filesystem, self._directories)
            except LogDirFailed as failed:
                broken = (directory for directory in self._directories if directory.path == failed.directory)
                failures += [cannot_be_used(directory, failed.error) for directory in broken]
        return failures

    def check_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks every existing `meta.properties`. Raises LogDirectoryError for another broker's or cluster's directory."""
        self._look_at_each(lambda directory: directory.check_meta(broker_id, cluster_id))

    def ensure_meta(self, broker_id: int, cluster_id: str) -> None:
        """Checks or writes every directory's `meta.properties`. Raises LogDirectoryError."""
        self._look_at_each(lambda directory: directory.ensure_meta(broker_id, cluster_id))

    def _look_at_each(self, look: Callable[[LogDirectory], object]) -> None:
        """Calls `look` for each online directory. Reports one that fails. Raises LogDirectoryError when none is left."""
        for directory in self.online():
            try:
                look(directory)
            except OSError as error:
                self._report(LogDirFailed(directory.path, error))
        if not self.online():
            raise LogDirectoryError(f"no log directory can be used any more: {', '.join(self.paths)} have failed")

    # -- where a new log is made ----------------------------------------------------------------------------------

    def for_new(self, wanted: str | None, logs: Callable[[], Iterable[Log]]) -> LogDirectory | None:
        """The directory that an admin chose (`wanted`), else the online one with the fewest logs. None if there is none online."""
        online = self.online()
        if wanted is not None:
            online = [directory for directory in online if directory.path == wanted]
        if len(online) < 2:
            return online[0] if online else None
        if self._counts is None:
            self._counts = Counter(existing.log_dir for existing in logs())
        counts = self._counts
        chosen = min(online, key=lambda directory: counts[directory.path])
        counts[chosen.path] += 1
        return chosen

    def count_again(self) -> None:
        """Logs were removed or moved: the next `for_new` counts them again."""
        self._counts = None


def cannot_be_used(directory: LogDirectory, error: OSError) -> str:
    """Takes the directory offline. Returns the reason as text."""
    log.error("log directory %s cannot be used: %s", directory.path, error)
    directory.is_online = False
    directory.release()
    return f"{directory.path}: {error.strerror or error}"


def open_all(
    filesystem: FileSystem, directory: LogDirectory, open_log: OpenLog, *, keeps_deleted: bool
) -> tuple[list[Log], set[TopicPartition]]:
    """All logs in the directory, and the partitions that only its checkpoints name. Raises OSError."""
    closed = directory.take_clean_marker()
    points = directory.read_offsets(checkpoints.RECOVERY_POINTS)
    starts = directory.read_offsets(checkpoints.LOG_STARTS)
    marks = directory.read_offsets(checkpoints.HIGH_WATERMARKS)
    cleaned, holes = cleaner_checkpoint.stored(directory)
    opened: list[Log] = []
    try:
        for tp, path in directory.partitions(keeps_deleted=keeps_deleted):
            try:
                as_closed = closed.take(path.rpartition("/")[2]) if closed else None
                opened.append(
                    open_log(directory, tp, path, points.get(tp, 0), starts.get(tp, 0), holes.get(tp, 0), as_closed)
                )
            except OSError as error:
                if not is_of_one_path(error):
                    raise
                log.error("%s cannot be opened, and is skipped: %s", path, error)
                continue
            last = opened[-1].segments[-1]
            # Most logs are not used soon, and the process may not keep a file open for each.
            if not last.rest() and filesystem.in_use.are_far_too_many:
                last.sync_to_rest()
    except BaseException:
        for found in opened:
            found.close()
        raise
    if any(found.recovery_point < points.get(found.topic_partition, 0) for found in opened):
        # The checkpoint is lowered before anything is appended, as records above the new point will not be synced.
        lowered = {found.topic_partition: found.recovery_point for found in opened}
        directory.write_offsets(checkpoints.RECOVERY_POINTS, lowered, 0)
    return opened, (points.keys() | starts.keys() | marks.keys() | cleaned.keys() | holes.keys()) - {
        found.topic_partition for found in opened
    }
