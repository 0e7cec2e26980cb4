"""Answers that may take long: made in steps, between which other requests have their turn (NET-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from broker.storage.disk_threads import UNPACKING, UNPACKING_PLACES

SLICE_S = 0.002
"""How long an answer keeps the loop at a time."""
TURNS_PER_PAUSE = 4
"""Of the loop, between two slices: a request needs about so many from its socket to the answer. As often for each such answer
that is under way: a turn has about one slice in four, however many clients ask."""

Steps = Generator[None, None, bytes]
"""Stops after each fraction of a millisecond; returns the response's body. What it goes by may have changed at each stop."""
ThreadedSteps = Generator[Callable[[], Any] | None, Any, bytes]
"""As Steps, but some stops have a large batch unpacked: with what a thread is to do, whose result is sent."""


def respond_in_steps(
    context: ApiContext, request: Request, steps: Steps | ThreadedSteps
) -> Coroutine[Any, Any, None] | None:
    """Answers at once what takes no longer than a slice."""
    body = _run(context, steps, None)
    if body is None or callable(body):
        return _go_on(context, request, steps, body)
    request.respond_small(body)
    return None


class _UnderWay:
    """Counts the answers that are being made."""

    count = 0

    async def __aenter__(self) -> None:
        _UnderWay.count += 1

    async def __aexit__(self, *_: object) -> None:
        _UnderWay.count -= 1


async def _go_on(
    context: ApiContext, request: Request, steps: Steps | ThreadedSteps, body: bytes | Callable[[], Any] | None
) -> None:
    async with AsyncExitStack() as unpacking, _UnderWay():
        while body is None or callable(body):
            done = None
            if body is not None:
                await unpacking.aclose()  # what it unpacked before is no longer needed
                await unpacking.enter_async_context(UNPACKING_PLACES.place())
                done = await asyncio.get_running_loop().run_in_executor(UNPACKING, body)
            for _ in range(TURNS_PER_PAUSE * _UnderWay.count):
                await asyncio.sleep(0)
            if not request.connection.is_open:
                return
            body = _run(context, steps, done)
    request.respond_small(body)


def _run(context: ApiContext, steps: Steps | ThreadedSteps, done: Any) -> bytes | Callable[[], Any] | None:
    """One slice. None: it goes on; a callable: with its result."""
    monotonic = context.clock.monotonic
    end = monotonic() + SLICE_S
    try:
        while True:
            work = steps.send(done)
            done = None
            if work is not None:
                return work
            if monotonic() >= end:
                return None
    except StopIteration as done:
        body: bytes = done.value
        return body
