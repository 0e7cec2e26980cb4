"""Which old segments may go (LOG-1, INV-22). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SegmentAge(NamedTuple):
    """What retention looks at: `newest_ms` is the largest timestamp in it, or when it was last written if it has none."""

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
    """How many segments from the front may be deleted; all of them only when the last one, which is appended to, is ended first.

    `segments` are taken one by one, and none behind the first that stays; `total_size` is of all.
    A segment goes when it is older than `retention_ms`, or the log without it still has `retention_bytes`, or it lies
    wholly below the log start, which for the last does not count; -1 switches a limit off. One that reaches past the high
    watermark stops the count, and so does the last while it is empty (Kafka's `UnifiedLog.deletableSegments`).
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
