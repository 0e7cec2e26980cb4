"""What a failure of a log's disk is to those who use the log (LOG-6, FLT-28..30)."""

from __future__ import annotations

from broker.storage.disk import disk_errors
from protocol.errors import ErrorCode, KafkaError


class LogDirFailed(KafkaError):
    """The disk under a log failed: KAFKA_STORAGE_ERROR for the client (LOG-6).

    Storage calls its listener (`LogListener`, `DirectoryListener`) before it raises this error. The caller therefore finds the
    directory and its replicas already offline. The text is for the broker's log; no path is sent to a client.
    """

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR)
        self.args = (f"log directory {directory} failed: {error}",)
        self.directory = directory
        self.error = error


class LogUnavailable(LogDirFailed):
    """One log cannot be used, although its disk works (`disk_errors`): KAFKA_STORAGE_ERROR for its partition.

    `is_passing`: the process lacks a descriptor or memory, and the same call may succeed later; nothing was changed.
    """

    def __init__(self, directory: str, error: OSError, *, is_passing: bool) -> None:
        super().__init__(directory, error)
        self.args = (f"{error} (the disk works)",)
        self.is_passing = is_passing


def failure_of(directory: str, error: OSError, *, is_lasting: bool = False) -> LogDirFailed:
    """The exception for a log in the directory: LogUnavailable if the disk works, else LogDirFailed.

    `is_lasting`: the log stays unusable even if the error itself is temporary.
    """
    if disk_errors.is_passing(error) or disk_errors.is_of_one_path(error):
        return LogUnavailable(directory, error, is_passing=disk_errors.is_passing(error) and not is_lasting)
    return LogDirFailed(directory, error)


def is_passing(failure: Exception) -> bool:
    """True if the same call may succeed later."""
    if isinstance(failure, OSError):
        return disk_errors.is_passing(failure)
    return isinstance(failure, LogUnavailable) and failure.is_passing
