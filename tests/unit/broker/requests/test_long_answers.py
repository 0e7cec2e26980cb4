"""Answers that take long take turns on the loop, and the bytes of their requests are limited (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import pytest

from broker.process.loop_budget import LONG_SLICE_S
from broker.requests import long_answers
from broker.requests.long_answers import Asked, LongAnswers, Unwanted
from tests.support.api_world import turns

Steps = Generator[None, None, int]


class Time:
    """A step takes a tenth of a slice."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slices: list[tuple[str, int]] = []

    def monotonic(self) -> float:
        return self.now

    def steps(self, name: str, count: int) -> Steps:
        for number in range(count):
            self.now += LONG_SLICE_S / 10
            self.slices.append((name, number))
            yield
        return count


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def answers(time: Time) -> LongAnswers:
    return LongAnswers(time.monotonic)


def asked(size: int = 1, is_wanted: Callable[[], bool] = lambda: True) -> Asked:
    return Asked(size, is_wanted)


async def test_answers_that_start_in_the_same_turn_share_a_slice(time: Time, answers: LongAnswers) -> None:
    for name in "abc":
        assert answers.begin(time.steps(name, 100)) == (False, None)
    taken = [sum(1 for other, _ in time.slices if other == name) for name in "abc"]
    assert taken[0] >= 10, "a slice"
    assert max(taken[1:]) <= 3, "each has BEGINNING_S"
    await turns(2)
    assert answers.begin(time.steps("d", 100)) == (False, None)
    assert sum(1 for other, _ in time.slices if other == "d") >= 10


async def test_long_answers_take_turns(time: Time, answers: LongAnswers) -> None:
    done = [answers.go_on(asked(), time.steps(name, 30)) for name in "ab"]
    assert await asyncio.gather(*done) == [30, 30]
    runs = [name for at, (name, _) in enumerate(time.slices) if at == 0 or time.slices[at - 1][0] != name]
    assert runs == ["a", "b", "a", "b", "a", "b"]
    assert len(answers) == 0


async def test_the_bytes_of_requests_in_progress_are_limited(
    time: Time, answers: LongAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_answers, "UNDER_WAY_BYTES_MAX", 100)
    sizes = {"a": 60, "b": 60, "c": 300, "d": 10}
    done = [answers.go_on(asked(size), time.steps(name, 20)) for name, size in sizes.items()]
    await asyncio.gather(*done)
    order = [name for name, _ in time.slices]
    first = {name: order.index(name) for name in sizes}
    last = {name: len(order) - 1 - order[::-1].index(name) for name in sizes}
    assert first["a"] < first["b"]
    assert first["b"] > last["a"]
    assert first["c"] > last["b"], "a single request may be larger than the limit"
    assert first["d"] > last["c"]


async def test_an_unwanted_or_cancelled_answer_ends(time: Time, answers: LongAnswers) -> None:
    gone = answers.go_on(asked(is_wanted=lambda: False), time.steps("a", 100))
    cancelled = answers.go_on(asked(), time.steps("b", 100))
    cancelled.cancel()
    with pytest.raises(Unwanted):
        await gone
    await turns(20)
    assert not time.slices
    assert len(answers) == 0


async def test_an_error_is_raised_in_the_waiter(time: Time, answers: LongAnswers) -> None:
    def failing() -> Steps:
        yield
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        await answers.go_on(asked(), failing())
    assert len(answers) == 0


async def test_slice_of_own_ends_the_slice_of_the_other_answers(time: Time, answers: LongAnswers) -> None:
    """The waiter of such a slice works after it, in the same turn."""
    own = answers.slice_of_own(asked())
    other = answers.go_on(asked(), time.steps("a", 5))
    await own
    assert not time.slices
    assert await other == 5
