"""Waits of an admin's request: for ZooKeeper, and until the metadata cache shows the result."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.admin.topic_admin import ZOOKEEPER_WAIT_MAX_S
from broker.requests.context import ApiContext

WAIT_MAX_S = 300.0
"""Limit of the wait, whatever time-out the request has: its client may have disconnected."""
WAITERS_MAX = 1_000
"""Limit of waiters, because every update of the cache checks all of them. Further callers do not wait."""

Item = TypeVar("Item")


async def until(context: ApiContext, is_so: Callable[[], bool], deadline: float) -> None:
    """Returns when `is_so()` is true, or at `deadline` (monotonic seconds). Every update of the cache checks `is_so()`.

    Returns at once if too many others wait.
    """
    if is_so() or context.metadata.listener_count >= WAITERS_MAX:
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


async def for_zookeeper(context: ApiContext, deadline: float = math.inf) -> None:
    """Returns when the broker is connected to ZooKeeper, at `deadline` (monotonic seconds), or after ZOOKEEPER_WAIT_MAX_S.

    When a server of the ensemble restarts, an admin's request is therefore delayed and does not fail. (Kafka's KafkaZkClient retries until
    it is connected, without a limit.)
    """
    left = deadline - context.clock.monotonic()
    await context.zookeeper.until_connected(max(0.0, min(left, ZOOKEEPER_WAIT_MAX_S)))


async def for_all(
    context: ApiContext, items: Iterable[Item], is_done: Callable[[Item], bool], deadline: float
) -> list[Item]:
    """Waits until every item has been done at some time, or until `deadline` (monotonic seconds). Returns the items that are not done.

    An update of the cache checks only the first item that is not done: there may be ten thousand items and as many updates.
    """
    pending = deque(items)

    def none_is_left() -> bool:
        while pending and is_done(pending[0]):
            pending.popleft()
        return not pending

    await until(context, none_is_left, deadline)
    return [item for item in pending if not is_done(item)]
