"""All long work shares one slice of each turn of the loop (NET-4)."""

import asyncio

from broker.process.loop_budget import SLICE_S, LoopBudget
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
