"""Telling the controller that a log directory failed: `/log_dir_event_notification/log_dir_event_<seq>` (LOG-6, KIP-112).

The node says which broker; the controller then asks that broker, so one node is enough for failures that come together. Without
a connection it is tried again. After a lost session it need not be: the controller asks every life of a broker in its beginning.
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
    """One per broker. A lost answer may leave two nodes, which does no harm."""

    def __init__(self, zk: SequentialNodes, broker_id: int, *, retry_s: float = RETRY_S_MIN) -> None:
        self._zk = zk
        self._data = LogDirEventZNode.encode(broker_id)
        self._retry_s = retry_s
        self._is_untold = False
        self._teller: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Returns at once."""
        self._is_untold = True
        if self._teller is None:
            self._teller = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)

    async def _tell(self) -> None:
        retry_s = self._retry_s
        try:
            while self._is_untold:
                self._is_untold = False
                try:
                    await self._zk.create(LogDirEventZNode.PATH_PREFIX, self._data, sequence=True)
                except ZkError as error:
                    log.info("the failed log directory is not announced yet: %s", error)
                    self._is_untold = True
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_S_MAX)
        finally:
            self._teller = None
