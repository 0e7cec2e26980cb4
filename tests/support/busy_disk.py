"""For the storage layer's tests: a disk on which something changes while a thread works, and threads whose work is done in place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tools.sim.world.disk import IS_IN_THREAD, MemoryDisk

T = TypeVar("T")


class BusyDisk(MemoryDisk):
    """Something changes on the loop while a thread works."""

    def __init__(self) -> None:
        super().__init__()
        self._act: Callable[[], object] = lambda: None
        self._calls_left = 0
        self._below = ""

    def will_change(self, change: Callable[[], object], call: int, *, below: str) -> None:
        """Calls `change` before the call with that number, from 1, that a thread makes from now on for what lies below that path."""
        self._act, self._calls_left, self._below = change, call, below

    @property
    def has_changed(self) -> bool:
        return self._calls_left == 0

    def _call(self, operation: str, path: str) -> None:
        if IS_IN_THREAD.get() and self._calls_left and self._shown(path).startswith(self._below):
            self._calls_left -= 1
            if self._calls_left == 0:
                on_loop = IS_IN_THREAD.set(False)
                self._act()
                IS_IN_THREAD.reset(on_loop)
        super()._call(operation, path)


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` with threads' work done in place: nothing happens by chance."""
    loop = asyncio.new_event_loop()

    def run_in_place(executor: object, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        done: asyncio.Future[T] = loop.create_future()
        in_thread = IS_IN_THREAD.set(True)
        try:
            done.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - handed over, as an executor does
            done.set_exception(error)
        finally:
            IS_IN_THREAD.reset(in_thread)
        return done

    loop.run_in_executor = run_in_place  # type: ignore[assignment, method-assign]
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
