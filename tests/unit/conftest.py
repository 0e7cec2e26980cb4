"""Unit tests may be coroutines, and collect little garbage."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

LIMIT_S = 60.0
"""Nothing that a unit test awaits takes so long."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay to the end: no collection need look at them, nor at each test's young objects twice."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine: in the loop of `runner`, if a fixture of the test uses it, else in a loop of its own,
    which the fixture `new_loop` may make.

    A fixture that is an asynchronous context manager is entered before the test.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def play() -> None:
        async with asyncio.timeout(LIMIT_S), contextlib.AsyncExitStack() as stack:
            arguments: dict[str, Any] = {}
            for name in pyfuncitem._fixtureinfo.argnames:
                value = pyfuncitem.funcargs[name]
                is_entered = hasattr(value, "__aenter__")
                arguments[name] = await stack.enter_async_context(value) if is_entered else value
            await pyfuncitem.obj(**arguments)

    if "runner" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["runner"].run(play())
        return True
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("new_loop")) as own_runner:
        own_runner.run(play())
    return True


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """Runs what other fixtures await, in the loop of the test."""
    with asyncio.Runner() as runner:
        yield runner
