"""Finds records by their timestamps in a log's segments (CLI-1: ListOffsets by time)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from broker.storage.segment import NO_TIMESTAMP, Segment
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import (
    DECOMPRESSED_SIZE_MAX,
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    unpacked,
    unpacked_large,
)
from protocol.kafka.record_checks import STEP, times_and_keys

Found = tuple[int, int, int]
"""(timestamp in ms, offset, leader epoch) of a record"""
Search = Generator[Callable[[], Any] | None, Any, Found | None]
"""Yields None to let other work run, or a function for a thread, whose result is sent back."""
PAYLOAD_AT_ONCE = 64 * 1024
UNPACKED_AT_ONCE = 1024 * 1024
"""Limits for a batch that is unpacked on the loop: its bytes, and its unpacked bytes. A thread unpacks larger ones."""


def batch_since(segments: Sequence[Segment], timestamp_ms: int, offset: int) -> tuple[Buffer, BatchHeader] | None:
    """The first batch that ends at or after `offset` and whose largest timestamp is at least `timestamp_ms`.

    Raises KafkaError.
    """
    for segment in segments:
        if segment.next_offset > offset and segment.newest_timestamp() >= timestamp_ms:
            found = _batch_in(segment, timestamp_ms, offset)
            if found is not None:
                return found
    return None


def searching(batch: Buffer, header: BatchHeader, timestamp_ms: int, offset: int) -> Search:
    """The batch's first record at or after `offset` with at least that timestamp. Raises KafkaError for a broken batch."""
    data, at = batch, HEADER_SIZE
    if header.compression:
        data, at = (yield from _unpacking(batch, header)), 0
    if header.is_log_append_time:
        base, is_one_time = header.max_timestamp, True
    else:
        base, is_one_time = header.base_timestamp, False
    for count, (delta, time, _) in enumerate(times_and_keys(data, at, header.record_count), 1):
        timestamp = base if is_one_time else base + time
        if timestamp >= timestamp_ms and header.base_offset + delta >= offset:
            return timestamp, header.base_offset + delta, header.partition_leader_epoch
        if count % STEP == 0:
            yield None
    return None


def _unpacking(batch: Buffer, header: BatchHeader) -> Generator[Callable[[], Any], Any, Buffer]:
    corrupt = ErrorCode.CORRUPT_MESSAGE
    if len(batch) <= PAYLOAD_AT_ONCE:
        try:
            return unpacked(batch, 0, header, size_max=UNPACKED_AT_ONCE, too_large=ErrorCode.MESSAGE_TOO_LARGE)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
    data: Buffer = yield partial(unpacked_large, batch, 0, header, size_max=DECOMPRESSED_SIZE_MAX, too_large=corrupt)
    return data


def at_once(search: Search) -> Found | None:
    """Runs all steps now, in the caller's thread, and returns the result."""
    done = None
    while True:
        try:
            work = search.send(done)
        except StopIteration as end:
            found: Found | None = end.value
            return found
        done = work() if work is not None else None


def newest(segments: Sequence[Segment]) -> int:
    """The largest timestamp in the log, NO_TIMESTAMP when there is none."""
    return max((segment.newest_timestamp() for segment in segments), default=NO_TIMESTAMP)


def _batch_in(segment: Segment, timestamp_ms: int, offset: int) -> tuple[Buffer, BatchHeader] | None:
    """`batch_since` in one segment. The time index says before which offset no record has that timestamp."""
    segment.load_indexes()
    entry = segment.time_index.entry_before(timestamp_ms)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.rebuild_indexes()
        entry = segment.time_index.entry_before(timestamp_ms)
    start = segment.position_of(max(entry[1] if entry else 0, offset), may_block=True)
    for position, header in segment.headers(start):
        if header.max_timestamp >= timestamp_ms and header.last_offset >= offset:
            return segment.read(position, header.size_in_bytes, may_block=True), header
    return None
