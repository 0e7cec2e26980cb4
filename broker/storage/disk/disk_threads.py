"""Threads for work that waits for the disk or computes long. Each kind has its own, so that slow work does not delay clients.

Background flushes and checkpoints run in the loop's default executor. Flushes that producers wait for, cold reads, the cleaner and
removals have their own threads: deleting a topic of thousands of large files must not delay a consumer or a flush. Large batches are
unpacked in so few threads that the loop keeps a processor, if there are several.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

SYNCS_MAX = 8
"""Flushes at a time that producers wait for: as many as Kafka's request handlers by default, of which each may wait for one."""
SYNCS = ThreadPoolExecutor(SYNCS_MAX, "log-sync")
READS = ThreadPoolExecutor(4, "log-read")
CLEANING = ThreadPoolExecutor(1, "log-clean")
REMOVALS = ThreadPoolExecutor(1, "log-remove")
UNPACKING_MAX = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Maximum number of large batches that are being unpacked, or are unpacked in memory, at a time."""
UNPACKING = ThreadPoolExecutor(UNPACKING_MAX, "unpack")
"""The executors start their threads when they are first needed."""


class Places:
    """Limits how many large batches are unpacked at a time. A batch holds its place until it is checked; the order is FIFO."""

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
        """Waits for a place. The caller returns it with `give_back`."""
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
