"""Long work takes turns on the event loop, a *slice* of time in each, so that no request waits for more than a slice (NET-4).

Which one to use:

* `LoopBudget`: coroutines that work on thousands of partitions. They ask it after every partition. All of them together get `SLICE_S`
  of one turn of the loop; then they wait, in order of arrival, and the next turn serves one of them. A client's request therefore waits
  for at most one slice at each step, however many partitions change at once and however many tasks are running.
* `SlicedWork`: the work of a coordinator that has no coroutine.
* `TimeSlice`: one coroutine that reads much, such as the load of a partition of groups.
* `broker/requests/long_answers.py`: requests that take long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

SLICE_S = 0.001
"""How long all users of a `LoopBudget` together may use one turn of the loop."""
LONG_SLICE_S = 0.002
"""How long one slice of a coordinator's work, or of the long answers, keeps the loop."""
TURNS_PER_PAUSE = 4
"""Loop turns between two slices of a `TimeSlice` or of the long answers. A request needs about this many turns from socket to answer, so
it waits for at most one slice."""

Item = TypeVar("Item")


def nothing() -> None:
    """The default of `then`."""


class Timers(Protocol):
    """The part of an event loop that is needed here."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object: ...


class LoopBudget:
    """`monotonic` is the machine's clock, `timers` the loop."""

    def __init__(self, timers: Timers, monotonic: Callable[[], float]) -> None:
        self._timers = timers
        self._monotonic = monotonic
        self._ends_at: float | None = None
        """When this turn's slice ends; None if nothing has run in this turn yet."""
        self._is_next_turn_scheduled = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def is_spent(self) -> bool:
        """True if the caller should `pause` before it continues."""
        now = self._monotonic()
        if self._ends_at is None:
            self._ends_at = now + SLICE_S
            self._schedule_next_turn()
            return False
        return now >= self._ends_at

    async def pause(self) -> None:
        """Waits for the next slice; returns at once while there is budget left. The caller must then check what has changed."""
        if self.is_spent():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._schedule_next_turn()
            await turn

    def _schedule_next_turn(self) -> None:
        if not self._is_next_turn_scheduled:
            self._is_next_turn_scheduled = True
            self._timers.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_next_turn_scheduled = False
        self._ends_at = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # it is done if its task was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self._schedule_next_turn()


class SlicedWork:
    """Long work without a coroutine: one slice in each turn of the loop, which all works share. They take turns, a slice each.

    A work starts at once if this turn's slice is not used up. `monotonic` is the machine's clock, `timers` the loop.
    """

    def __init__(self, timers: Timers, monotonic: Callable[[], float]) -> None:
        self._timers = timers
        self._monotonic = monotonic
        self._works: deque[tuple[Iterator[object], Callable[[], None]]] = deque()
        """The steps of each work, and what follows."""
        self._left_s = LONG_SLICE_S
        """What is left of this turn's slice; below 0 if the last step took longer."""
        self._is_running = False
        self._is_renewal_due = False

    def for_each(
        self, items: Iterable[Item], act: Callable[[Item], object], then: Callable[[], None] = nothing
    ) -> None:
        """Calls `act(item)` for each item, then `then()`. `act` must check what has changed since this call."""
        self.run(map(act, items), then)

    def run(self, steps: Iterator[object], then: Callable[[], None] = nothing) -> None:
        """Runs the steps, each of at most a fraction of a millisecond, then `then()`. After each step anything may have changed.

        If this call runs the step that raises an exception, it raises it.
        """
        may_start = not self._works and not self._is_running and self._left_s > 0
        self._works.append((steps, then))
        if may_start:
            self._go_on()
        else:
            self._renew_slice()

    async def finish(self) -> None:
        """Returns when no work is left."""
        while self._works:
            self._next_turn()
            await asyncio.sleep(0)

    def _next_turn(self) -> None:
        self._is_renewal_due = False
        self._left_s = LONG_SLICE_S
        if self._works and not self._is_running:
            self._go_on()

    def _go_on(self) -> None:
        began = self._monotonic()
        is_over = False
        self._is_running = True
        try:
            while self._works and not is_over:
                steps, then = self._works.popleft()
                for _ in steps:
                    is_over = self._monotonic() - began > self._left_s
                    if is_over:
                        self._works.append((steps, then))
                        break
                else:
                    then()
                    is_over = self._monotonic() - began > self._left_s
        finally:
            self._is_running = False
            self._left_s -= self._monotonic() - began
            self._renew_slice()

    def _renew_slice(self) -> None:
        if not self._is_renewal_due:
            self._is_renewal_due = True
            self._timers.call_soon(self._next_turn)


class TimeSlice:
    """The slice of a coroutine. The coroutine calls `pause` when `is_over`, and then checks what has changed."""

    def __init__(self, monotonic: Callable[[], float], length_s: float) -> None:
        self._monotonic = monotonic
        self._length_s = length_s
        self._began = monotonic()

    def is_over(self) -> bool:
        return self._monotonic() - self._began >= self._length_s

    async def pause(self) -> None:
        for _ in range(TURNS_PER_PAUSE):
            await asyncio.sleep(0)
        self._began = self._monotonic()
