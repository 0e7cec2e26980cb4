"""What retention looks at in a log's segments (LOG-1); `retention` decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.settings.config import TopicConfig
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

    Without `delete` in cleanup.policy only those below the log start. Looks at the time index of the first that stays, and of
    none behind it. Raises OSError.
    """
    is_limited = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if is_limited else -1

    def ages() -> Iterator[retention.SegmentAge]:
        last = len(segments) - 1
        for number, segment in enumerate(segments):
            end = segments[number + 1].base_offset if number < last else log_end_offset
            newest_ms = segment.newest_ms() if retention_ms >= 0 else 0
            yield retention.SegmentAge(segment.base_offset, end, segment.size, newest_ms, is_last=number == last)

    return retention.deletable(
        ages(),
        total_size=sum(segment.size for segment in segments),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        now_ms=now_ms,
        retention_ms=retention_ms,
        retention_bytes=config.retention_bytes if is_limited else -1,
    )
