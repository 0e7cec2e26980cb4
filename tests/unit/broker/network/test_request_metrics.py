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


@given(st.sampled_from([10, 400, 5_000, 20_000]), st.integers(1, 4))
def test_a_sample_stands_for_all_requests(rate: int, seconds: int) -> None:
    clock = Clock()
    metrics = ApiMetrics(3, clock)
    count, timed = rate * seconds, 0
    for number in range(count):
        clock.now = 100 + number / rate
        timing = metrics.count(number % 4, clock.now)
        if timing is not None:
            timed += 1
            clock.now += 0.001
            timing.answered()
    assert sum(metrics.requests) == count
    assert max(metrics.requests) - min(metrics.requests) <= 1
    assert count - 2 * EVERY_MAX < metrics.total.count <= count
    if rate <= TIMED_PER_S:
        assert timed == count
    elif seconds > 1:
        assert timed < rate + (seconds - 1) * rate / max(1, rate // TIMED_PER_S) * 3


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
