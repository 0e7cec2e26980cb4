"""Recovery points that a truncation has lowered: on the disk before anything is appended to such a log (INV-21).

The same holds for the offset up to which a log is clean (LOG-4).

After a cut below the recovery point, what is written there is not synced, so a checkpoint that still has the old point must not
be found after a power loss. The cut itself needs no such care: all that is left of the log was synced, and a point beyond
its end is taken for its end. So a cut only notes the log here. In a rolling restart thousands of partitions are cut at about the
same time; they wait together for one checkpoint of each directory, which a thread writes. An append that comes before it
is written writes it itself, for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from broker.storage.log import Log, LogDirFailed, failure_of

PAUSE_S = 0.02
"""Between two checkpoints: cuts come in slices, and each checkpoint names all logs of its directory."""


class LoweredPoints:
    """`write` a directory's checkpoint in a thread, or `write_now`; both call `written`. Either raises OSError."""

    def __init__(
        self,
        write: Callable[[str], Awaitable[None]],
        write_now: Callable[[str], None],
        report: Callable[[LogDirFailed], None],
    ) -> None:
        self._write = write
        self._write_now = write_now
        self._report = report
        self._behind: dict[Log, None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._wrote = asyncio.Event()

    def lowered(self, log: Log) -> None:
        """Its point was lowered. Raises OSError where there is no loop to write it later."""
        self._behind[log] = None
        if self._writing is None or self._writing.done():
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._write_now(log.log_dir)
                return
            self._writing = loop.create_task(self._write_all())

    def needed(self, log: Log) -> None:
        """It is going to be written. Raises OSError."""
        self._write_now(log.log_dir)
        log.is_point_behind = False
        self._behind.pop(log, None)

    async def settled(self, log: Log) -> None:
        """Waits until appending to the log needs no checkpoint any more."""
        while log in self._behind and self._writing is not None and not self._writing.done():
            await self._wrote.wait()

    async def done(self) -> None:
        """Waits for what is being written."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    def forget(self, log: Log) -> None:
        """It is gone."""
        self._behind.pop(log, None)

    def behind(self, log_dir: str) -> dict[Log, int]:
        """The directory's logs that wait for a checkpoint, and how often each was cut."""
        return {log: log.cuts for log in self._behind if log.log_dir == log_dir}

    def written(self, behind: Mapping[Log, int]) -> None:
        """What these logs said when `behind` gave them is on the disk; or they are gone with their directory."""
        for log, cuts in behind.items():
            # One that was cut again meanwhile waits for the next.
            if log in self._behind and log.cuts == cuts:
                log.is_point_behind = False
                del self._behind[log]

    async def _write_all(self) -> None:
        is_first = True
        while self._behind:
            if not is_first:
                await asyncio.sleep(PAUSE_S)
            is_first = False
            try:
                for log_dir in {log.log_dir for log in self._behind}:
                    await self._write_one(log_dir)
            finally:
                self._wrote.set()
                self._wrote = asyncio.Event()

    async def _write_one(self, log_dir: str) -> None:
        try:
            await self._write(log_dir)
        except OSError as error:
            # Each still knows that it is behind: the append that comes next writes the checkpoint itself.
            for log in self.behind(log_dir):
                del self._behind[log]
            self._report(failure_of(log_dir, error))
