"""Rates, token buckets and throttle times are Kafka's: beside its ring of samples, and by tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.rates import SampledRate, TokenBucket, Window, throttle_time


class Ring:
    """A rate as Kafka has it: a ring of samples, of which the old ones are reset whenever it is measured."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.samples: list[list[float]] = []  # began, last, value
        self.current = 0

    def record(self, value: float, now: int) -> None:
        if not self.samples:
            self.samples.append([now, now, 0.0])
        elif now - self.samples[self.current][0] >= self.window.size_ms:
            self.current = (self.current + 1) % (self.window.samples + 1)
            if self.current >= len(self.samples):
                self.samples.append([now, now, 0.0])
            self.samples[self.current] = [now, now, 0.0]
        self.samples[self.current][1] = now
        self.samples[self.current][2] += value

    def wait_ms(self, bound: float, now: int) -> float:
        for sample in self.samples:
            if now - sample[1] >= self.window.samples * self.window.size_ms:
                sample[:] = [now, now, 0.0]
        elapsed = now - min(sample[0] for sample in self.samples)
        missing = self.window.samples - 1 - elapsed // self.window.size_ms
        elapsed = max(elapsed + max(missing, 0) * self.window.size_ms, 1)
        rate = sum(sample[2] for sample in self.samples) / (elapsed / 1000)
        return (rate - bound) / bound * elapsed if rate > bound else 0


@given(
    st.integers(1, 12),
    st.sampled_from([1000, 2000]),
    st.floats(0.5, 5000),
    st.lists(st.tuples(st.integers(0, 15_000), st.integers(-50, 100_000)), min_size=1, max_size=60),
)
def test_a_rate_is_that_of_kafkas_ring(samples: int, size_ms: int, bound: float, steps: list[tuple[int, int]]) -> None:
    window = Window(samples, size_ms)
    rate, ring = SampledRate(window), Ring(window)
    now = 0
    for pause, value in steps:
        now += pause
        rate.record(value, now)
        ring.record(value, now)
        assert math.isclose(rate.wait_ms(bound, now), ring.wait_ms(bound, now), rel_tol=1e-9, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("used", "wait_ms"),
    [
        ([(0, 9000)], 0),
        ([(0, 10_000)], 0),
        ([(0, 12_000)], 2000),
        ([(0, 10_000), (1000, 5000)], 5000),
        ([(0, 10_000), (11_000, 10_000)], 0),
        ([(0, 10_000), (10_999, 1000)], 1),
        ([(0, 100_000), (0, -100_000)], 0),
    ],
)
def test_waits_for_a_quota_of_a_thousand_in_a_second(used: list[tuple[int, int]], wait_ms: int) -> None:
    """(at, what was used) -> how long to wait then. A new client may use at once what a window of ten seconds allows."""
    rate = SampledRate(Window())
    now = 0
    for now, value in used:
        rate.record(value, now)
    assert throttle_time(rate.wait_ms(1000, now)) == wait_ms


@pytest.mark.parametrize(("size", "every_ms"), [(100, 1), (1000, 1), (5000, 30)])
def test_who_waits_as_told_uses_the_quota_in_the_long_run(size: int, every_ms: int) -> None:
    rate = SampledRate(Window())
    now = used = 0
    while now < 300_000:
        rate.record(size, now)
        used += size
        now += every_ms + throttle_time(rate.wait_ms(1000, now))
    assert 0.95 < used / now < 1.15


@pytest.mark.parametrize(
    ("taken", "wait_ms"),
    [([(0, 22)], 0), ([(0, 23)], 500), ([(0, 22), (1000, 4)], 1000), ([(0, 40), (9000, 0)], 0), ([(5000, 42)], 10_000)],
)
def test_a_bucket_of_two_tokens_in_a_second(taken: list[tuple[int, int]], wait_ms: int) -> None:
    """It holds those of eleven seconds, and is full at first (KIP-599)."""
    bucket = TokenBucket(Window())
    now = 0
    for now, count in taken:
        bucket.take(2, count, now)
    assert throttle_time(bucket.wait_ms(2, now)) == wait_ms


@pytest.mark.parametrize(
    ("wait_ms", "limit_ms", "expected"),
    [
        (0.4, None, 0),
        (0.5, None, 1),
        (1e15, None, 2**31 - 1),
        (math.inf, None, 0),
        (math.inf, 1000, 1000),
        (-5, 1000, 0),
    ],
)
def test_a_throttle_time_is_rounded_and_limited(wait_ms: float, limit_ms: int | None, expected: int) -> None:
    assert throttle_time(wait_ms, limit_ms) == expected


def test_a_quota_of_nothing() -> None:
    """As in Kafka, nobody waits for ever: only a quota whose throttle times are limited has an effect."""
    rate: Any = SampledRate(Window())
    rate.record(1, 0)
    assert rate.wait_ms(0, 0) == math.inf
    bucket = TokenBucket(Window())
    bucket.take(0, 1, 0)
    assert bucket.wait_ms(0, 5000) == math.inf
