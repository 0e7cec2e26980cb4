"""Which logs are to be flushed now: those that rolled, and those whose flush interval in messages or time is over (LOG-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.storage.log import Log, LogDirFailed


class DueFlushes:
    """`rolled` is told of each log that begins a segment."""

    def __init__(self) -> None:
        self._rolled: set[Log] = set()
        self._last: dict[Log, float] = {}

    def rolled(self, log: Log) -> None:
        self._rolled.add(log)

    def forget(self, log: Log) -> None:
        """It is gone."""
        self._rolled.discard(log)
        self._last.pop(log, None)

    async def flush(self, logs: Iterable[Log], now: float, report: Callable[[LogDirFailed], None]) -> None:
        """Those of the logs that are due; a failure is reported, and the others go on."""
        for found in logs:
            unflushed = found.log_end_offset - found.recovery_point
            since = self._last.setdefault(found, now)
            if unflushed == 0:
                self._last[found] = now
            elif (
                found in self._rolled
                or unflushed >= found.config.flush_messages
                or (now - since) * 1000 >= found.config.flush_ms
            ):
                self._rolled.discard(found)
                self._last[found] = now
                try:
                    await found.flush()
                except LogDirFailed as error:
                    report(error)
