"""Answers that take long take turns on the loop, and the bytes of their requests are limited (NET-4)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

from broker.process.loop_budget import LONG_SLICE_S
from broker.requests import long_answers
from broker.requests.long_answers import UNDER_WAY_MAX, Asked, LongAnswers, Unwanted, Work
from broker.storage.disk.disk_threads import UNPACKING_MAX, UNPACKING_PLACES
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


# -- work for a thread -------------------------------------------------------------------------------------------------


async def test_a_threads_result_is_sent_and_its_error_thrown_into_the_steps() -> None:
    def fails() -> None:
        raise ValueError("broken")

    def steps() -> Generator[Work | None, Any, list[object]]:
        found: list[object] = [(yield lambda: 7)]
        yield None
        try:
            yield fails
        except ValueError as error:
            found.append(str(error))
        return found

    answers, given = LongAnswers(lambda: 0.0), steps()
    is_done, work = answers.begin(given)
    assert not is_done
    assert await answers.go_on(asked(), given, work) == [7, "broken"]
    assert len(answers) == 0


async def test_while_threads_are_busy_other_requests_are_answered() -> None:
    blocked = threading.Event()

    def waiting() -> Generator[Work | None, Any, str]:
        yield lambda: blocked.wait(20)
        return "late"

    def short() -> Generator[Work | None, Any, str]:
        yield None
        return "short"

    answers = LongAnswers(lambda: 0.0)
    late = [answers.go_on(asked(), waiting()) for _ in range(UNPACKING_MAX + 2 * UNDER_WAY_MAX)]
    try:
        assert await asyncio.wait_for(answers.go_on(asked(), short()), 10) == "short"
        late.pop().cancel()
    finally:
        blocked.set()
    assert await asyncio.gather(*late) == ["late"] * len(late)
    while len(answers):  # noqa: ASYNC110 - nothing reports the end of the cancelled answer
        await asyncio.sleep(0)
    assert UNPACKING_PLACES._free == UNPACKING_MAX


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_what_an_answer_that_failed_has_read_is_released_at_once(is_in_thread: bool) -> None:
    """NET-2: not only by the garbage collector, which looks at old objects very rarely."""

    class Read:
        pass

    def fails() -> None:
        raise ValueError("broken")

    def steps() -> Generator[Work | None, Any, None]:
        read = Read()
        kept.append(weakref.ref(read))
        for _ in range(10):
            yield None
        if is_in_thread:
            yield fails
        fails()

    async def ask() -> None:
        given = steps()
        _, work = answers.begin(given)
        with contextlib.suppress(ValueError):
            await answers.go_on(asked(), given, work)

    kept: list[weakref.ref[Read]] = []
    looks = itertools.count()
    answers = LongAnswers(lambda: next(looks) / 2_000)
    gc.collect()
    gc.disable()
    try:
        await asyncio.create_task(ask())
        async with asyncio.timeout(10):
            while kept[0]() is not None:  # noqa: ASYNC110 - the thread may hold the error for a moment longer
                await asyncio.sleep(0)
    finally:
        gc.enable()
