"""Which log is compacted, how far, in which groups; the offset map (LOG-4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.compaction.compaction import (
    ENTRY_BYTES,
    SEGMENTS_IN_A_GROUP,
    Cleanable,
    OffsetMap,
    SegmentFacts,
    cleanable,
    grouped,
)

SEGMENTS = [
    SegmentFacts(0, 100, 1, first_ms=1000, newest_ms=1500),
    SegmentFacts(10, 200, 1, first_ms=2000, newest_ms=2500),
    SegmentFacts(20, 300, 1, first_ms=3000, newest_ms=3500),
    SegmentFacts(30, 50, 1, first_ms=4000, newest_ms=4500),
]
OFFSETS = {"cleaned_up_to": 0, "log_start_offset": 0, "log_end_offset": 35, "stable_offset": 35}
TIMES = {"min_lag_ms": 0, "max_lag_ms": 10**9, "now_ms": 5000}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Cleanable(0, 30, 0, 600, False)),
        ({"cleaned_up_to": 10}, Cleanable(10, 30, 100, 500, False)),
        ({"cleaned_up_to": 15}, Cleanable(15, 30, 100, 500, False)),
        ({"cleaned_up_to": 30}, Cleanable(30, 30, 600, 0, False)),
        ({"cleaned_up_to": 99}, Cleanable(0, 30, 0, 600, False)),
        ({"cleaned_up_to": 3, "log_start_offset": 12}, Cleanable(12, 30, 100, 500, False)),
        ({"stable_offset": 25}, Cleanable(0, 20, 0, 300, False)),
        ({"stable_offset": 20}, Cleanable(0, 20, 0, 300, False)),
        ({"stable_offset": 5}, Cleanable(0, 0, 0, 0, False)),
        ({"min_lag_ms": 2000}, Cleanable(0, 20, 0, 300, False)),
        ({"min_lag_ms": 5000}, Cleanable(0, 0, 0, 0, False)),
        ({"max_lag_ms": 3999}, Cleanable(0, 30, 0, 600, True)),
        ({"max_lag_ms": 4000}, Cleanable(0, 30, 0, 600, False)),
        ({"max_lag_ms": 3999, "cleaned_up_to": 10}, Cleanable(10, 30, 100, 500, False)),
    ],
)
def test_the_cleanable_part_of_a_log(changed: dict[str, int], expected: Cleanable) -> None:
    assert cleanable(SEGMENTS, **(OFFSETS | TIMES | changed)) == expected


@pytest.mark.parametrize(
    ("work", "min_ratio", "is_due"),
    [
        (Cleanable(0, 9, 100, 100, False), 0.5, False),
        (Cleanable(0, 9, 100, 101, False), 0.5, True),
        (Cleanable(0, 9, 100, 1, True), 0.5, True),
        (Cleanable(0, 9, 100, 0, True), 0.0, False),
        (Cleanable(0, 0, 0, 0, False), 0.0, False),
    ],
)
def test_when_a_log_is_due_for_compaction(work: Cleanable, min_ratio: float, is_due: bool) -> None:
    assert work.is_due(min_ratio) is is_due


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3), st.sampled_from((1, 5, 2**30, 2**31))), max_size=100),
    st.integers(1, 1000),
    st.integers(12, 1000),
)
def test_groups_of_segments_are_as_large_as_one_segment_may_be(
    rows: list[tuple[int, int, int]], size: int, index: int
) -> None:
    base = 0
    segments = []
    for bytes_, entries, count in rows:
        segments.append(SegmentFacts(base, bytes_, entries))
        base += count
    runs = grouped(segments, end_offset=base, segment_bytes=size, index_bytes=index)
    assert [at for first, end in runs for at in range(first, end)] == list(range(len(segments)))
    ends = [*(s.base_offset for s in segments[1:]), base]

    def fits(first: int, end: int) -> bool:
        run = segments[first:end]
        return (
            len(run) <= SEGMENTS_IN_A_GROUP
            and sum(s.size for s in run) <= size
            and sum(s.index_entries for s in run) * 12 <= index
            and all(s.size == 0 or ends[first + n] - 1 - run[0].base_offset < 2**31 for n, s in enumerate(run))
        )

    assert all(end - first == 1 or fits(first, end) for first, end in runs)
    assert not any(fits(first, end + 1) for first, end in runs if end < len(segments))


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 3)), max_size=60), st.integers(1, 20))
def test_the_map_knows_the_last_offset_of_as_many_keys_as_fit(writes: list[tuple[bytes, int]], limit: int) -> None:
    offsets = OffsetMap(limit * ENTRY_BYTES, 1.0)
    last: dict[bytes, int] = {}
    offset = -1
    for key, step in writes:
        offset += step
        if not offsets.put(key, offset):
            assert len(last) == limit
            assert key not in last
            break
        last[key] = offset
        assert offsets.latest_offset == offset
    assert len(offsets) == len(last)
    for key, at in last.items():
        assert offsets.is_replaced(key, at - 1)
        assert not offsets.is_replaced(key, at)
