"""Finds records by their timestamps in a log's segments (CLI-1: ListOffsets by time)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broker.storage.segment import NO_TIMESTAMP, Segment
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import DECOMPRESSED_SIZE_MAX, HEADER_SIZE, BatchHeader, unpacked, unpacked_large
from protocol.kafka.record_checks import STEP, times_and_keys
from protocol.types import Buffer

Found = tuple[int, int, int]
"""(timestamp in ms, offset, leader epoch) of a record"""
Search = Generator[Callable[[], Any] | None, Any, Found | None]
"""Yields None to let other work run, or a function for a thread, whose result is sent back."""
PAYLOAD_AT_ONCE: Final = 64 * 1024
UNPACKED_AT_ONCE: Final = 1024 * 1024
"""Limits for a batch that is unpacked on the loop: its bytes, and its unpacked bytes. A thread unpacks larger ones."""
SEGMENTS_AT_ONCE: Final = 10
"""Segments that a search looks at in a step. After a start, the times of each are read from two files."""
HEADERS_AT_ONCE: Final = 500
"""Batches that a search looks at in a step. Each takes some microseconds."""


class Step(NamedTuple):
    """What a piece of a search found: the batch, or None and from which offset on the search continues (-1: nowhere)."""

    batch: tuple[Buffer, BatchHeader] | None
    offset: int = -1


def batch_since(segments: Sequence[Segment], bases: Sequence[int], timestamp_ms: int, offset: int) -> Step:
    """Looks for the first batch that ends at or after `offset` and whose largest timestamp is at least `timestamp_ms`.

    Looks at a few segments, or at a part of one. `bases`: the segments' base offsets. Raises KafkaError.
    """
    first = max(bisect_right(bases, offset) - 1, 0)
    end = min(first + SEGMENTS_AT_ONCE, len(segments))
    for number in range(first, end):
        segment = segments[number]
        if segment.next_offset > offset and segment.newest_timestamp() >= timestamp_ms:
            step = _batch_in(segment, timestamp_ms, offset)
            if step.batch is not None or step.offset >= 0:
                return step
    return Step(None, bases[end] if end < len(segments) else -1)


def newest_part(segments: Sequence[Segment], bases: Sequence[int], offset: int) -> tuple[int, int]:
    """(the largest timestamp of a few segments from `offset` on, or of a part of one; from which offset on to continue, -1: nowhere).

    NO_TIMESTAMP if no record has one. The batch that holds `offset` counts as a whole.
    """
    first = max(bisect_right(bases, offset) - 1, 0)
    newest = segments[first].newest_timestamp()
    end = first + 1
    if segments[first].base_offset < offset and segments[first].max_timestamp_offset < offset:
        newest, reached = _newest_from(segments[first], offset)
        if reached >= 0:
            return newest, reached
    else:
        end = min(first + SEGMENTS_AT_ONCE, len(segments))
        newest = max(segment.newest_timestamp() for segment in segments[first:end])
    return newest, bases[end] if end < len(segments) else -1


def _newest_from(segment: Segment, offset: int) -> tuple[int, int]:
    """`newest_part` of one segment, whose largest timestamp is before `offset`."""
    newest = NO_TIMESTAMP
    start = segment.position_of(offset, may_block=True)
    for count, (_, header) in enumerate(segment.headers(start), 1):
        newest = max(newest, header.max_timestamp)
        if count == HEADERS_AT_ONCE:
            return newest, header.next_offset
    return newest, -1


def newest_in(batch: Buffer, header: BatchHeader, offset: int) -> Generator[Callable[[], Any] | None, Any, int]:
    """The largest timestamp of the batch's records from `offset` on, NO_TIMESTAMP without one. Raises KafkaError for a broken batch."""
    newest = NO_TIMESTAMP
    records = yield from _records(batch, header)
    for count, (timestamp, found, _) in enumerate(records, 1):
        if found >= offset:
            newest = max(newest, timestamp)
        if count % STEP == 0:
            yield None
    return newest


def searching(batch: Buffer, header: BatchHeader, timestamp_ms: int, offset: int) -> Search:
    """The batch's first record at or after `offset` with at least that timestamp. Raises KafkaError for a broken batch."""
    records = yield from _records(batch, header)
    for count, record in enumerate(records, 1):
        if record[0] >= timestamp_ms and record[1] >= offset:
            return record
        if count % STEP == 0:
            yield None
    return None


def _records(
    batch: Buffer, header: BatchHeader
) -> Generator[Callable[[], Any] | None, Any, Iterator[tuple[int, int, int]]]:
    """(timestamp, offset, leader epoch) of each record. Raises KafkaError for a broken batch, also while they are read."""
    data, at = batch, HEADER_SIZE
    if header.compression:
        data, at = (yield from _unpacking(batch, header)), 0
    if header.is_log_append_time:
        base, is_one_time = header.max_timestamp, True
    else:
        base, is_one_time = header.base_timestamp, False
    return (
        (base if is_one_time else base + time, header.base_offset + delta, header.partition_leader_epoch)
        for delta, time, _ in times_and_keys(data, at, header.record_count)
    )


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


def _batch_in(segment: Segment, timestamp_ms: int, offset: int) -> Step:
    """`batch_since` in one segment. The time index says before which offset no record has that timestamp."""
    segment.load_indexes()
    entry = segment.time_index.entry_before(timestamp_ms)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.rebuild_indexes()
        entry = segment.time_index.entry_before(timestamp_ms)
    start = segment.position_of(max(entry[1] if entry else 0, offset), may_block=True)
    for count, (position, header) in enumerate(segment.headers(start), 1):
        if header.max_timestamp >= timestamp_ms and header.last_offset >= offset:
            return Step((segment.read(position, header.size_in_bytes, may_block=True), header))
        if count == HEADERS_AT_ONCE:
            return Step(None, header.next_offset)
    return Step(None)
