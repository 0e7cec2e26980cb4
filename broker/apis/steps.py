"""Answers that may take long: made in steps, between which other requests have their turn (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request

SLICE_S = 0.002
"""How long an answer keeps the loop at a time."""
TURNS_PER_PAUSE = 4
"""Of the loop, between two slices: a request needs about so many from its socket to the answer."""

Steps = Generator[None, None, bytes]
"""Stops after each fraction of a millisecond; returns the response's body. What it goes by may have changed at each stop."""


def respond_in_steps(context: ApiContext, request: Request, steps: Steps) -> Coroutine[Any, Any, None] | None:
    """Answers at once what takes no longer than a slice."""
    body = _run(context, steps)
    if body is None:
        return _go_on(context, request, steps)
    request.respond_small(body)
    return None


async def _go_on(context: ApiContext, request: Request, steps: Steps) -> None:
    body = None
    while body is None:
        for _ in range(TURNS_PER_PAUSE):
            await asyncio.sleep(0)
        if not request.connection.is_open:
            return
        body = _run(context, steps)
    request.respond_small(body)


def _run(context: ApiContext, steps: Steps) -> bytes | None:
    """One slice. None: it goes on."""
    monotonic = context.clock.monotonic
    end = monotonic() + SLICE_S
    try:
        while True:
            next(steps)
            if monotonic() >= end:
                return None
    except StopIteration as done:
        body: bytes = done.value
        return body
