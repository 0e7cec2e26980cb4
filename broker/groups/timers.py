"""The deadlines of all groups: one heap, and one timer of the loop.

A heartbeat only postpones a group's deadline, so it does not touch the heap. The group is called at the earlier time, and then
scheduled again for its next deadline.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from broker.process.loop_budget import LONG_SLICE_S
from broker.purgatory import TimerHandle, Timers

NEVER = float("inf")
STALE_MAX = 1_000
"""The heap keeps at most this many entries that no longer count, and one more for each item with a deadline."""


class Scheduled(Protocol):
    """An item with deadlines. Only GroupTimers sets `armed_at`, the earliest time at which it will call the item."""

    armed_at: float

    def next_deadline(self) -> float | None:
        """Seconds of the coordinator's clock."""
        ...


Item = TypeVar("Item", bound=Scheduled)


class GroupTimers(Generic[Item]):
    """Calls `due(item)` at or after the item's deadline, but not while `is_paused`. `now` is the clock of the deadlines."""

    def __init__(
        self, timers: Timers, now: Callable[[], float], is_paused: Callable[[], bool], due: Callable[[Item], None]
    ) -> None:
        self._timers = timers
        self._now = now
        self._is_paused = is_paused
        self._due = due
        self._heap: list[tuple[float, int, Item]] = []
        self._armed = 0
        """Number of items with a deadline. An item may have several heap entries; only the one at its `armed_at` counts."""
        self._order = itertools.count()
        self._timer: TimerHandle | None = None
        self._timer_at = NEVER

    def __len__(self) -> int:
        """Entries of the heap, including those that no longer count."""
        return len(self._heap)

    def schedule(self, item: Item) -> None:
        """Sets the timer if the item's deadline is earlier than before. Must be called whenever that may be so."""
        deadline = item.next_deadline()
        if deadline is None or deadline >= item.armed_at:
            return
        self._armed += item.armed_at == NEVER
        item.armed_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._order), item))
        self._drop_stale()
        self._arm()

    def drop(self, item: Item) -> None:
        """Removes one item. The heap may keep its entries for a while, but they do not count."""
        self._armed -= item.armed_at != NEVER
        item.armed_at = NEVER
        self._drop_stale()
        self._arm()

    def _drop_stale(self) -> None:
        """Limits the number of entries that do not count, because they keep deleted groups in memory."""
        heap = self._heap
        while heap and heap[0][0] != heap[0][2].armed_at:
            heapq.heappop(heap)
        if len(heap) > 2 * self._armed + STALE_MAX:
            counting = {id(item): (at, order, item) for at, order, item in heap if at == item.armed_at}
            self._heap = list(counting.values())
            heapq.heapify(self._heap)

    def arm_again(self) -> None:
        """Sets the timer for the next deadline. Called when `is_paused` is false again."""
        self._cancel()
        self._arm()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, NEVER

    def _arm(self) -> None:
        if not self._heap:
            self._cancel()
        elif self._heap[0][0] < self._timer_at:
            self._cancel()
            self._timer_at = self._heap[0][0]
            self._timer = self._timers.call_later(max(0.0, self._timer_at - self._now()), self._run)

    def _run(self) -> None:
        self._timer, self._timer_at = None, NEVER
        if self._is_paused():
            return
        began = now = self._now()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, item = heapq.heappop(self._heap)
            if deadline == item.armed_at:
                self._armed -= 1
                item.armed_at = NEVER
                self._due(item)
                self.schedule(item)
            now = self._now()
            if now - began > LONG_SLICE_S:
                break
        self._arm()
