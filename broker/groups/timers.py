"""The deadlines of all groups: one heap, and one timer of the loop.

A heartbeat only moves a group's deadline later, so it does not touch the heap. The group is called at the earlier time, and
scheduled again for its next deadline.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from broker.groups.time_slices import SLICE_S
from broker.purgatory import TimerHandle, Timers

NEVER = float("inf")
STALE_MAX = 1_000


class Scheduled(Protocol):
    """What has deadlines. `armed_at` belongs to the heap: the earliest time at which the item will be called."""

    armed_at: float

    def next_deadline(self) -> float | None:
        """Seconds of the coordinator's clock."""
        ...


Item = TypeVar("Item", bound=Scheduled)


class GroupTimers(Generic[Item]):
    """Calls `due(item)` at or after its deadline. `now` is the clock of the deadlines; while `is_paused`, no deadline passes."""

    def __init__(
        self, timers: Timers, now: Callable[[], float], is_paused: Callable[[], bool], due: Callable[[Item], None]
    ) -> None:
        self._timers = timers
        self._now = now
        self._is_paused = is_paused
        self._due = due
        self._heap: list[tuple[float, int, Item]] = []
        self._armed = 0
        """Items with a deadline. An item may have several entries, of which one counts."""
        self._order = itertools.count()
        self._timer: TimerHandle | None = None
        self._timer_at = NEVER

    def __len__(self) -> int:
        """Entries of the heap, with those that do not count any more."""
        return len(self._heap)

    def schedule(self, item: Item) -> None:
        """Its deadline may have come nearer."""
        deadline = item.next_deadline()
        if deadline is None or deadline >= item.armed_at:
            return
        self._armed += item.armed_at == NEVER
        item.armed_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._order), item))
        self._drop_stale()
        self._arm()

    def forget(self, items: Iterable[Item]) -> None:
        """They are never called again."""
        for item in items:
            self.drop(item)
        self._drop_stale(all_of_them=True)
        self._arm()

    def drop(self, item: Item) -> None:
        """As `forget`, for one of many. The heap may keep it for a while."""
        self._armed -= item.armed_at != NEVER
        item.armed_at = NEVER
        self._drop_stale()

    def _drop_stale(self, *, all_of_them: bool = False) -> None:
        """Entries that do not count keep deleted groups in memory, so their number is limited."""
        if len(self._heap) > self._armed + (0 if all_of_them else self._armed + STALE_MAX):
            counting = {id(item): (at, order, item) for at, order, item in self._heap if at == item.armed_at}
            self._heap = list(counting.values())
            heapq.heapify(self._heap)

    def arm_again(self) -> None:
        """`is_paused` is false again: looks when the next deadline is."""
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
            if now - began > SLICE_S:
                break
        self._arm()
