"""Splits long work of coordinators into short slices with loop turns in between, so that no heartbeat waits for it (NET-4)."""

from __future__ import annotations

import asyncio
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
    """Work on many items, without a coroutine. `monotonic` is the machine's clock, `timers` the loop."""

    def __init__(self, timers: Timers, monotonic: Callable[[], float]) -> None:
        self._timers = timers
        self._monotonic = monotonic

    def for_each(self, items: Iterable[Item], act: Callable[[Item], None], then: Callable[[], None] = nothing) -> None:
        """Calls `act(item)` for each item, then `then()`. `act` must check what has changed since this call."""
        self._go_on(iter(items), act, then)

    def _go_on(self, items: Iterator[Item], act: Callable[[Item], None], then: Callable[[], None]) -> None:
        began = self._monotonic()
        for item in items:
            act(item)
            if self._monotonic() - began > SLICE_S:
                self._timers.call_soon(self._go_on, items, act, then)
                return
        then()


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
