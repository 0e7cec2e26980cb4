"""Which logs are to be flushed now: those that rolled, and those whose flush interval in messages or time is over (LOG-3).

By default no topic has such an interval, so only what rolled is looked at: not ten thousand logs each second.
"""

from __future__ import annotations

import asyncio

from broker.settings.config import LONG_MAX
from broker.storage.log import Log, LogDirFailed, is_passing

LOGS_IN_A_SLICE = 500


class DueFlushes:
    """`rolled` is told of each log that begins a segment, `watch` of each log that is new or has other settings."""

    def __init__(self) -> None:
        self._rolled: dict[Log, None] = {}
        # Of logs with an interval: since when something of it may be unflushed, None until the next look.
        self._since: dict[Log, float | None] = {}

    def rolled(self, log: Log) -> None:
        self._rolled[log] = None

    def watch(self, log: Log) -> None:
        if log.config.flush_messages < LONG_MAX or log.config.flush_ms < LONG_MAX:
            self._since.setdefault(log, None)
        else:
            self._since.pop(log, None)

    def forget(self, log: Log) -> None:
        """It is gone."""
        self._rolled.pop(log, None)
        self._since.pop(log, None)

    async def flush(self, now: float) -> None:
        """Those that are due; one that fails does not stop the others."""
        for at, found in enumerate([*self._since, *(log for log in self._rolled if log not in self._since)], 1):
            if at % LOGS_IN_A_SLICE == 0:
                await asyncio.sleep(0)
            if found not in self._since and found not in self._rolled:
                continue  # it is gone
            unflushed = found.log_end_offset - found.recovery_point
            since = self._since.get(found)
            if since is None or unflushed == 0:
                since = now
            is_due = (
                found in self._rolled
                or unflushed >= found.config.flush_messages
                or (now - since) * 1000 >= found.config.flush_ms
            )
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
                        self._rolled[found] = None  # once more with the next tick
