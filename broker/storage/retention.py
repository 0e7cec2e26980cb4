"""When a log starts a new segment, and which old segments may be deleted (LOG-1, INV-22).

`deletable` decides from numbers alone. The other functions look at segments, which may read their time indexes from the disk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from broker.settings.config import TopicConfig
from broker.storage.segment import Segment
from broker.storage.sparse_index import RELATIVE_OFFSET_MAX
from protocol.types import TopicPartition

INDEX_ENTRY_BYTES_MAX: Final = 12


def must_roll(
    segment: Segment,
    last_offset: int,
    newest: int,
    size: int,
    config: TopicConfig,
    wall_ms: Callable[[], int],
    tp: TopicPartition,
) -> bool:
    """Kafka's LogSegment.shouldRoll: by size, relative offset, index size or age.

    `last_offset` and `newest`, the largest timestamp, are those of the last batch to append, `size` the bytes of all of them.
    """
    if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if segment.bytes_since_index > segment.index_interval_bytes:  # the next batch gets an entry
        entries = max(segment.index.count, segment.time_index.count)
        if entries and (entries + 1) * INDEX_ENTRY_BYTES_MAX > config.segment_index_bytes:
            return True
    if segment.first_timestamp >= 0 and newest >= 0:
        waited = newest - segment.first_timestamp
    else:
        waited = wall_ms() - segment.created_ms
    limit = config.segment_ms
    if "compact" in config.cleanup_policy:
        limit = min(limit, config.max_compaction_lag_ms)  # only what is rolled can be compacted
    if config.segment_jitter_ms:
        # Logs of the same age should not all roll at once, so each rolls earlier by a constant share of the jitter.
        waited += zlib.crc32(str(tp).encode()) % min(config.segment_jitter_ms, limit)
    return waited > limit


class SegmentAge(NamedTuple):
    """A segment, as retention sees it. `newest_ms`: its largest timestamp, or the time of its last write if it has none."""

    base_offset: int
    next_offset: int
    size: int
    newest_ms: int
    is_last: bool = False


def deletable(
    segments: Iterable[SegmentAge],
    *,
    total_size: int,
    high_watermark: int,
    log_start_offset: int,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
) -> int:
    """How many of the oldest segments may be deleted. If it is all of them, the caller must roll the active segment first.

    `segments` is read up to the first segment that stays. `total_size` is the size of all segments. -1 switches a limit off.
    A segment may be deleted if it is older than `retention_ms`, if the log without it still has `retention_bytes`, or if it is
    below the log start offset (not the active segment). The count stops at a segment that reaches beyond the high watermark, and
    at an empty active segment (Kafka's `UnifiedLog.deletableSegments`).
    """
    excess = total_size - retention_bytes if retention_bytes >= 0 else -1
    count = 0
    for segment in segments:
        if segment.next_offset > high_watermark or (segment.is_last and not segment.size):
            break
        is_old = retention_ms >= 0 and now_ms - segment.newest_ms > retention_ms
        is_excess = retention_bytes >= 0 and excess - segment.size >= 0
        is_below_start = segment.next_offset <= log_start_offset and not segment.is_last
        if not (is_old or is_excess or is_below_start):
            break
        excess -= segment.size
        count += 1
    return count


def deletable_segments(
    segments: Sequence[Segment],
    config: TopicConfig,
    *,
    at_most: int | None = None,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> int:
    """How many of the `at_most` oldest segments may be deleted; see `deletable`.

    Without `delete` in cleanup.policy, only segments below the log start offset count. Reads time indexes up to the first
    segment that stays.
    """
    is_limited = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if is_limited else -1

    def ages() -> Iterator[SegmentAge]:
        last = len(segments) - 1
        for number, segment in enumerate(islice(segments, at_most)):
            end = segments[number + 1].base_offset if number < last else log_end_offset
            newest_ms = segment.newest_ms() if retention_ms >= 0 else 0
            yield SegmentAge(segment.base_offset, end, segment.size, newest_ms, is_last=number == last)

    return deletable(
        ages(),
        total_size=sum(segment.size for segment in segments),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=config.retention_bytes if is_limited else -1,
    )
