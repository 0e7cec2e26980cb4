"""The part of an event loop that a request channel needs, for tests that run it themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Turns:
    """A loop that runs when told."""

    def __init__(self) -> None:
        self._ready: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append((callback, args))

    def run(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, []
            for callback, args in ready:
                callback(*args)
