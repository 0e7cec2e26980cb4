"""Splits long work of coordinators into short slices with loop turns in between, so that no heartbeat waits for it (NET-4)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from broker.purgatory import Timers

SLICE_S = 0.002
"""How long one slice keeps the loop."""

TURNS_PER_PAUSE = 4
"""Loop turns between two slices of a coroutine. A request needs about this many turns from socket to answer, so it waits for at
most one slice."""

Item = TypeVar("Item")


def nothing() -> None:
    """The default of `then`."""


class SlicedWork:
    """Long work without a coroutine: one slice in each turn of the loop, which all works share. They take turns, a slice each.

    A work starts at once if this turn's slice is not used up. `monotonic` is the machine's clock, `timers` the loop.
    """

    def __init__(self, timers: Timers, monotonic: Callable[[], float]) -> None:
        self._timers = timers
        self._monotonic = monotonic
        self._works: deque[tuple[Iterator[object], Callable[[], None]]] = deque()
        """The steps of each work, and what follows."""
        self._left_s = SLICE_S
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
        self._left_s = SLICE_S
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
