"""Who hears of what happens to logs and to their directories (Kafka: LogDirFailureChannel).

A module of its own: the broker's listeners are not compiled, and a class that is not compiled cannot inherit from one that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from protocol.types import TopicPartition

if TYPE_CHECKING:
    from broker.storage.failures import LogDirFailed
    from broker.storage.log import Log


class LogListener:
    """Receives the events of logs. This base class only removes discarded files; it is for a log without a LogManager."""

    def failed(self, log: Log, failure: LogDirFailed) -> None:
        """A disk call of the log failed. The log raises `failure` next (Kafka: LogDirFailureChannel)."""

    def rolled(self, log: Log) -> None:
        """The log has started a new segment."""

    def timed_flush(self) -> AbstractContextManager[object]:
        """Times a flush, which happens in this context."""
        return nullcontext()

    def flush_is_owed(self, log: Log) -> None:
        """The log must be flushed before more of it is claimed (`Log.claimable_end`)."""

    def may_claim_more(self, log: Log) -> None:
        """A flush that the log owed has ended: `Log.claimable_end` has moved, perhaps not up to the log end."""

    def has_hole(self, log: Log) -> None:
        """The log may end after a hole that compaction made."""

    def was_cut(self, log: Log) -> None:
        """The log end moved back."""

    def point_lowered(self, log: Log) -> None:
        """The recovery point, or the offset up to which the log is clean, moved back (`LoweredPoints`). Raises OSError."""

    def before_write_after_cut(self, log: Log) -> None:
        """The log is about to be written, but a checkpoint still has the recovery point from before a cut. Raises OSError."""

    async def until_appendable(self, log: Log) -> None:
        """Waits for the checkpoint that the log's next append needs after a cut."""

    def epochs_cut(self, log: Log) -> None:
        """The file of the log's leader epochs may have some that were dropped."""

    def discard(self, log: Log, paths: Sequence[str]) -> None:
        """The log no longer needs these files."""
        log.unlink(paths)


class DirectoryListener:
    """Is called when logs of a LogManager cannot be served any more. This base class does nothing."""

    def directory_failed(self, directory: str, tp: TopicPartition | None = None) -> None:
        """The log directory's disk failed. `tp`: the partition whose log was being opened, created, removed or replaced, if any."""

    def replica_failed(self, tp: TopicPartition) -> None:
        """The partition's log cannot be used, created or removed, although the disk works."""
