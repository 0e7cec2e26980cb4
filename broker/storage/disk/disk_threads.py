"""Threads for what waits for the disk, or computes long, by kind, so that nothing slow takes the threads of what clients wait for.

Flushes and checkpoints run in the threads of the loop's own executor. Reads of pages that are not in memory, the cleaner and
removals have their own: deleting a topic of thousands of large files must not hold up a consumer or a flush. Large batches are
unpacked in threads of their own, which leave a processor to the loop where there are several.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

READS = ThreadPoolExecutor(4, "log-read")
CLEANING = ThreadPoolExecutor(1, "log-clean")
REMOVALS = ThreadPoolExecutor(1, "log-remove")
UNPACKING_MAX = max(1, min(4, (os.cpu_count() or 1) // 2))
"""So many large batches are unpacked at a time, and so many lie unpacked in memory."""
UNPACKING = ThreadPoolExecutor(UNPACKING_MAX, "unpack")
"""A thread of each is started when it is first needed."""


class Places:
    """Who unpacks a large batch has one of a few places until the batch is looked through, in the order of asking."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        await self.take()
        try:
            yield
        finally:
            self.give_back()

    async def take(self) -> None:
        """Returns when it has a place, which it gives back with `give_back`."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back()
                raise

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


UNPACKING_PLACES = Places(UNPACKING_MAX)
