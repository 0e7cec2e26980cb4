"""Recovery points that a cut lowers are on the disk before the next append (INV-21), in one checkpoint for many logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from broker.storage.checkpoints import RECOVERY_POINTS, decode_offsets
from broker.storage.log import Log
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


class Kept:
    """Logs of 40 records each, all synced, and a checkpoint that says so."""

    def __init__(self) -> None:
        self.disk = CountingDisk()
        self.manager = started(self.disk)
        self.logs = [self.manager.get_or_create(TopicPartition("t", number), None, {}) for number in range(LOGS)]
        for log in self.logs:
            fill(log, 20)
            run(log.flush())
        run(self.manager.checkpoints.write_recovery_points())
        self.disk.syncs = 0

    def points(self) -> list[int]:
        """The logs after a power loss at this moment."""
        return sorted(set(decode_offsets(self.disk.content(f"/data/{RECOVERY_POINTS}")).values()))


@pytest.fixture
def kept(runner: asyncio.Runner) -> Iterator[Kept]:
    kept = Kept()
    yield kept
    runner.run(kept.manager.shutdown())


async def test_many_cuts_cost_one_checkpoint(kept: Kept) -> None:
    for log in kept.logs:
        log.truncate_to(30)
    assert kept.disk.syncs == 0, "on the loop"
    for log in kept.logs:
        await log.appendable()
    assert kept.disk.syncs == 1
    assert max(kept.points()) <= 30
    for log in kept.logs:
        fill(log, 1, epoch=1)
    assert kept.disk.syncs == 1


@pytest.mark.parametrize("cut", [Log.truncate_to, Log.truncate_fully_and_start_at])
async def test_an_append_does_not_wait_for_the_thread(kept: Kept, cut: Callable[[Log, int], None]) -> None:
    for log in kept.logs:
        cut(log, 30)
    assert kept.points() == [40]
    fill(kept.logs[0], 1, epoch=1)
    assert max(kept.points()) <= 30
    syncs = kept.disk.syncs
    for log in kept.logs:
        fill(log, 1, epoch=1)
    assert kept.disk.syncs == syncs


async def test_a_log_that_is_cut_again_while_the_checkpoint_is_written(kept: Kept) -> None:
    log = kept.logs[0]
    log.truncate_to(30)
    await asyncio.sleep(0)  # the thread has begun
    log.truncate_to(4)
    await log.appendable()
    assert min(kept.points()) <= 4
    assert not log.is_point_behind


async def test_a_log_that_is_deleted_meanwhile(kept: Kept) -> None:
    for log in kept.logs:
        log.truncate_to(30)
        kept.manager.delete(log.topic_partition)
    async with asyncio.timeout(10):
        await kept.manager.checkpoints.lowered.done()


async def test_a_disk_that_fails_meanwhile(kept: Kept) -> None:
    failed = failures_of(kept.manager)
    for log in kept.logs:
        log.truncate_to(30)
    kept.disk.fail("sync")
    async with asyncio.timeout(10):
        await kept.logs[0].appendable()
        await kept.manager.checkpoints.lowered.done()
    assert failed == ["/data"]
