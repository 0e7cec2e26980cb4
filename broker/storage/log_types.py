"""What a log takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.storage.disk import disk_errors
from broker.storage.disk.filesystem import Buffer
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.producers.log_producers import LogProducers
from broker.storage.segment import Segment

PARTITION_METADATA = "partition.metadata"


class LogDirFailed(Exception):
    """The disk under a log failed: KAFKA_STORAGE_ERROR for the client, its log directory goes offline (LOG-6)."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(f"log directory {directory} failed: {error}")
        self.directory = directory
        self.error = error


class LogUnavailable(LogDirFailed):
    """One log cannot be used: KAFKA_STORAGE_ERROR for its partition, and nothing is wrong with the disk (`disk_errors`).

    `is_passing`: the process lacks a descriptor or memory, and the same call may succeed later; nothing was changed.
    """

    def __init__(self, directory: str, error: OSError, *, is_passing: bool) -> None:
        super().__init__(directory, error)
        self.args = (f"{error}, which is no failure of the disk",)
        self.is_passing = is_passing


def failure_of(directory: str, error: OSError, *, is_lasting: bool = False) -> LogDirFailed:
    """What the error means for a log in that directory: LogUnavailable, or that the directory has failed.

    `is_lasting`: the log stays unusable even if the error itself passes.
    """
    if disk_errors.is_passing(error) or disk_errors.is_of_one_path(error):
        return LogUnavailable(directory, error, is_passing=disk_errors.is_passing(error) and not is_lasting)
    return LogDirFailed(directory, error)


def is_passing(failure: LogDirFailed) -> bool:
    """The same call may succeed later."""
    return isinstance(failure, LogUnavailable) and failure.is_passing


class AppendInfo(NamedTuple):
    """What an append did. `log_append_time_ms` is -1 for CreateTime.

    `size_bytes` is 0 for a duplicate, which was not written again: all else is of the batch that is in the log.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    max_timestamp: int
    size_bytes: int

    @property
    def is_duplicate(self) -> bool:
        return self.size_bytes == 0


class ReadResult(NamedTuple):
    """Whole batches (the last may be cut by the size limit), in order."""

    records: Sequence[Buffer]
    size: int


NOTHING = ReadResult((), 0)


@dataclass(slots=True)
class LogParts:
    """What recovery found on disk; see `broker.storage.recovery`. `is_synced`: after a clean stop."""

    segments: list[Segment]
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    topic_id: str | None
    is_synced: bool
    producers: LogProducers
