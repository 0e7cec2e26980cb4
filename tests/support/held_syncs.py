"""A loop whose threads work in place, but flushes that producers wait for end only when a test says so: no test waits for a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.storage.disk.disk_threads import SYNCS
from broker.storage.disk.filesystem import FileSystem
from tools.sim.world.disk import IS_IN_THREAD


class HeldSyncs:
    """The flushes that are under way, oldest first: their disks, and the work to be done on them."""

    def __init__(self) -> None:
        self.under_way: list[tuple[FileSystem, Callable[[], object], asyncio.Future[Any]]] = []
        self.are_held = True
        self.ended = 0

    def count(self, disk: FileSystem | None = None) -> int:
        return sum(disk in (None, found) for found, _, _ in self.under_way)

    async def end(self, disk: FileSystem | None = None) -> None:
        """Ends the oldest flush on that disk, and informs those that wait for it."""
        at = next(number for number, (found, _, _) in enumerate(self.under_way) if disk in (None, found))
        _, work, done = self.under_way.pop(at)
        self.ended += 1
        _do(work, done)
        await turns()

    def release(self) -> None:
        """Ends all flushes that are under way. Nobody is informed yet."""
        ending, self.under_way = self.under_way, []
        for _, work, done in ending:
            _do(work, done)

    def forget(self, disk: FileSystem) -> None:
        """The process that used it is dead."""
        self.under_way = [entry for entry in self.under_way if entry[0] is not disk]

    async def end_all(self) -> None:
        """Ends flushes until none is owed."""
        await turns()
        while self.under_way:
            await self.end()

    def run(self, threads: object, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if threads is SYNCS and self.are_held:
            self.under_way.append((work.args[0], work, done))  # type: ignore[attr-defined]  # of `Unsynced.sync`
        else:
            _do(lambda: work(*arguments), done)
        return done


def _do(work: Callable[[], Any], done: asyncio.Future[Any]) -> None:
    in_thread = IS_IN_THREAD.set(True)
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - handed over, as an executor does
        done.set_exception(error)
    else:
        done.set_result(result)
    finally:
        IS_IN_THREAD.reset(in_thread)


async def turns(count: int = 10) -> None:
    """More than what a flush needs to begin, or to be heard of."""
    for _ in range(count):
        await asyncio.sleep(0)


def held_syncs(monkeypatch: pytest.MonkeyPatch) -> HeldSyncs:
    """Holds the flushes of all loops from now on."""
    syncs = HeldSyncs()
    monkeypatch.setattr(
        asyncio.BaseEventLoop,
        "run_in_executor",
        lambda loop, threads, work, *arguments: syncs.run(threads, work, *arguments),
    )
    return syncs
