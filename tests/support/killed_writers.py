"""A broker that dies at a write to ZooKeeper, just before it is applied or just after, and what the other brokers know then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from protocol.zk.session import Op, OpResult
from tests.support.memory_zookeeper import MemorySession

WRITES_MAX = 20
"""More than any change takes."""


class Killed(BaseException):
    """The process has ended: nothing catches it."""


async def killed_at_each_write(attempt: Callable[[Callable[[MemorySession], None]], Awaitable[None]]) -> int:
    """Calls `attempt(arm)` until it has died before and after each of its writes. Returns how often it died.

    It makes a world, calls `arm` with the session of the broker that dies, lets the broker change something, and checks the rest of the
    world also when that raises Killed.
    """
    deaths = 0
    for is_applied in (False, True):
        for number in range(WRITES_MAX):
            steps = _Steps(number, is_applied=is_applied)
            await attempt(steps.arm)
            if not steps.has_died:
                break
            deaths += 1
        else:
            raise AssertionError(f"more than {WRITES_MAX} writes")
    return deaths


class _Steps:
    def __init__(self, number: int, *, is_applied: bool) -> None:
        self.has_died = False
        self._left = number
        self._is_applied = is_applied

    def arm(self, session: MemorySession) -> None:
        multi, own_id = session.server.multi, session.session_id

        def counted(ops: Sequence[Op], session_id: int) -> list[OpResult]:
            if session_id != own_id or self.has_died:
                return multi(ops, session_id)
            self._left -= 1
            if self._left >= 0:
                return multi(ops, session_id)
            self.has_died = True
            if self._is_applied:
                multi(ops, session_id)
            raise Killed

        session.server.multi = counted  # type: ignore[method-assign]
