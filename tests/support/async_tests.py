"""Tests that are coroutines: a conftest imports the hook for the tests beside it."""

from __future__ import annotations

import asyncio
import inspect

import pytest

TIMEOUT_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}

    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(limited())
    return True
