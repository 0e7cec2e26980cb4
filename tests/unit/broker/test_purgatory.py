"""Delayed operations: completed once, forgotten everywhere (REP-5, INV-27)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.purgatory import AT_ONCE, SLICE_S, WAIT_MAX_S, CheckResult, DelayedOperation, Purgatory
from tests.support.fake_time import FakeTime


class Waiting(DelayedOperation[str]):
    """Done once `verdict` says so; notes what happened to it."""

    def __init__(self, verdict: CheckResult = CheckResult.WAIT) -> None:
        super().__init__()
        self.verdict = verdict
        self.asked: list[tuple[str, ...]] = []
        self.completions: list[bool] = []

    def try_complete(self, keys: Collection[str]) -> CheckResult:
        self.asked.append(tuple(keys))
        return self.verdict

    def on_complete(self, *, expired: bool) -> None:
        self.completions.append(expired)


def test_what_can_be_answered_never_waits() -> None:
    time = FakeTime()
    purgatory: Purgatory[str] = Purgatory(time)
    operation = Waiting(CheckResult.DONE)
    assert purgatory.try_complete_else_watch(operation, ["a"], 10)
    assert operation.completions == [False]
    assert (len(purgatory), purgatory.watched_keys(), time.armed()) == (0, 0, 0)


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_without_time_it_expires_at_once(timeout_s: float) -> None:
    purgatory: Purgatory[str] = Purgatory(FakeTime())
    operation = Waiting()
    assert purgatory.try_complete_else_watch(operation, ["a"], timeout_s)
    assert operation.completions == [True]


def test_the_timeout_completes_and_forgets() -> None:
    time = FakeTime()
    purgatory: Purgatory[str] = Purgatory(time)
    operation = Waiting()
    assert not purgatory.try_complete_else_watch(operation, ["a", "b"], 0.5)
    time.advance(0.49)
    assert operation.completions == []
    time.advance(0.01)
    assert operation.completions == [True]
    assert (len(purgatory), purgatory.watched_keys()) == (0, 0)


def test_a_check_asks_those_that_watch_the_key_only() -> None:
    purgatory: Purgatory[str] = Purgatory(FakeTime())
    one, other = Waiting(), Waiting()
    purgatory.watch(one, ["a", "b"], 1)
    purgatory.watch(other, ["c"], 1)
    assert purgatory.check("b") == 0
    assert (one.asked, other.asked) == ([("b",)], [])


def test_a_check_stops_where_all_later_ones_must_wait() -> None:
    purgatory: Purgatory[str] = Purgatory(FakeTime())
    first, second, third = (
        Waiting(CheckResult.DONE),
        Waiting(CheckResult.WAIT_LIKE_ALL_LATER),
        Waiting(CheckResult.DONE),
    )
    for operation in (first, second, third):
        purgatory.watch(operation, ["a"], 1)
    assert purgatory.check("a") == 1
    assert (len(second.asked), third.asked) == (1, [])


def test_check_all_asks_each_operation_once_with_its_touched_keys() -> None:
    purgatory: Purgatory[str] = Purgatory(FakeTime())
    operation = Waiting()
    purgatory.watch(operation, ["a", "b", "c"], 1)
    purgatory.check_all(["c", "x", "a"])
    assert operation.asked == [("c", "a")]


def test_a_key_more_costs_the_same_however_many_are_watched() -> None:
    """A session of ten thousand partitions that wake one after the other."""
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    purgatory: Purgatory[str] = Purgatory(FakeTime())
    operation = Waiting()
    purgatory.watch(operation, [], 1)
    keys = [Key(number) for number in range(500)]
    for key in (*keys, keys[0]):
        purgatory.watch_also(operation, key)
    assert compared < 5 * len(keys)
    assert (purgatory.watched_keys(), purgatory.check("0"), operation.asked) == (500, 0, [("0",)])
    operation.complete_now()
    assert purgatory.watched_keys() == 0


def test_an_answer_may_cause_more_answers() -> None:
    """A completion that checks the same key again does not complete anything twice."""
    purgatory: Purgatory[str] = Purgatory(FakeTime())

    class Chain(Waiting):
        def on_complete(self, *, expired: bool) -> None:
            super().on_complete(expired=expired)
            purgatory.check("a")

    chain = [Chain(CheckResult.DONE) for _ in range(3)]
    for operation in chain:
        purgatory.watch(operation, ["a"], 1)
    purgatory.check("a")
    assert [operation.completions for operation in chain] == [[False]] * 3


@given(
    st.lists(st.sets(st.sampled_from("abcd"), min_size=1), max_size=12),
    st.lists(st.tuples(st.sampled_from(["check", "check_all", "now", "advance"]), st.integers(0, 11)), max_size=30),
)
def test_every_operation_is_completed_exactly_once_and_nothing_is_left(
    watched: list[set[str]], events: list[tuple[str, int]]
) -> None:
    time = FakeTime()
    purgatory: Purgatory[str] = Purgatory(time)
    operations = [Waiting() for _ in watched]
    for operation, keys in zip(operations, watched, strict=True):
        purgatory.watch(operation, sorted(keys), 5)
    for event, number in events:
        if number < len(operations):
            operations[number].verdict = CheckResult.DONE
        if event == "check":
            purgatory.check("abcd"[number % 4])
        elif event == "check_all":
            purgatory.check_all("abcd"[: number % 4])
        elif event == "now" and number < len(operations):
            operations[number].complete_now()
        elif event == "advance":
            time.advance(0.3)
    time.advance(10)
    assert all(len(operation.completions) == 1 for operation in operations)
    assert (len(purgatory), purgatory.watched_keys(), time.armed()) == (0, 0, 0)


class Turns(FakeTime):
    """Counts what one turn of the loop does."""

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self.soon.append(lambda: callback(*args))

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


@pytest.mark.parametrize("is_check_all", [False, True])
def test_of_very_many_a_turn_asks_some(is_check_all: bool) -> None:
    """10,000 fetches that wait for one partition held the loop for each append."""
    turns = Turns()
    purgatory: Purgatory[str] = Purgatory(turns)
    operations = [Waiting() for _ in range(5 * AT_ONCE)]
    for operation in operations:
        purgatory.watch(operation, ["a"], 1)

    def check() -> None:
        if is_check_all:
            purgatory.check_all(["a"])
        else:
            purgatory.check("a")

    def asked() -> int:
        return sum(len(operation.asked) for operation in operations)

    for operation in operations:
        operation.verdict = CheckResult.DONE
    before = 0
    for _ in range(5):
        check()
        check()
        assert asked() - before <= 2 * AT_ONCE
        before = asked()
        turns.turn()
        assert asked() - before <= 2 * AT_ONCE
        before = asked()
    while turns.soon:
        turns.turn()
    assert all(operation.completions == [False] for operation in operations)
    assert (len(purgatory), purgatory.watched_keys(), len(purgatory._operations_due)) == (0, 0, 0)


@pytest.mark.parametrize("is_check_all", [False, True])
def test_a_turn_does_not_ask_for_long(is_check_all: bool) -> None:
    """A fetch that waits for megabytes reads them when it is asked."""
    turns = Turns()

    class Slow(Waiting):
        def try_complete(self, keys: Collection[str]) -> CheckResult:
            turns.now += 0.002
            return super().try_complete(keys)

    purgatory: Purgatory[str] = Purgatory(turns, turns.monotonic)
    operations = [Slow() for _ in range(20)]
    for operation in operations:
        purgatory.watch(operation, ["a"], 1000)
    for _ in range(10):
        began = turns.now
        if is_check_all:
            purgatory.check_all(["a"])
        else:
            purgatory.check("a")
        turns.turn()
        assert turns.now - began <= 2 * (SLICE_S + 0.002)
    if is_check_all:
        assert min(len(operation.asked) for operation in operations) > 0, "each has its turn"


@pytest.mark.parametrize("is_check_all", [False, True])
def test_an_event_counts_although_the_time_out_comes_before_its_check(is_check_all: bool) -> None:
    """A consumer would get an empty answer, and its partition would rest with a record that nobody announces again."""
    turns = Turns()
    purgatory: Purgatory[str] = Purgatory(turns)
    operations = [Waiting() for _ in range(3 * AT_ONCE)]
    for operation in operations:
        purgatory.watch(operation, ["a", "b"], 1)
    last = operations[-1]
    last.verdict = CheckResult.DONE
    if is_check_all:
        purgatory.check_all(["a"])
    else:
        purgatory.check("a")
    assert last.asked == []
    purgatory._expire(last)
    assert (last.asked, last.completions) == ([("a",)], [False])
    while turns.soon:
        turns.turn()
    assert last.completions == [False]


def test_who_comes_when_there_are_too_many_is_answered_at_once() -> None:
    purgatory: Purgatory[str] = Purgatory(FakeTime(), keys_max=5)
    some, more, few = Waiting(), Waiting(), Waiting()
    assert not purgatory.try_complete_else_watch(some, "abc", 1)
    assert purgatory.try_complete_else_watch(more, "def", 1)
    assert not purgatory.try_complete_else_watch(few, "d", 1)
    assert (some.completions, more.completions, few.completions) == ([], [True], [])
    some.complete_now()
    assert not purgatory.try_complete_else_watch(Waiting(), "efgh", 1)


def test_nobody_waits_for_ever() -> None:
    time = FakeTime()
    purgatory: Purgatory[str] = Purgatory(time)
    operation = Waiting()
    purgatory.watch(operation, ["a"], 2**31)
    time.advance(WAIT_MAX_S)
    assert operation.completions == [True]
