"""Removals hold up nothing: they have one thread of their own (FLT-24 for their order)."""

from __future__ import annotations

import asyncio
import errno
import threading
from random import Random

import pytest

from broker.storage.failures import LogUnavailable
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.logs import fill, started
from tools.sim.world.disk import Loss, MemoryDisk


class SlowDisk(MemoryDisk):
    """Trees are removed only once `may_remove` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_remove = threading.Event()
        self.done: list[str] = []

    def remove_tree(self, path: str) -> None:
        assert self.may_remove.wait(30)
        if path.endswith("-delete"):
            self.done.append("remove")
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self.done.append("sync")
        super().sync_directory(path)


def started_with(disk: SlowDisk, topic: str, count: int) -> LogManager:
    manager = started(disk)
    for number in range(count):
        manager.get_or_create(TopicPartition(topic, number), None, {})
    disk.done.clear()
    return manager


def test_deleting_many_logs_starves_neither_reads_nor_flushes() -> None:
    disk = SlowDisk()
    manager = started_with(disk, "gone", 50)
    log = manager.get_or_create(TopicPartition("read", 0), None, {})
    fill(log, 10)

    async def scenario() -> None:
        try:
            for number in range(50):
                manager.delete(TopicPartition("gone", number))
            disk.is_cold = True
            async with asyncio.timeout(20):
                assert (await log.read_cold(0, 10_000, 20, True)).size > 0
                await log.flush()
            assert "remove" not in disk.done
        finally:
            disk.may_remove.set()
        await manager.shutdown()
        assert disk.done.count("remove") == 50

    asyncio.run(scenario())


def test_the_names_of_many_trees_are_synced_together_before_the_first_is_removed() -> None:
    disk = SlowDisk()
    manager = started_with(disk, "gone", 9)

    async def scenario() -> None:
        for number in range(9):
            manager.delete(TopicPartition("gone", number))
        disk.may_remove.set()
        await manager.upkeep.removals.wait()

    asyncio.run(scenario())
    # One goes at once, the others came while that was under way.
    assert disk.done == ["sync", "remove", "sync", *["remove"] * 8]
    assert [name for name in disk.list("/data") if "gone" in name] == []


@pytest.mark.parametrize("how", ["deleted", "set aside", "made in vain"])
def test_a_log_whose_removal_a_power_loss_would_undo_is_made_again_in_the_same_directory(how: str) -> None:
    """No start accepts a log in two directories."""
    tp = TopicPartition("gone", 0)
    disk = MemoryDisk()
    manager = started(disk, "/data", "/more")
    first, other = "/data", "/more"
    survivors: list[MemoryDisk] = []

    async def scenario() -> None:
        manager.futures.prefer(tp, first)
        disk.fail("sync_directory", errno.EMFILE)
        if how == "made in vain":
            disk.fail("open_to_keep", errno.EMFILE)
            with pytest.raises(LogUnavailable):
                manager.get_or_create(tp, None, {})
            del disk.failures["open_to_keep"]
        else:
            manager.get_or_create(tp, None, {})
            manager.set_aside(tp) if how == "set aside" else manager.delete(tp)
        await manager.upkeep.removals.wait()
        manager.futures.prefer(tp, other)
        assert manager.get_or_create(tp, None, {}).log_dir == first
        survivors.extend(disk.after_power_loss(Random(seed), Loss("volumes", "mixed")) for seed in range(40))
        manager.delete(tp)
        disk.failures.clear()
        manager.upkeep.removals.retry()
        await manager.upkeep.removals.wait()
        manager.futures.prefer(tp, other)
        assert manager.get_or_create(tp, None, {}).log_dir == other

    asyncio.run(scenario())
    for survivor in survivors:
        started(survivor, "/data", "/more")


def test_a_start_syncs_what_the_last_process_has_renamed() -> None:
    """Otherwise a log that it makes in another directory could meet the earlier one after a power loss."""
    tp = TopicPartition("gone", 0)
    disk = MemoryDisk()
    manager = started(disk, "/data", "/more")
    survivors: list[MemoryDisk] = []

    async def delete() -> None:
        manager.futures.prefer(tp, "/data")
        await manager.get_or_create(tp, None, {}).flush()
        disk.fail("sync_directory", errno.EMFILE)
        manager.delete(tp)
        await manager.upkeep.removals.wait()

    asyncio.run(delete())
    disk.failures.clear()
    disk = disk.for_next_process()
    again = started(disk, "/data", "/more")
    again.futures.prefer(tp, "/more")
    again.get_or_create(tp, None, {})
    survivors.extend(disk.after_power_loss(Random(seed), Loss("volumes", "mixed")) for seed in range(60))
    for survivor in survivors:
        started(survivor, "/data", "/more")
