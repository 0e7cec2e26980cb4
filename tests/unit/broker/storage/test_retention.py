"""Which segments retention deletes (LOG-1, INV-22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.retention import SegmentAge, deletable

NOW = 100_000
SEGMENTS = [SegmentAge(0, 10, 100, NOW - 5_000), SegmentAge(10, 20, 100, NOW - 3_000), SegmentAge(20, 30, 100, NOW)]


def count_of(segments: Sequence[SegmentAge], **limits: int) -> int:
    """The number of deleted segments. Checks that no segment after the first that stays is read."""
    asked = []

    def ages() -> Iterator[SegmentAge]:
        for segment in segments:
            asked.append(segment)
            yield segment._replace(is_last=segment is segments[-1])

    count = deletable(ages(), total_size=sum(segment.size for segment in segments), **limits)
    assert len(asked) <= count + 1
    return count


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({"retention_ms": 6_000}, 0),
        ({"retention_ms": 4_000}, 1),
        ({"retention_ms": 0}, 2),
        ({"retention_ms": 0, "high_watermark": 19}, 1),
        ({"retention_ms": 0, "high_watermark": 0}, 0),
        ({"retention_ms": 0, "now_ms": NOW + 1}, 3),
        ({"retention_ms": 0, "now_ms": NOW + 1, "high_watermark": 29}, 2),
        ({"retention_bytes": 0}, 3),
        ({"retention_bytes": 100}, 2),
        ({"retention_bytes": 200}, 1),
        ({"retention_bytes": 201}, 0),
        ({"retention_bytes": 0, "high_watermark": 10}, 1),
        ({"log_start_offset": 10}, 1),
        ({"log_start_offset": 19}, 1),
        ({"log_start_offset": 30}, 2),
    ],
)
def test_how_many_segments_retention_deletes(limits: dict[str, int], count: int) -> None:
    settings = {"high_watermark": 30, "log_start_offset": 0, "retention_ms": -1, "retention_bytes": -1, "now_ms": NOW}
    assert count_of(SEGMENTS, **settings | limits) == count


def test_an_empty_last_segment_stays() -> None:
    """Its name keeps the LEO."""
    segments = [*SEGMENTS, SegmentAge(30, 30, 0, NOW)]
    limits = {"high_watermark": 30, "log_start_offset": 0, "retention_ms": 0, "retention_bytes": 0, "now_ms": NOW * 2}
    assert count_of(segments, **limits) == 3


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.integers(0, 2 * NOW)), min_size=1, max_size=8),
    st.integers(0, 80),
    st.integers(-1, NOW),
    st.integers(-1, 500),
)
def test_retention_never_deletes_past_the_high_watermark(
    shapes: list[tuple[int, int, int]], high_watermark: int, retention_ms: int, retention_bytes: int
) -> None:
    segments, base = [], 0
    for records, size, newest in shapes:
        segments.append(SegmentAge(base, base + records, size, newest))
        base += records
    count = count_of(
        segments,
        high_watermark=high_watermark,
        log_start_offset=0,
        now_ms=NOW,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
    )
    assert all(segment.next_offset <= high_watermark for segment in segments[:count])
    if retention_ms < 0 and retention_bytes >= 0:
        total = sum(segment.size for segment in segments)
        assert count == 0 or total - sum(s.size for s in segments[:count]) >= retention_bytes
