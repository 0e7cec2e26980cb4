"""A clock and timers that a test moves by hand."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class FakeHandle:
    """A timer of `call_later`."""

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        if self.callback is not None:
            self.callback(*self.args)


class FakeTime:
    """Both the `Clock` and the `Timers` of the broker. Nothing runs before `turn` or `advance`."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self.suspended_s = 0.0
        """How long the machine was suspended, which `monotonic` does not see."""
        self._soon: deque[FakeHandle] = deque()
        self._later: list[tuple[float, int, FakeHandle]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def since_boot(self) -> float:
        return self.now + self.suspended_s

    def wall_ms(self) -> int:
        return int((self.now + self.suspended_s) * 1000)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> FakeHandle:
        handle = FakeHandle(callback, args)
        self._soon.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> FakeHandle:
        handle = FakeHandle(callback, args)
        heapq.heappush(self._later, (self.now + delay, next(self._order), handle))
        return handle

    def turn(self) -> None:
        """Runs one turn of the loop, and the turns that it requests."""
        while self._soon:
            self._soon.popleft().run()

    def single_turn(self) -> None:
        """One turn of the loop."""
        for _ in range(len(self._soon)):
            self._soon.popleft().run()

    def advance(self, seconds: float) -> None:
        """Time passes; timers run when they are due, in order."""
        end = self.now + seconds
        self.turn()
        while self._later and self._later[0][0] <= end:
            self.now, _, handle = heapq.heappop(self._later)
            handle.run()
            self.turn()
        self.now = end

    def armed(self) -> int:
        """Timers that were neither cancelled nor run."""
        return sum(handle.callback is not None for _, _, handle in self._later)


def time_of(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> SimpleNamespace:
    """The `time` of that module from now on: `now` is its monotonic time, `sleep` only moves it on."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(module, "time", clock)
    return clock
