"""Quantiles from buckets are near the exact ones, of recent durations only."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from protocol.time_histogram import BOUNDS_S, GROWTH, LEAST_S, QUANTILES, WINDOW_S, TimeHistogram, added, quantiles_s

DURATIONS = st.lists(st.floats(LEAST_S * 1.001, BOUNDS_S[-1]), min_size=1, max_size=200)


@given(DURATIONS, st.integers(1, 50))
def test_a_quantile_is_within_one_bucket_of_the_exact_one(durations: list[float], weight: int) -> None:
    histogram = TimeHistogram()
    for seconds in durations:
        histogram.add(seconds, 0.0, weight)
    found = quantiles_s(histogram.recent(0.0))
    durations.sort()
    for (_, share), seconds in zip(QUANTILES, found, strict=True):
        exact = durations[math.ceil(share * len(durations)) - 1]
        assert exact / GROWTH <= seconds * (1 + 1e-9)
        assert seconds <= exact * GROWTH * (1 + 1e-9)
    assert histogram.count == weight * len(durations)
    assert math.isclose(histogram.total_s, weight * sum(durations))


def test_quantiles_forget_and_sums_do_not() -> None:
    histogram = TimeHistogram()
    histogram.add(1.0, now=0.0)
    assert math.isclose(quantiles_s(histogram.recent(1.9 * WINDOW_S))[0], 1.0, rel_tol=0.2)
    assert all(map(math.isnan, quantiles_s(histogram.recent(2 * WINDOW_S))))

    histogram.add(0.001, now=1.5 * WINDOW_S)  # the first duration is in the earlier window
    assert sum(histogram.recent(2 * WINDOW_S)) == 2
    assert sum(histogram.recent(2.6 * WINDOW_S)) == 1
    histogram.add(0.001, now=10 * WINDOW_S)
    assert sum(histogram.recent(10 * WINDOW_S)) == 1
    assert (histogram.count, round(histogram.total_s, 6)) == (3, 1.002)


def test_durations_outside_of_the_bounds_count() -> None:
    histogram = TimeHistogram()
    histogram.add(0.0, 0.0)
    histogram.add(1e9, 0.0)
    counts = histogram.recent(0.0)
    assert (counts[0], counts[-1]) == (1, 1)
    assert quantiles_s(counts)[-1] == BOUNDS_S[-1]
    assert added([counts, counts])[0] == 2
