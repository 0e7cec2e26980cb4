"""Leader epochs that changed, written to their files soon (LOG-3, KIP-101).

A crash does not need the file: below the recovery point it is right, as each flush writes it, and above it the batches tell. A
person and the next start read it. A failover gives thousands of logs one epoch more within a second, while everybody waits for
leaders, so the files are written afterwards, some in each second.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import islice

from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log

WRITTEN_AT_ONCE = 1000
WRITTEN_BY_A_THREAD = 50
"""What a thread takes at one time: others wait for one, too."""


class EpochFiles:
    """`changed` is told of each log whose epochs are not as its file has them."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._behind: dict[Log, None] = {}
        self._writing: asyncio.Future[None] | None = None

    def changed(self, log: Log) -> None:
        self._behind[log] = None

    def forget(self, log: Log) -> None:
        """It is gone."""
        self._behind.pop(log, None)

    async def done(self) -> None:
        """Waits for what a thread writes, also when `write_some` was cancelled."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def write_some(self) -> None:
        """Of those that were told first; one that fails does not stop the others."""
        for _ in range(WRITTEN_AT_ONCE // WRITTEN_BY_A_THREAD):
            logs = list(islice(self._behind, WRITTEN_BY_A_THREAD))
            for log in logs:
                del self._behind[log]
            if logs:
                await self._write_together(logs)

    async def _write_together(self, logs: list[Log]) -> None:
        failures: list[tuple[Log, OSError]] = []
        async with AsyncExitStack() as locks:
            writes = [(log, await locks.enter_async_context(log.epochs_write())) for log in logs]

            def work() -> None:
                for log, write in writes:
                    try:
                        if write is not None:
                            write.write(self._filesystem)
                    except OSError as error:
                        failures.append((log, error))

            self._writing = asyncio.get_running_loop().run_in_executor(None, work)
            await asyncio.shield(self._writing)
        for log, error in failures:
            log.leader_epochs.changed()  # they are still to be written
            log.failed(error)
        await asyncio.sleep(0)
