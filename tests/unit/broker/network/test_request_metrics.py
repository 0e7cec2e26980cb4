"""Requests are counted exactly, and timed by a sample that stands for all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.network.request_metrics import EVERY_MAX, TIMED_PER_S, ApiMetrics, Timing, kafka_name
from protocol.kafka.api_keys import ApiKey


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.sampled_from([10, 100, 400, 5_000, 20_000]), st.integers(1, 4))
def test_a_sample_stands_for_all_requests(rate: int, seconds: int) -> None:
    clock = Clock()
    metrics = ApiMetrics(3, clock)
    timed = 0
    for number in range(rate * seconds):
        clock.now = 100 + number / rate
        timing = metrics.count(2, clock.now)
        if timing is not None:
            timed += 1
            clock.now += 0.001
            timing.answered()
        if number % rate == rate - 1:
            metrics.settle()
            assert metrics.requests == [0, 0, number + 1, 0]
    assert rate * seconds - 2 * EVERY_MAX < metrics.total.count <= rate * seconds
    if rate <= TIMED_PER_S:
        assert timed == metrics.total.count == rate * seconds
    else:
        # Twice the number in each second, for each step from 1 to EVERY_MAX in the first one, and one in EVERY_MAX.
        assert timed < 2 * TIMED_PER_S * (seconds + 9) + 2 * rate * seconds / EVERY_MAX


def test_the_next_request_is_timed_when_there_are_few() -> None:
    metrics = ApiMetrics(1, Clock())
    for _ in range(100 * EVERY_MAX):
        metrics.count(0, 0.0)
    metrics.settle()
    metrics.settle()  # a second without requests
    assert metrics.count(1, 0.0) is not None
    assert metrics.requests == [100 * EVERY_MAX, 1]


def test_the_parts_of_a_requests_time() -> None:
    clock = Clock()
    metrics = ApiMetrics(0, clock)
    timing = Timing(metrics, 100.0, 101.0, 1)  # a second in the queue
    clock.now = 103
    timing.handled()
    clock.now = 107
    timing.answered()
    assert [part.total_s for part in metrics.parts()] == [1, 2, 4, 7]

    at_once = Timing(metrics, 107.0, 107.0, 1)
    clock.now = 110
    at_once.answered()  # before the handler returns
    assert [part.total_s for part in metrics.parts()] == [1, 5, 4, 10]


def test_kafkas_names() -> None:
    assert [kafka_name(key) for key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.OFFSET_FOR_LEADER_EPOCH)] == [
        "Produce",
        "ApiVersions",
        "OffsetForLeaderEpoch",
    ]
