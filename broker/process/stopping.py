"""Limits the time of a stop (`broker.stop.timeout.ms`), even if the controller, a disk or ZooKeeper does not answer.

Docker sends SIGKILL some time after SIGTERM (`stop_grace_period`). Unflushed data is recovered at the next start in either case, but a
broker that ends by itself has answered its clients, written its checkpoints, and closed its ZooKeeper session.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

HAND_OVER_SHARE = 0.4
"""Share of the whole time for moving the leaderships away."""
BEFORE_FLUSH_SHARE = 0.6
"""Share of the whole time for everything before the logs are flushed. The flush gets the rest."""
FAREWELL_S = 2.0
"""The last seconds of the time are reserved for closing the ZooKeeper session."""
STUCK_LOOP_S = 3.0
"""If the stop takes this much longer than the whole time, the loop is blocked."""


class LastResort:
    """A thread that ends the process if a blocked loop does not."""

    def begin(self, seconds: float) -> None:
        """After that time, it prints the stacks of all threads and ends the process, unless `cancel` was called before."""
        faulthandler.dump_traceback_later(seconds, exit=True)

    def cancel(self) -> None:
        faulthandler.cancel_dump_traceback_later()


class StopTime:
    """The time of one stop. `begin` starts it; each step then gets the time that is left for it."""

    def __init__(self, timeout_s: float, monotonic: Callable[[], float], last_resort: LastResort) -> None:
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        self._last_resort = last_resort
        self._began: float | None = None
        self._hand_over: asyncio.Task[object] | None = None

    def begin(self) -> None:
        """Starts the time; further calls have no effect."""
        if self._began is None:
            self._began = self._monotonic()
            self._last_resort.begin(self._timeout_s + STUCK_LOOP_S)

    def over(self) -> None:
        """The process ends by itself now."""
        self._last_resort.cancel()

    def hurry(self) -> None:
        """Cancels the hand-over, because a person does not want to wait for the controller."""
        if self._hand_over is not None:
            self._hand_over.cancel()

    async def hand_over(self, work: Coroutine[None, None, object]) -> None:
        """Runs `work`, in which the controller moves the leaderships away, for at most HAND_OVER_SHARE of the time. Logs its error."""
        self._hand_over = asyncio.ensure_future(work)
        await asyncio.wait((self._hand_over,), timeout=self._left_s(self._timeout_s * HAND_OVER_SHARE))
        if not self._hand_over.done():
            log.warning("not all leaderships were handed over in time: stopping anyway")
            self._hand_over.cancel()
        await asyncio.gather(self._hand_over, return_exceptions=True)
        if not self._hand_over.cancelled() and (error := self._hand_over.exception()) is not None:
            log.error("leaderships could not be handed over", exc_info=error)

    async def step(self, what: str, work: Coroutine[None, None, object]) -> bool:
        """Runs a step before the flush. Returns False if the work did not end in time. Raises what the work raises."""
        return await self._until(self._timeout_s * BEFORE_FLUSH_SHARE, what, work)

    async def flush(self, what: str, work: Coroutine[None, None, object]) -> bool:
        """Like `step`, with nearly all the remaining time."""
        return await self._until(self._timeout_s - FAREWELL_S, what, work)

    async def farewell(self, what: str, work: Coroutine[None, None, object]) -> bool:
        """Like `step`, until the end of the time."""
        return await self._until(self._timeout_s, what, work)

    async def _until(self, share_s: float, what: str, work: Coroutine[None, None, object]) -> bool:
        try:
            async with asyncio.timeout(self._left_s(share_s)):
                await work
        except TimeoutError:
            log.error("%s: not done within broker.stop.timeout.ms=%d", what, self._timeout_s * 1000)
            return False
        return True

    def _left_s(self, share_s: float) -> float:
        assert self._began is not None
        return max(0.0, self._began + share_s - self._monotonic())


async def unless_stopped(work: Coroutine[None, None, object], stop: asyncio.Event) -> bool:
    """Runs the work. Returns False if `stop` was set first, which cancels the work. Raises what the work raises."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        return False
    await task
    return True


def end_process(exit_code: int) -> None:
    """Ends the process at once. The interpreter would wait for busy threads, which may wait for a disk or recover a log.

    This is no worse than a crash: the directories on which the threads work have no marker of a clean stop.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
