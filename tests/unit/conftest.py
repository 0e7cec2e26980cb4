"""Tests that are coroutines, and no time limit for an example of hypothesis: the machine may be busy."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

import pytest
from hypothesis import settings

LIMIT_S = 60.0
"""Nothing that a unit test awaits takes so long."""

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in a loop of its own: in that of the fixture `new_loop`, if the test has one.

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

    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("new_loop")) as runner:
        runner.run(play())
    return True
