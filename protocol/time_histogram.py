"""Durations of recent events in a fixed array of buckets, from which a scrape computes quantiles.

Only the loop adds durations. The metrics thread only reads: it copies the lists, and computes with the copies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

WINDOW_S = 30.0
"""Quantiles are those of the last one to two windows."""
LEAST_S = 10e-6
GROWTH = 2**0.25
"""Each bound is the earlier one times this, so a quantile is off by 9 percent at most."""
BOUNDS_S: tuple[float, ...] = tuple(LEAST_S * GROWTH**power for power in range(108))
"""Upper bounds of the buckets, in seconds: from 10 microseconds to 19 minutes. The last bucket has no bound."""
QUANTILES: tuple[tuple[str, float], ...] = (
    ("0.50", 0.5),
    ("0.75", 0.75),
    ("0.95", 0.95),
    ("0.98", 0.98),
    ("0.99", 0.99),
    ("0.999", 0.999),
)
"""The label, as the JMX exporter writes it, and the quantile (Kafka's `KafkaMetricsGroup` histograms)."""


class TimeHistogram:
    """`count` and `total_s` only grow. `weight`: for how many events the added duration stands."""

    __slots__ = ("_before", "_counts", "_window_ends", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._before = [0] * (len(BOUNDS_S) + 1)
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._window_ends = float("-inf")

    def add(self, seconds: float, now: float, weight: int = 1) -> None:
        if now >= self._window_ends:
            is_recent = now < self._window_ends + WINDOW_S
            empty = [0] * (len(BOUNDS_S) + 1)
            self._before, self._counts = (self._counts if is_recent else empty), [0] * (len(BOUNDS_S) + 1)
            self._window_ends = now + WINDOW_S
        self._counts[bisect_left(BOUNDS_S, seconds)] += weight
        self.count += weight
        self.total_s += seconds * weight

    def recent(self, now: float) -> list[int]:
        """The number of events in each bucket, in the last one to two windows."""
        ends = self._window_ends
        if now >= ends + WINDOW_S:
            return [0] * (len(BOUNDS_S) + 1)
        if now >= ends:
            return list(self._counts)
        return [a + b for a, b in zip(self._before, self._counts, strict=True)]


def quantiles_s(counts: Sequence[int]) -> list[float]:
    """The `QUANTILES` of `TimeHistogram.recent`, in seconds; not a number if there was no event."""
    sums = list(accumulate(counts))
    if not sums[-1]:
        return [float("nan")] * len(QUANTILES)
    return [_value_at(sums, share * sums[-1]) for _, share in QUANTILES]


def added(histograms: Iterable[list[int]]) -> list[int]:
    """The events of several histograms together."""
    return [sum(counts) for counts in zip(*histograms, strict=True)]


def _value_at(sums: Sequence[int], rank: float) -> float:
    """Interpolates within the bucket."""
    at = bisect_left(sums, rank)
    if at >= len(BOUNDS_S):
        return BOUNDS_S[-1]
    below = sums[at - 1] if at else 0
    low = BOUNDS_S[at - 1] if at else 0.0
    return low + (BOUNDS_S[at] - low) * (rank - below) / (sums[at] - below)
