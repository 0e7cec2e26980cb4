"""Removals hold up nothing: they have one thread of their own (FLT-24 for their order)."""

from __future__ import annotations

import asyncio
import threading

from broker.settings.config import TopicConfig
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.logs import fill
from tests.support.memory_disk import MemoryDisk


class SlowDisk(MemoryDisk):
    """Trees are removed only once `may_remove` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_remove = threading.Event()
        self.removed: list[str] = []

    def remove_tree(self, path: str) -> None:
        assert self.may_remove.wait(30)
        if path.endswith("-delete"):
            self.removed.append(path)
        super().remove_tree(path)


def test_deleting_many_logs_starves_neither_reads_nor_flushes() -> None:
    disk = SlowDisk()

    async def scenario() -> None:
        manager = LogManager(["/data"], TopicConfig(), disk, FakeTime())
        await manager.start()
        log = manager.get_or_create(TopicPartition("read", 0), None, {})
        fill(log, 10)
        for number in range(50):
            manager.get_or_create(TopicPartition("gone", number), None, {})
        try:
            for number in range(50):
                manager.delete(TopicPartition("gone", number))
            disk.is_cold = True
            async with asyncio.timeout(20):
                assert (await log.read_cold(0, 10_000, 20, True)).size > 0
                await log.flush()
            assert disk.removed == []
        finally:
            disk.may_remove.set()
        await manager.shutdown()
        assert len(disk.removed) == 50

    asyncio.run(scenario())


def test_the_names_of_many_trees_are_synced_together_before_the_first_goes() -> None:
    disk = SlowDisk()
    calls: list[str] = []
    sync, remove = disk.sync_directory, disk.remove_tree

    def syncs(path: str) -> None:
        calls.append("sync")
        sync(path)

    def removes(path: str) -> None:
        if path.endswith("-delete"):
            calls.append("remove")
        remove(path)

    async def scenario() -> None:
        manager = LogManager(["/data"], TopicConfig(), disk, FakeTime())
        await manager.start()
        for number in range(9):
            manager.get_or_create(TopicPartition("gone", number), None, {})
        disk.sync_directory, disk.remove_tree = syncs, removes  # type: ignore[method-assign]
        for number in range(9):
            manager.delete(TopicPartition("gone", number))
        disk.may_remove.set()
        await manager.upkeep.removals.wait()

    asyncio.run(scenario())
    # One goes at once, the others came while that was under way.
    assert calls == ["sync", "remove", "sync", *["remove"] * 8]
    assert [name for name in disk.list("/data") if "gone" in name] == []
