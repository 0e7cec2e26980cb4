"""The part of an event loop that a request channel needs, for tests that run it themselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def no_pause() -> None:
    """The pause between two partitions of a control request, for tests where nobody else needs a turn."""


def at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise AssertionError("it waits")


class Turns:
    """A loop that runs when told."""

    def __init__(self) -> None:
        self._ready: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append((callback, args))

    def run_once(self) -> None:
        """One turn."""
        ready, self._ready = self._ready, []
        for callback, args in ready:
            callback(*args)

    def run(self) -> None:
        """Runs turns until nothing is left to do."""
        while self._ready:
            self.run_once()
