"""Whether a task's loop has time for its work: how late its own timer comes, and how much CPU its process takes (RPL-2).

The loop *stands still* while the timer is late by STILL_NS or more: the process was stopped, had no processor, or was busy with something
else. What is due then leaves late, and what is answered then is read late; neither is the cluster's doing.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import Callable

TICK_NS = 10_000_000
STILL_NS = 20_000_000
BACK_NS = 100_000_000
"""For so long after a standstill, the loop still reads answers that came in it."""


class LoopMeter:
    """`now_ns`: the replay's common clock. `cpu_ns`: the CPU time of the process."""

    def __init__(self, now_ns: Callable[[], int], cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._now = now_ns
        self._cpu_ns = cpu_ns
        self._ticked = now_ns()
        self._deaf = (0, -BACK_NS)
        """The last standstill, with those before it whose answers it has kept waiting."""
        self.still: list[tuple[int, int]] = []
        """(from, to) of each standstill; those that follow each other are one."""
        self._began = (now_ns(), cpu_ns())

    async def run(self) -> None:
        """Until it is cancelled."""
        self._ticked = self._now()
        self._began = (self._ticked, self._cpu_ns())
        while True:
            self.tick()
            await asyncio.sleep(TICK_NS / 1e9)

    def tick(self) -> None:
        """To be called every TICK_NS."""
        now = self._now()
        if now - self._ticked >= TICK_NS + STILL_NS:
            self._deaf = self._deaf_until(now)
            begin = self.still.pop()[0] if self.still and self.still[-1][1] == self._ticked else self._ticked
            self.still.append((begin, now))
        self._ticked = now

    def unheard_since(self, sent: int, answered: int) -> int:
        """From when on an answer that is read now may have waited; 0 if the loop has listened all the time since `sent`."""
        begin, end = self._deaf_until(answered) if answered - self._ticked >= TICK_NS + STILL_NS else self._deaf
        return max(begin, sent) if sent < end and answered <= end + BACK_NS else 0

    def ready_since(self, ready: int, until: int) -> int:
        """When the loop could first send what was made ready at `ready` and was not sent before `until`: behind a standstill."""
        if until - ready < STILL_NS:
            return ready
        latest = (self._ticked, self._now())
        found = bisect_right(self.still, ready, key=lambda still: still[0]) - 1
        begin, end = self.still[found] if found >= 0 else latest
        if end <= ready and latest[1] - latest[0] >= TICK_NS + STILL_NS:
            begin, end = latest
        return min(end, until) if begin <= ready < end else ready

    def _deaf_until(self, now: int) -> tuple[int, int]:
        """(from, to) of the standstill that lasts from the last tick until now. One that ended just before it is a part of it."""
        begin, end = self._deaf
        return (begin if self._ticked <= end + BACK_NS else self._ticked, now)

    def to_json(self) -> bytes:
        """The standstills, and how many cores the process used on average."""
        began, cpu_began = self._began
        cores = (self._cpu_ns() - cpu_began) / max(self._now() - began, 1)
        return json.dumps({"still": self.still, "cores": cores}).encode()
