"""Tests that are coroutines: a runner makes their world, and passes it as their first argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Play = Callable[..., Awaitable[None]]


def played(runner: Callable[..., object], *arguments: Any, **settings: Any) -> Callable[[Play], Callable[..., None]]:
    """Makes a test of a coroutine function; its arguments after the first one are parameters and fixtures of pytest."""

    def decorate(play: Play) -> Callable[..., None]:
        @functools.wraps(play)
        def test(**values: Any) -> None:
            runner(functools.partial(play, **values), *arguments, **settings)

        signature = inspect.signature(play)
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return test

    return decorate
