"""Work on many groups, done in pieces with turns of the loop in between: a heartbeat must not wait for it (BUG-26)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from broker.purgatory import Timers

SLICE_S = 0.002
"""How long the loop is kept at a time."""

Item = TypeVar("Item")


def nothing() -> None:
    """Nothing is to be done in the end."""


class Slices:
    """`monotonic` is the machine's clock, `timers` the loop."""

    def __init__(self, timers: Timers, monotonic: Callable[[], float]) -> None:
        self._timers = timers
        self._monotonic = monotonic

    def each(self, items: Iterable[Item], act: Callable[[Item], None], then: Callable[[], None] = nothing) -> None:
        """`act(item)` for each item, then `then()`. What may have changed since the call is for `act` to look at."""
        self._go_on(iter(items), act, then)

    def _go_on(self, items: Iterator[Item], act: Callable[[Item], None], then: Callable[[], None]) -> None:
        began = self._monotonic()
        for item in items:
            act(item)
            if self._monotonic() - began > SLICE_S:
                self._timers.call_soon(self._go_on, items, act, then)
                return
        then()
