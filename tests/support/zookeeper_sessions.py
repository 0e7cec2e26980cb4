"""Sessions with a real ZooKeeper, for the gateway's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protocol.zk.access import ANONYMOUS, ZooKeeperAccess
from protocol.zk.session import SessionState, ZooKeeperSession


@asynccontextmanager
async def open_session(
    hosts: str, session_timeout_ms: int = 4000, access: ZooKeeperAccess = ANONYMOUS
) -> AsyncIterator[ZooKeeperSession]:
    session = ZooKeeperSession(hosts, session_timeout_ms=session_timeout_ms, access=access)
    await session.start(10)
    try:
        yield session
    finally:
        await session.close()


class States:
    """Records the changes of state, with the session id at that moment."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.seen: list[tuple[SessionState, int]] = []
        self._session = session
        self._changed = asyncio.Event()
        session.add_listener(self._note)

    def _note(self, state: SessionState) -> None:
        self.seen.append((state, self._session.session_id))
        self._changed.set()

    async def wait_for(self, state: SessionState) -> None:
        """Waits until the session has reached the state since the last call."""
        while state not in (seen for seen, _ in self.seen):
            self._changed.clear()
            await self._changed.wait()


async def session_is(session: ZooKeeperSession, state: SessionState) -> None:
    reached = asyncio.Event()

    def listener(new: SessionState) -> None:
        if new is state:
            reached.set()

    session.add_listener(listener)
    if session.state is not state:
        await reached.wait()
    session.remove_listener(listener)
