"""Waiting until the metadata cache shows what an admin's request has set going."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.apis.context import ApiContext


async def until(context: ApiContext, is_so: Callable[[], bool], deadline: float) -> None:
    """Returns when `is_so()`, which is asked after every update of the cache, or at `deadline` (monotonic seconds)."""
    if is_so():
        return
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
