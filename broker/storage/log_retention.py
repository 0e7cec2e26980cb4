"""What retention looks at in a log's segments (LOG-1); `retention` decides."""

from __future__ import annotations

from collections.abc import Sequence

from broker.config import TopicConfig
from broker.storage import retention
from broker.storage.segment import Segment


def deletable_segments(
    segments: Sequence[Segment],
    config: TopicConfig,
    *,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> int:
    """How many segments from the front may go, as `retention.deletable` counts.

    Without `delete` in cleanup.policy only those below the log start. May read time indexes. Raises OSError.
    """
    is_limited = "delete" in config.cleanup_policy
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    ages = []
    for segment, end in zip(segments, ends, strict=True):
        newest = segment.newest_timestamp()
        ages.append(
            retention.SegmentAge(segment.base_offset, end, segment.size, newest if newest >= 0 else segment.created_ms)
        )
    return retention.deletable(
        ages,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        retention_ms=config.retention_ms if is_limited else -1,
        retention_bytes=config.retention_bytes if is_limited else -1,
    )
