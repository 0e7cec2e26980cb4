"""Reports a failed log directory to the controller: `/log_dir_event_notification/log_dir_event_<seq>` (LOG-6, KIP-112).

The znode names the broker, and the controller then asks that broker. One znode is therefore enough for simultaneous failures.
Without a connection the broker retries. After a lost session no retry is needed: the controller asks each broker when it has
registered again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from protocol.zk.session import Stat, ZkError
from protocol.zk.znodes import LogDirEventZNode

log = logging.getLogger(__name__)

RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0


class SequentialNodes(Protocol):
    """The part of the ZooKeeper session that is used here."""

    async def create(self, path: str, data: bytes = b"", *, sequence: bool = False) -> tuple[str, Stat]: ...


class LogDirEvents:
    """The reports of one broker. If an answer of ZooKeeper is lost, there may be two znodes, which is harmless."""

    def __init__(self, zk: SequentialNodes, broker_id: int, *, retry_s: float = RETRY_S_MIN) -> None:
        self._zk = zk
        self._data = LogDirEventZNode.encode(broker_id)
        self._retry_s = retry_s
        self._is_unreported = False
        self._reporter: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Starts to report a failed log directory. Returns at once."""
        self._is_unreported = True
        if self._reporter is None:
            self._reporter = asyncio.get_running_loop().create_task(self._report())

    async def close(self) -> None:
        """Cancels a report that is under way."""
        if self._reporter is not None:
            self._reporter.cancel()
            await asyncio.gather(self._reporter, return_exceptions=True)

    async def _report(self) -> None:
        retry_s = self._retry_s
        try:
            while self._is_unreported:
                self._is_unreported = False
                try:
                    await self._zk.create(LogDirEventZNode.PATH_PREFIX, self._data, sequence=True)
                except ZkError as error:
                    log.info("the failed log directory is not announced yet: %s", error)
                    self._is_unreported = True
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_S_MAX)
        finally:
            self._reporter = None
