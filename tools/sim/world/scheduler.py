"""Virtual time: events in their order. Time stands still while an event runs, and jumps to the next one."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from random import Random
from typing import Any

START_S = 1_000.0
"""The machine's monotonic time at the start of a world."""
WALL_START_S = 1_767_225_600
"""The wall clock at START_S: 2026-01-01 UTC."""


class Scheduler:
    """The events of a whole world. `now` is in seconds."""

    def __init__(self, random: Random) -> None:
        self.now = START_S
        self.random = random
        self._chance = random.random
        self.events_run = 0
        self.is_stopped = False
        """Nothing happens any more: a promise was broken."""
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        """Runs `call` at that time, at the earliest now. Events of the same time keep the order of these calls."""
        self._number += 1
        heappush(self._events, (when if when > self.now else self.now, self._number, call, args))

    def call_after(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        self.call_at(self.now + delay_s, call, *args)

    def soon(self, mean_s: float) -> float:
        """A delay of that mean, with an exponential distribution."""
        return -log(1.0 - self._chance()) * mean_s

    def run(self, until: float) -> None:
        """Runs all events up to that time, or until the world is stopped."""
        events, pop = self._events, heappop
        while not self.is_stopped:
            if not events or events[0][0] > until:
                self.now = max(self.now, until)
                return
            self.now, _, call, args = pop(events)
            self.events_run += 1
            call(*args)
