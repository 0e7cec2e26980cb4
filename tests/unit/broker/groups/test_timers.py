"""One heap for all deadlines: updated lazily, worked off in slices, and paused with the lease."""

from __future__ import annotations

import pytest

from broker.groups import timers
from broker.groups.timers import NEVER, GroupTimers
from broker.process.loop_budget import LONG_SLICE_S
from tests.support.fake_time import FakeTime


class Thing:
    """Has a deadline, and counts its calls; each call takes `work_s`."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.armed_at = NEVER
        self.asked: list[float] = []
        self.then: float | None = None

    def next_deadline(self) -> float | None:
        return self.deadline


class World:
    def __init__(self) -> None:
        self.time = FakeTime(start=0.0)
        self.is_held = False
        self.work_s = 0.0
        self.timers = GroupTimers[Thing](self.time, self.time.monotonic, lambda: self.is_held, self.due)

    def due(self, thing: Thing) -> None:
        thing.asked.append(self.time.now)
        self.time.now += self.work_s
        if thing.deadline is not None and thing.deadline <= self.time.now:
            thing.deadline = thing.then

    def add(self, deadline: float | None) -> Thing:
        thing = Thing(deadline)
        self.timers.schedule(thing)
        return thing


@pytest.fixture
def world() -> World:
    return World()


def test_each_item_is_called_at_its_deadline_and_not_before(world: World) -> None:
    late, soon, never = world.add(5.0), world.add(1.0), world.add(None)
    world.time.advance(10)
    assert (late.asked, soon.asked, never.asked) == ([5.0], [1.0], [])
    assert world.time.armed() == 0


def test_an_item_is_called_earlier_if_its_deadline_moves_earlier(world: World) -> None:
    thing = world.add(50.0)
    thing.deadline = 2.0
    world.timers.schedule(thing)
    world.time.advance(60)
    assert thing.asked == [2.0]


def test_an_item_whose_deadline_was_postponed_is_scheduled_again(world: World) -> None:
    """A heartbeat does not touch the heap: the call at the old deadline finds the new one."""
    thing = world.add(3.0)
    thing.deadline = 8.0
    world.time.advance(5)
    assert thing.asked == [3.0]
    world.time.advance(5)
    assert thing.asked == [3.0, 8.0]
    assert len(world.timers) == 0


def test_a_dropped_item_is_not_called(world: World) -> None:
    gone, other = world.add(1.0), world.add(2.0)
    world.timers.drop(gone)
    assert len(world.timers) == 1
    world.time.advance(5)
    assert (gone.asked, other.asked) == ([], [2.0])
    world.timers.drop(world.add(9.0))
    assert (len(world.timers), world.time.armed()) == (0, 0)


def test_the_heap_does_not_keep_dropped_items(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "STALE_MAX", 10)
    one = world.add(1000.0)
    for _ in range(100):
        assert one.deadline is not None
        one.deadline -= 1
        world.timers.schedule(one)
        world.timers.drop(world.add(1000.0))
    assert len(world.timers) <= 2 + 10 + 1


def test_no_item_is_called_while_paused(world: World) -> None:
    thing = world.add(1.0)
    world.is_held = True
    world.time.advance(5)
    assert thing.asked == []
    world.is_held = False
    world.timers.arm_again()
    world.time.advance(0)
    assert thing.asked == [5.0]


def test_many_items_that_are_due_at_once_do_not_block_the_loop(world: World) -> None:
    world.work_s = LONG_SLICE_S / 4
    things = [world.add(1.0) for _ in range(100)]
    asked_before: list[int] = []
    world.time.call_later(1.0, lambda: asked_before.append(sum(len(thing.asked) for thing in things)))
    world.time.advance(1.5)
    assert all(len(thing.asked) == 1 for thing in things)
    assert 0 < asked_before[0] < 10
