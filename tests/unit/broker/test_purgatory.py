"""Delayed operations are completed once, and removed from all their keys (REP-5, INV-27)."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.purgatory import AT_ONCE, SLICE_S, WAIT_MAX_S, CheckResult, DelayedOperation, Purgatory
from tests.support.fake_time import FakeTime


class Waiting(DelayedOperation[str]):
    """Is complete when `verdict` says so; records its checks and completions."""

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


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def purgatory(time: FakeTime) -> Purgatory[str]:
    return Purgatory(time)


def watching(
    purgatory: Purgatory[str], keys: Collection[str] = "a", *verdicts: CheckResult, timeout_s: float = 1
) -> list[Waiting]:
    """Adds an operation for each verdict, in this order; without verdicts, one that waits."""
    operations = [Waiting(verdict) for verdict in verdicts or [CheckResult.WAIT]]
    for operation in operations:
        purgatory.watch(operation, keys, timeout_s)
    return operations


def counts(purgatory: Purgatory[str]) -> tuple[int, int]:
    return len(purgatory), purgatory.watched_key_count()


@pytest.mark.parametrize(
    ("verdict", "timeout_s", "is_expired"),
    [(CheckResult.DONE, 10, False), (CheckResult.WAIT, 0, True), (CheckResult.WAIT, -1, True)],
)
def test_an_operation_that_is_complete_or_has_no_time_never_waits(
    time: FakeTime, purgatory: Purgatory[str], verdict: CheckResult, timeout_s: float, is_expired: bool
) -> None:
    operation = Waiting(verdict)
    assert purgatory.try_complete_else_watch(operation, ["a"], timeout_s)
    assert operation.completions == [is_expired]
    assert (*counts(purgatory), time.armed()) == (0, 0, 0)


@pytest.mark.parametrize(("timeout_s", "waits_s"), [(0.5, 0.5), (2**31, WAIT_MAX_S)], ids=["a time", "for ever"])
def test_the_time_out_completes_and_removes_the_operation(
    time: FakeTime, purgatory: Purgatory[str], timeout_s: float, waits_s: float
) -> None:
    (operation,) = watching(purgatory, "ab", timeout_s=timeout_s)
    time.advance(waits_s - 0.01)
    assert operation.completions == []
    time.advance(0.01)
    assert operation.completions == [True]
    assert counts(purgatory) == (0, 0)


def test_a_check_asks_only_operations_that_watch_the_key(purgatory: Purgatory[str]) -> None:
    (one,), (other,) = watching(purgatory, "ab"), watching(purgatory, "c")
    assert purgatory.check("b") == 0
    assert (one.asked, other.asked) == ([("b",)], [])


def test_a_check_stops_at_an_operation_behind_which_all_must_wait(purgatory: Purgatory[str]) -> None:
    done, like_all_later = CheckResult.DONE, CheckResult.WAIT_LIKE_ALL_LATER
    _, second, third = watching(purgatory, "a", done, like_all_later, done)
    assert purgatory.check("a") == 1
    assert (len(second.asked), third.asked) == (1, [])


def test_check_all_asks_each_operation_once_with_its_touched_keys(purgatory: Purgatory[str]) -> None:
    (operation,) = watching(purgatory, "abc")
    purgatory.check_all(["c", "x", "a"])
    assert operation.asked == [("c", "a")]


def test_adding_a_key_costs_the_same_however_many_are_watched(purgatory: Purgatory[str]) -> None:
    """A session of ten thousand partitions that wake one after the other."""
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    (operation,) = watching(purgatory, [])
    keys = [Key(number) for number in range(500)]
    for key in (*keys, keys[0]):
        purgatory.watch_also(operation, key)
    assert compared < 5 * len(keys)
    assert (purgatory.watched_key_count(), purgatory.check("0"), operation.asked) == (500, 0, [("0",)])
    operation.complete_now()
    assert purgatory.watched_key_count() == 0


def test_an_answer_may_cause_more_answers(purgatory: Purgatory[str]) -> None:
    """A completion that checks the same key again does not complete anything twice."""

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
    assert (len(purgatory), purgatory.watched_key_count(), time.armed()) == (0, 0, 0)


class Turns(FakeTime):
    """One turn of the loop at a time."""

    def turn(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft().run()

    def all_turns(self) -> None:
        while self._soon:
            self.turn()


BOTH_CHECKS = pytest.mark.parametrize(
    "check", [lambda purgatory: purgatory.check("a"), lambda purgatory: purgatory.check_all(["a"])], ids=["one", "all"]
)
Check = Callable[[Purgatory[str]], object]


@BOTH_CHECKS
def test_one_turn_checks_a_limited_number_of_operations(check: Check) -> None:
    """Without the limit, 10,000 fetches that waited for one partition blocked the loop at each append."""
    turns = Turns()
    purgatory: Purgatory[str] = Purgatory(turns)
    operations = watching(purgatory, "a", *[CheckResult.DONE] * (5 * AT_ONCE))
    before = 0
    for _ in range(5):
        for step in (lambda: (check(purgatory), check(purgatory)), turns.turn):
            step()
            asked = sum(len(operation.asked) for operation in operations)
            assert asked - before <= 2 * AT_ONCE
            before = asked
    turns.all_turns()
    assert all(operation.completions == [False] for operation in operations)
    assert (*counts(purgatory), len(purgatory._operations_due)) == (0, 0, 0)


@BOTH_CHECKS
def test_one_turn_checks_for_a_limited_time(check: Check, request: pytest.FixtureRequest) -> None:
    """The check of a fetch that waits for megabytes reads them."""
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
        check(purgatory)
        turns.turn()
        assert turns.now - began <= 2 * (SLICE_S + 0.002)
    if "all" in request.node.callspec.id:
        assert min(len(operation.asked) for operation in operations) > 0, "each has its turn"


@BOTH_CHECKS
def test_an_event_counts_if_the_time_out_comes_before_its_check(check: Check) -> None:
    """Otherwise a consumer would get an empty answer, and its partition would rest although it has a new record."""
    turns = Turns()
    purgatory: Purgatory[str] = Purgatory(turns)
    *_, last = watching(purgatory, "ab", *[CheckResult.WAIT] * (3 * AT_ONCE - 1), CheckResult.DONE)
    check(purgatory)
    assert last.asked == []
    purgatory._expire(last)
    assert (last.asked, last.completions) == ([("a",)], [False])
    turns.all_turns()
    assert last.completions == [False]


def test_a_request_is_answered_at_once_when_too_many_wait(time: FakeTime) -> None:
    purgatory: Purgatory[str] = Purgatory(time, keys_max=5)
    some, more, few = Waiting(), Waiting(), Waiting()
    assert not purgatory.try_complete_else_watch(some, "abc", 1)
    assert purgatory.try_complete_else_watch(more, "def", 1)
    assert not purgatory.try_complete_else_watch(few, "d", 1)
    assert (some.completions, more.completions, few.completions) == ([], [True], [])
    some.complete_now()
    assert not purgatory.try_complete_else_watch(Waiting(), "efgh", 1)
