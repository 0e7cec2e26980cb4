"""The controller's queue of events (CTL-3)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from controller.events import Event


class EventQueue:
    """Keeps the order, and drops an event that is equal to a queued one: one reaction, which reads the current state, serves both."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._events: deque[tuple[Event, float]] = deque()
        self._queued: set[Event] = set()
        self._is_filled = asyncio.Event()
        self.waited_s = 0.0
        """How long the event that `next` returned last was queued."""

    def __len__(self) -> int:
        return len(self._events)

    def post(self, event: Event) -> None:
        if event not in self._queued:
            self._queued.add(event)
            self._events.append((event, self._monotonic()))
            self._is_filled.set()

    async def next(self) -> Event:
        """Waits for an event and removes it; the same event can then be posted again."""
        while not self._events:
            self._is_filled.clear()
            await self._is_filled.wait()
        event, posted = self._events.popleft()
        self.waited_s = self._monotonic() - posted
        self._queued.discard(event)
        return event

    def clear(self) -> None:
        self._events.clear()
        self._queued.clear()
