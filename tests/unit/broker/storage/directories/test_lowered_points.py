"""Recovery points that a cut lowers are on the disk before the next append (INV-21), in one checkpoint for many logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.storage.checkpoints import RECOVERY_POINTS, decode_offsets
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.logs import failures_of, fill, started
from tests.support.memory_disk import MemoryDisk, run

LOGS = 50


class CountingDisk(MemoryDisk):
    """Knows how often a file was synced."""

    syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def play(scenario: Callable[[CountingDisk, LogManager, list[Log]], Awaitable[None]]) -> None:
    """With logs of 40 records each, all synced, and a checkpoint that says so."""
    disk = CountingDisk()
    manager = started(disk)
    logs = [manager.get_or_create(TopicPartition("t", number), None, {}) for number in range(LOGS)]
    for log in logs:
        fill(log, 20)
        run(log.flush())
    run(manager.checkpoints.write_recovery_points())
    disk.syncs = 0

    async def scenario_and_stop() -> None:
        await scenario(disk, manager, logs)
        await manager.shutdown()

    asyncio.run(scenario_and_stop())


def points(disk: MemoryDisk) -> list[int]:
    """The logs after a power loss at this moment."""
    return sorted(set(decode_offsets(disk.content(f"/data/{RECOVERY_POINTS}")).values()))


def test_many_cuts_cost_one_checkpoint() -> None:
    async def scenario(disk: CountingDisk, manager: LogManager, logs: list[Log]) -> None:
        for log in logs:
            log.truncate_to(30)
        assert disk.syncs == 0, "on the loop"
        for log in logs:
            await log.appendable()
        assert disk.syncs == 1
        assert max(points(disk)) <= 30
        for log in logs:
            fill(log, 1, epoch=1)
        assert disk.syncs == 1

    play(scenario)


@pytest.mark.parametrize("cut", [Log.truncate_to, Log.truncate_fully_and_start_at])
def test_an_append_does_not_wait_for_the_thread(cut: Callable[[Log, int], None]) -> None:
    async def scenario(disk: CountingDisk, manager: LogManager, logs: list[Log]) -> None:
        for log in logs:
            cut(log, 30)
        assert points(disk) == [40]
        fill(logs[0], 1, epoch=1)
        assert max(points(disk)) <= 30
        syncs = disk.syncs
        for log in logs:
            fill(log, 1, epoch=1)
        assert disk.syncs == syncs

    play(scenario)


def test_a_log_that_is_cut_again_while_the_checkpoint_is_written() -> None:
    async def scenario(disk: CountingDisk, manager: LogManager, logs: list[Log]) -> None:
        log = logs[0]
        log.truncate_to(30)
        await asyncio.sleep(0)  # the thread has begun
        log.truncate_to(4)
        await log.appendable()
        assert min(points(disk)) <= 4
        assert not log.is_point_behind

    play(scenario)


def test_a_log_that_is_deleted_meanwhile() -> None:
    async def scenario(disk: CountingDisk, manager: LogManager, logs: list[Log]) -> None:
        for log in logs:
            log.truncate_to(30)
            manager.delete(log.topic_partition)
        async with asyncio.timeout(10):
            await manager.checkpoints.lowered.done()

    play(scenario)


def test_a_disk_that_fails_meanwhile() -> None:
    async def scenario(disk: CountingDisk, manager: LogManager, logs: list[Log]) -> None:
        failed = failures_of(manager)
        for log in logs:
            log.truncate_to(30)
        disk.fail("sync")
        async with asyncio.timeout(10):
            await logs[0].appendable()
            await manager.checkpoints.lowered.done()
        assert failed == ["/data"]

    play(scenario)
