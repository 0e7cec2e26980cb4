"""When a group has something to do without being asked: one heap of deadlines, one timer of the loop.

A heartbeat only moves a group's deadline later, so it does not touch the heap: the group is asked at the earlier time,
and says then when it wants to be asked again.
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
    """What has deadlines. `armed_at` is the heap's own: the earliest time at which it will be asked."""

    armed_at: float

    def next_deadline(self) -> float | None:
        """Seconds of the coordinator's clock."""
        ...


Item = TypeVar("Item", bound=Scheduled)


class GroupTimers(Generic[Item]):
    """`due(item)` is called at or after its deadline. `now` is the clock of the deadlines, `is_held` true while none may pass."""

    def __init__(
        self, timers: Timers, now: Callable[[], float], is_held: Callable[[], bool], due: Callable[[Item], None]
    ) -> None:
        self._timers = timers
        self._now = now
        self._is_held = is_held
        self._due = due
        self._heap: list[tuple[float, int, Item]] = []
        self._armed = 0
        """Items that wait; an item may have several entries, of which one counts."""
        self._order = itertools.count()
        self._timer: TimerHandle | None = None
        self._timer_at = NEVER

    def __len__(self) -> int:
        """Entries of the heap, also those that do not count any more."""
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
        """They are never asked again."""
        for item in items:
            self.drop(item)
        self._drop_stale(all_of_them=True)
        self._arm()

    def drop(self, item: Item) -> None:
        """As `forget` for one of many; the heap may have it for a while."""
        self._armed -= item.armed_at != NEVER
        item.armed_at = NEVER
        self._drop_stale()

    def _drop_stale(self, *, all_of_them: bool = False) -> None:
        """Entries that do not count keep groups in memory that are long gone: there are not many more of them than of others."""
        if len(self._heap) > self._armed + (0 if all_of_them else self._armed + STALE_MAX):
            counting = {id(item): (at, order, item) for at, order, item in self._heap if at == item.armed_at}
            self._heap = list(counting.values())
            heapq.heapify(self._heap)

    def arm_again(self) -> None:
        """`is_held` is false again: looks anew when the next deadline is."""
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
        if self._is_held():
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
