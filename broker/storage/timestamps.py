"""Finding records by their timestamps in a log's segments (CLI-1: ListOffsets by time)."""

from __future__ import annotations

from collections.abc import Sequence

from broker.storage.segment import NO_TIMESTAMP, Segment
from protocol.kafka.record_batch import decode_records

Found = tuple[int, int, int]
"""(timestamp in ms, offset, leader epoch) of a record"""


def first_since(segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int) -> Found | None:
    """The first record at or after `log_start_offset` with at least that timestamp. Raises OSError, KafkaError."""
    for segment in segments:
        if segment.newest_timestamp() >= timestamp_ms:
            found = _first_in(segment, timestamp_ms, log_start_offset)
            if found is not None:
                return found
    return None


def newest(segments: Sequence[Segment]) -> int:
    """The largest timestamp in the log, NO_TIMESTAMP when there is none."""
    return max((segment.newest_timestamp() for segment in segments), default=NO_TIMESTAMP)


def _first_in(segment: Segment, timestamp_ms: int, log_start_offset: int) -> Found | None:
    """The time index tells the offset before which no record has that timestamp; one batch is decoded at the end."""
    segment.load_indexes()
    entry = segment.time_index.entry_before(timestamp_ms)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.rebuild_indexes()
        entry = segment.time_index.entry_before(timestamp_ms)
    start = segment.position_of(max(entry[1] if entry else 0, log_start_offset), may_block=True)
    for position, header in segment.headers(start):
        if header.max_timestamp < timestamp_ms:
            continue
        for record in decode_records(segment.read(position, header.size_in_bytes, may_block=True)):
            if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                return record.timestamp, record.offset, header.partition_leader_epoch
    return None
