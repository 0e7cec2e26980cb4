"""Transactions until their markers are replicated (LOG-7)."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.storage.producers.unreplicated import Unreplicated


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30))
def test_the_first_offset_of_all_whose_marker_is_not_below_the_high_watermark(steps: list[tuple[int, int]]) -> None:
    """Each step: how long before its marker a transaction starts, and by how much the high watermark moves afterwards."""
    found = Unreplicated()
    told: list[tuple[int, int]] = []
    high_watermark = 0
    for number, (before, advance) in enumerate(steps):
        marker = 3 * number + 30
        first = marker - 1 - before
        if first not in [one for one, _ in told]:  # one batch begins one transaction
            found.add(first, marker)
            told.append((first, marker))
        high_watermark += advance
        expected = min((one for one, end in told if end >= high_watermark), default=None)
        frozen = found.copy()
        assert found.first_from(high_watermark) == expected
        found.forget(high_watermark)
        assert (found.first, bool(found)) == (expected, expected is not None)
        assert frozen.first_from(high_watermark) == expected


def test_after_a_restart_all_transactions_since_the_snapshot_are_forgotten_at_once() -> None:
    """Not one after the other: a million took six seconds, and 120 MB."""
    reads = 0

    class Counted(array):  # type: ignore[type-arg]
        def __getitem__(self, at: Any) -> Any:
            nonlocal reads
            reads += 1
            return super().__getitem__(at)

    pairs: Any = Counted("q")
    found = Unreplicated(pairs)
    for number in range(100_000):
        found.add(2 * number, 2 * number + 1)
    assert pairs.itemsize * len(pairs) == 16 * 100_000
    reads = 0
    found.forget(200_000 - 1)
    assert (found.first, len(found)) == (199_998, 1)
    assert reads < 50
