"""What a log takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.storage.filesystem import Buffer
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log_producers import LogProducers
from broker.storage.segment import Segment

PARTITION_METADATA = "partition.metadata"


class LogDirFailed(Exception):
    """The disk under a log failed: KAFKA_STORAGE_ERROR for the client, its log directory goes offline (LOG-6)."""

    def __init__(self, directory: str, error: OSError) -> None:
        super().__init__(f"log directory {directory} failed: {error}")
        self.directory = directory
        self.error = error


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
