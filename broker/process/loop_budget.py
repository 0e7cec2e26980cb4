"""One budget of the event loop's time for all long work of the process (NET-4).

Work on thousands of partitions runs on the loop, between the requests of clients. Each such task asks the budget after every
partition. All of them together get `SLICE_S` of one turn of the loop; then they wait, in order of arrival, and the next turn serves
one of them. A client's request therefore waits for at most one slice at each step, however many partitions change at once and however
many tasks are running.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

SLICE_S = 0.001


class Timers(Protocol):
    """The part of an event loop that the budget needs."""

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
