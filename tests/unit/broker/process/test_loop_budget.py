"""Long work takes turns on the loop: one slice in each turn, however much of it there is (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from broker.process.loop_budget import LONG_SLICE_S, SLICE_S, LoopBudget, SlicedWork
from tests.support.fake_time import FakeTime


async def work(budget: LoopBudget, clock: FakeTime, name: str, pieces: int, log: list[str]) -> None:
    for _ in range(pieces):
        clock.now += SLICE_S / 4
        log.append(name)
        await budget.pause()


async def test_several_tasks_together_take_one_slice_of_a_turn_and_share_it() -> None:
    clock = FakeTime()
    budget = LoopBudget(asyncio.get_running_loop(), clock.monotonic)
    log: list[str] = []
    in_turns: list[list[str]] = []
    works = [asyncio.create_task(work(budget, clock, name, 20, log)) for name in "abc"]
    while not all(task.done() for task in works):
        await asyncio.sleep(0)
        in_turns.append(log.copy())
        log.clear()
    # The first piece of a work is done before it asks: three works start in the first turn.
    assert max(map(len, in_turns)) <= 5 + 2
    assert sum(map(len, in_turns)) == 60
    at_half = [name for turn in in_turns[: len(in_turns) // 2] for name in turn]
    assert all(at_half.count(name) >= 5 for name in "abc")


async def test_a_cancelled_task_does_not_delay_the_others() -> None:
    clock = FakeTime()
    budget = LoopBudget(asyncio.get_running_loop(), clock.monotonic)
    log: list[str] = []
    first, second, third = (asyncio.create_task(work(budget, clock, name, 50, log)) for name in "abc")
    await asyncio.sleep(0)
    first.cancel()
    third.cancel()
    await asyncio.wait_for(second, 10)
    assert log.count("b") == 50


# -- SlicedWork -------------------------------------------------------------------------------------------------------


class World:
    """Each step takes `step_s`. `done` has the numbers of the steps; a work ends with -1."""

    def __init__(self) -> None:
        self.time = FakeTime(start=0.0)
        self.step_s = LONG_SLICE_S
        self.sliced = SlicedWork(self.time, self.time.monotonic)
        self.done: list[int] = []

    def act(self, number: int) -> None:
        self.done.append(number)
        self.time.now += self.step_s

    def begin(self, *numbers: int) -> None:
        self.sliced.for_each(numbers, self.act, self.end)

    def end(self) -> None:
        self.done.append(-1)

    def turn(self) -> list[int]:
        """The steps of the next turn."""
        before = len(self.done)
        self.time.single_turn()
        return self.done[before:]


@pytest.fixture
def world() -> World:
    return World()


def test_other_work_runs_between_slices(world: World) -> None:
    world.begin(*range(5))
    assert world.done == [0, 1]
    world.time.call_soon(lambda: world.done.append(100))
    world.time.turn()
    assert world.done == [0, 1, 2, 3, 100, 4, -1]


def test_all_works_share_one_slice_in_each_turn(world: World) -> None:
    """Fifty partitions that are lost in one turn must not have a slice each."""
    world.step_s = 1.5 * LONG_SLICE_S
    world.begin(0, 1)
    world.begin(10, 11)
    world.begin(20)
    assert world.done == [0]
    assert [world.turn() for _ in range(6)] == [[1], [10], [20], [-1, 11], [-1, -1], []]
    world.step_s = 0.6 * LONG_SLICE_S
    for number in range(3):
        world.begin(number)
    assert world.done[-3:] == [0, -1, 1], "two use up the slice"
    assert world.turn() == [-1, 2, -1]


def test_work_that_a_step_begins_waits_for_the_step(world: World) -> None:
    def steps() -> Iterator[None]:
        world.begin(10)
        world.act(0)
        yield

    world.step_s = 0.0
    world.sliced.run(steps(), world.end)
    assert world.done == [0, -1, 10, -1]


def test_a_step_that_fails_ends_only_its_own_work(world: World) -> None:
    def fail(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        world.sliced.for_each([0, 1], fail, world.end)
    world.step_s = 1.5 * LONG_SLICE_S
    world.begin(0, 1)
    world.sliced.for_each([7], fail, world.end)
    assert world.turn() == [1]
    with pytest.raises(ValueError, match="7"):
        world.time.single_turn()
    assert world.turn() == [-1]


async def test_a_stop_finishes_all_works(world: World) -> None:
    world.begin(*range(6))
    world.begin(*range(10, 15))
    await world.sliced.finish()
    assert sorted(world.done) == [-1, -1, *range(6), *range(10, 15)]
