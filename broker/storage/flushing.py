"""When logs are flushed, and when leader epochs that were cut are written to their files (LOG-3, FLT-24, FLT-29).

`OwedFlushes` flushes at once what `flush.messages` asks for: producers and the leader wait for it. `DueFlushes` knows which logs to
flush in the background: those that started a new segment, and those whose `flush.ms` is over. By default no topic has such an
interval, so a tick does not look at ten thousand logs. `EpochFiles` writes leader epochs that were cut.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from itertools import islice

from broker.settings.config import LONG_MAX
from broker.storage.checkpoints import LEADER_EPOCHS
from broker.storage.directories.log_directory import FUTURE_SUFFIX
from broker.storage.disk.disk_threads import SYNCS, SYNCS_MAX
from broker.storage.disk.filesystem import HeldDirectory
from broker.storage.failures import LogDirFailed, is_passing
from broker.storage.log import Log

log = logging.getLogger(__name__)

LOGS_IN_A_SLICE = 500
WRITTEN_AT_ONCE = 1000
WRITTEN_BY_A_THREAD = 50
"""Logs per thread job, so that other jobs get a thread in between."""


class OwedFlushes:
    """One flush of a log at a time. What is appended during a flush waits for the next one: many producers share a sync (group commit).

    Until `serve`, nobody claims what logs have, and the next tick flushes. An error that may pass is retried by the next tick.
    """

    def __init__(self) -> None:
        self._due: dict[Log, None] = {}
        self._failed: dict[Log, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._is_serving = False

    def serve(self) -> None:
        """From now on flushes start at once. To be called on the loop."""
        self._is_serving = True
        self._start()

    def owed(self, log: Log) -> None:
        self._due[log] = None
        self._start()

    def forget(self, log: Log) -> None:
        """The log was removed, or failed."""
        self._due.pop(log, None)
        self._failed.pop(log, None)

    def _start(self) -> None:
        # A worker that has ended is still among them until its callback runs: it does not take what is due now.
        if self._is_serving and self._due and sum(not worker.done() for worker in self._workers) < SYNCS_MAX:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def tick(self) -> None:
        for found in self._failed:
            self._due[found] = None
        self._failed.clear()
        if self._is_serving:
            self._start()
        else:
            await self._work()

    async def close(self) -> None:
        """Starts no more flushes, and waits for those under way."""
        self._is_serving = False
        self._due.clear()
        self._failed.clear()
        if self._workers:
            await asyncio.wait(self._workers)

    async def _work(self) -> None:
        while self._due:
            found = next(iter(self._due))
            del self._due[found]
            try:
                await found.flush(SYNCS)
            except LogDirFailed as error:
                if is_passing(error):
                    self._failed[found] = None
            except Exception:
                # The task's boundary: a bug must not leave producers of other logs without an answer.
                log.exception("the flush of %s failed", found.topic_partition)
                self._failed[found] = None
            else:
                if found.owes_flush:
                    self._due[found] = None
            await asyncio.sleep(0)


class DueFlushes:
    """`rolled` is called for each log that starts a segment, `watch` for each log that is new or has other settings."""

    def __init__(self) -> None:
        self._rolled: dict[Log, None] = {}
        # The logs with `flush.ms`, and since when each may have unflushed records; None: from the next tick on.
        self._since: dict[Log, float | None] = {}

    def rolled(self, log: Log) -> None:
        self._rolled[log] = None

    def watch(self, log: Log) -> None:
        if log.config.flush_ms < LONG_MAX:
            self._since.setdefault(log, None)
        else:
            self._since.pop(log, None)

    def forget(self, log: Log) -> None:
        """The log was removed, or failed."""
        self._rolled.pop(log, None)
        self._since.pop(log, None)

    async def flush(self, now: float) -> None:
        """Flushes the logs that are due. A log that fails does not stop the others."""
        for at, found in enumerate([*self._since, *(log for log in self._rolled if log not in self._since)], 1):
            if at % LOGS_IN_A_SLICE == 0:
                await asyncio.sleep(0)
            if found not in self._since and found not in self._rolled:
                continue  # it was removed
            unflushed = found.log_end_offset - found.recovery_point
            since = self._since.get(found)
            if unflushed == 0:
                self._rolled.pop(found, None)
            if since is None or unflushed == 0:
                since = now
            is_due = found in self._rolled or (now - since) * 1000 >= found.config.flush_ms
            if unflushed and is_due:
                self._rolled.pop(found, None)
                since = now
            if found in self._since:
                self._since[found] = since
            if unflushed and is_due:
                try:
                    await found.flush()
                except LogDirFailed as error:
                    if is_passing(error):
                        self._rolled[found] = None  # the next tick retries


class EpochFiles:
    """Writes leader epochs that were cut to the logs' checkpoint files, some in each tick (LOG-3, KIP-101).

    New epochs need no file of their own, and a failover adds one to thousands of logs within a second, while clients wait for leaders: each
    flush writes the file, too, and above the recovery point the batches contain their epochs.
    """

    def __init__(self) -> None:
        self._behind: dict[Log, None] = {}
        self._writing: asyncio.Future[None] | None = None

    def cut(self, log: Log) -> None:
        self._behind[log] = None

    def forget(self, log: Log) -> None:
        """The log was removed, or failed."""
        self._behind.pop(log, None)

    async def done(self) -> None:
        """Waits for the thread that writes, even if `write_some` was cancelled."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    async def write_some(self) -> None:
        """Writes up to WRITTEN_AT_ONCE files, in the order of the cuts. A file that fails does not stop the others."""
        for _ in range(WRITTEN_AT_ONCE // WRITTEN_BY_A_THREAD):
            logs = list(islice(self._behind, WRITTEN_BY_A_THREAD))
            for log in logs:
                del self._behind[log]
            if logs:
                await self._write_together(logs)

    async def _write_together(self, logs: list[Log]) -> None:
        failures: list[tuple[Log, OSError]] = []
        # A move holds its log's lock while it waits for that of the copy: in the other order, neither would ever be flushed again.
        logs.sort(key=lambda log: log.directory.endswith(FUTURE_SUFFIX))
        async with AsyncExitStack() as locks:
            contents = [(log, await locks.enter_async_context(log.epochs_write())) for log in logs]
            writes: list[tuple[Log, HeldDirectory, bytes]] = []
            for log, content in contents:
                try:
                    directory = None if content is None else log.held_directory()
                except LogDirFailed:
                    log.leader_epochs.cut()  # still unwritten
                    continue
                if content is not None and directory is not None:
                    writes.append((log, directory, content))

            def work() -> None:
                for log, directory, content in writes:
                    try:
                        directory.write(LEADER_EPOCHS, content)
                    except OSError as failure:
                        failures.append((log, failure))
                    finally:
                        directory.release()

            self._writing = asyncio.get_running_loop().run_in_executor(None, work)
            await asyncio.shield(self._writing)
        for log, error in failures:
            log.leader_epochs.cut()  # still unwritten
            log.failed(error)
        await asyncio.sleep(0)
