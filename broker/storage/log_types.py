"""Results and parts of a log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.process.rare_lines import RareLine
from broker.storage.failures import LogUnavailable
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log_files import LogFiles
from broker.storage.producers.log_producers import LogProducers
from broker.storage.segment import Segment
from protocol.kafka.framing import StoredBytes
from protocol.types import Buffer

log = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"
REPORTED_EVERY_S = 60.0


class UnavailableLogs:
    """Reports logs that cannot be used although their disk works, at most once a minute for each errno.

    Otherwise a lack of descriptors would write a line for each of ten thousand partitions. Errors in between are counted.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lines: dict[int | None, RareLine] = {}

    def report(self, error: LogUnavailable) -> None:
        number = error.error.errno
        line = self._lines.get(number)
        if line is None:
            line = self._lines[number] = RareLine(REPORTED_EVERY_S, self._monotonic)
        others_count = line.happened()
        if others_count is None:
            return
        others = f" ({others_count} more since the last report)" if others_count else ""
        remedy = (
            "the broker will retry"
            if error.is_passing
            else "its partition answers KAFKA_STORAGE_ERROR, all others are served"
        )
        log.error("a log cannot be used now, %s: %s%s", remedy, error, others)


class AppendOrigin(Enum):
    """Who a batch comes from, which decides how its producer is checked (Kafka's AppendOrigin)."""

    CLIENT = "a producer: its epoch and sequence are checked, and that its transaction is ongoing"
    COORDINATOR = "a coordinator of this broker or of another: markers, and offsets within a transaction; only its epoch is checked"
    RAISED_EPOCH = (
        "the transaction coordinator: a marker in the epoch after that of its transaction (transaction version 2)"
    )
    REPLICATION = "the leader, or this log itself when it is read again: nothing is checked"


class AppendInfo(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 for CreateTime.

    A duplicate is not written again: `size_bytes` is 0, the offsets are those of the batch in the log, and both times are that
    batch's largest timestamp (as in Kafka, also for CreateTime).
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
    """Batches in order. The size limit may cut the last one. `stored` has them in place of `records` if the caller may send them.

    `aborted`: (producer id, first offset) of aborted transactions that may have records in the batches, if they were asked for.
    """

    records: Sequence[Buffer]
    size: int
    aborted: Sequence[tuple[int, int]] = ()
    stored: StoredBytes | None = None


NOTHING = ReadResult((), 0)


@dataclass(slots=True)
class LogParts:
    """The parts of a log that `broker.storage.recovery` opened or created. `is_synced`: all file names are on the disk."""

    segments: list[Segment]
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    topic_id: str | None
    is_synced: bool
    producers: LogProducers
    files: LogFiles
