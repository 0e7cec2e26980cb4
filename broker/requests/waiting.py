"""Waiting until the metadata cache shows what an admin's request has set going."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.requests.context import ApiContext

WAIT_MAX_S = 300.0
"""Whatever the request says: its client may be gone long since."""
WAITERS_MAX = 1_000
"""That are asked after every update of the cache. Who comes then does not wait."""

Item = TypeVar("Item")


async def until(context: ApiContext, is_so: Callable[[], bool], deadline: float) -> None:
    """Returns when `is_so()`, which is asked after every update of the cache, or at `deadline` (monotonic seconds).

    Also when too many others wait.
    """
    if is_so() or context.metadata.listeners >= WAITERS_MAX:
        return
    deadline = min(deadline, context.clock.monotonic() + WAIT_MAX_S)
    changed = asyncio.Event()
    remove = context.metadata.on_change(lambda _: changed.set())
    try:
        while (left := deadline - context.clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                return
            changed.clear()
            if is_so():
                return
    finally:
        remove()


async def for_all(
    context: ApiContext, items: Iterable[Item], is_done: Callable[[Item], bool], deadline: float
) -> list[Item]:
    """Returns when each item has been done at some time, or at `deadline`: then those that are not.

    Ten thousand of them are not looked at after each of as many updates, only the first that is not done.
    """
    pending = deque(items)

    def none_is_left() -> bool:
        while pending and is_done(pending[0]):
            pending.popleft()
        return not pending

    await until(context, none_is_left, deadline)
    return [item for item in pending if not is_done(item)]
