"""Replication throttles (KIP-73): how many bytes in which time, and for which replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.settings.config import LONG_MAX, ConfigError, TopicConfig, throttled_replicas

OWN_ID = 2


class Bench:
    """A throttle whose time is set by hand."""

    def __init__(self, rate: int, samples: int = 11) -> None:
        self.now = 1000.0
        self.throttle = ReplicationThrottle(
            OWN_ID,
            lambda topic: topic.leader_replication_throttled_replicas,
            lambda: self.now,
            rate=rate,
            samples=samples,
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", frozenset()),
        ("*", None),
        (" * ", None),
        ("0:1", {(0, 1)}),
        ("0:1, 1:2 ,1:2", {(0, 1), (1, 2)}),
    ],
)
def test_lists_of_throttled_replicas(text: str, expected: set[tuple[int, int]] | None) -> None:
    assert throttled_replicas(text) == expected


@pytest.mark.parametrize("text", ["none", "x", "1", "1:", ":1", "-1:2", "1:2:3", "*,0:1", "1:b", "１:1"])
def test_an_invalid_list_of_replicas_is_refused(text: str) -> None:
    """As Kafka 3.9.1, which answers INVALID_CONFIG to all of them."""
    with pytest.raises(ConfigError, match="expected"):
        throttled_replicas(text)


@pytest.mark.parametrize(
    ("text", "partition", "expected"),
    [("", 0, False), ("*", 7, True), ("0:2,1:3", 0, True), ("0:2,1:3", 1, False), ("0:1", 0, False)],
)
def test_which_replicas_are_throttled(text: str, partition: int, expected: bool) -> None:
    config = TopicConfig(leader_replication_throttled_replicas=text)
    assert Bench(rate=1000).throttle.applies_to(config, partition) is expected
    assert not Bench(rate=LONG_MAX).throttle.applies_to(config, partition), "without a rate nothing is throttled"


@pytest.mark.parametrize(
    ("copied", "at", "is_exceeded"),
    [
        ([], 0.0, False),
        ([(0, 999)], 0.0, False),
        ([(0, 1000)], 0.0, True),
        ([(0, 1000)], 0.9, True),
        ([(0, 1000)], 1.1, False),
        ([(0, 4000)], 3.9, True),
        ([(0, 4000)], 4.1, False),
        ([(0, 500), (1, 500), (2, 500), (3, 500)], 3.0, False),
        ([(0, 1000), (1, 1000), (2, 2500)], 4.0, True),
        ([(0, 1000), (1, 1000), (2, 2500)], 4.6, False),
        ([(0, 1000), (60, 999)], 60.0, False),
        ([(0, 1000), (60, 1001)], 60.0, True),
        ([(0, 30000)], 20.0, True),
        ([(0, 30000)], 29.5, False),
        ([(0, 30000)], 28.5, True),
    ],
)
def test_when_a_rate_of_1000_bytes_per_second_is_exceeded(
    copied: list[tuple[float, int]], at: float, is_exceeded: bool
) -> None:
    """A burst of one sample is free; 30,000 bytes are paid for in 30 s though the window is 11 s (see the module)."""
    bench = Bench(rate=1000)
    for when, size in copied:
        bench.now = 1000.0 + when
        bench.throttle.record(size)
    bench.now = 1000.0 + at
    assert bench.throttle.is_exceeded() is is_exceeded
    assert (bench.throttle.free_in() > 0) is is_exceeded


def test_bytes_about_to_be_copied_count_too() -> None:
    throttle = Bench(rate=1000).throttle
    assert not throttle.is_exceeded(pending=999)
    assert throttle.is_exceeded(pending=1000)


def test_a_changed_rate_takes_effect_at_once() -> None:
    bench = Bench(rate=1000)
    bench.throttle.record(5000)
    assert bench.throttle.is_exceeded()
    bench.throttle.rate = 10_000
    assert not bench.throttle.is_exceeded()


STEPS = st.lists(
    st.tuples(st.floats(0, 5), st.integers(1, 50_000)),
    min_size=1,
    max_size=60,
)


@given(STEPS, st.integers(1, 20_000), st.integers(1, 11))
def test_never_more_than_rate_times_time_and_one_burst(steps: list[tuple[float, int]], rate: int, samples: int) -> None:
    """Whoever asks before each copy never gets more than rate x t, one sample's worth and one answer; later on the burst
    can be what the window has left unused."""
    bench = Bench(rate, samples)
    copied: list[tuple[float, int]] = []
    for pause, size in steps:
        bench.now += pause
        if not bench.throttle.is_exceeded():
            bench.throttle.record(size)
            copied.append((bench.now, size))
    largest = max((size for _, size in copied), default=0)
    for first, (since, _) in enumerate(copied):
        total = 0
        unused = samples if first else 0
        for when, size in copied[first:]:
            total += size
            assert total <= rate * (when - since + unused + 1) + largest + 1


@given(STEPS, st.integers(1, 20_000))
def test_after_waiting_for_free_in_something_may_be_copied(steps: list[tuple[float, int]], rate: int) -> None:
    """No busy loop: a few waits of `free_in` are enough, and each is longer than 0."""
    bench = Bench(rate)
    for pause, size in steps:
        bench.now += pause
        bench.throttle.record(size)
    for _ in range(100):
        wait = bench.throttle.free_in()
        if wait == 0.0:
            return
        bench.now += wait
    raise AssertionError("still exceeded")
