"""Checkpoints that are written while logs are cut, deleted and made again (FLT-36, BUG-24, INV-21)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from broker.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, decode_offsets
from broker.storage.directories.log_directory import LogDirectory
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.logs import failures_of, fill, once_before, started
from tools.sim.world.disk import MemoryDisk

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def directory_of(manager: LogManager, path: str = "/data") -> LogDirectory:
    (found,) = [directory for directory in manager.log_directories if directory.path == path]
    return found


def filled(manager: LogManager, tp: TopicPartition, *, is_clean_up_to: int = 0) -> None:
    log = manager.get_or_create(tp, None, {})
    fill(log, 10)
    run(log.flush())
    log.cleaned_up_to = is_clean_up_to


def test_the_points_are_those_of_the_logs_when_the_checkpoint_is_written() -> None:
    """It first waits for another file, because a log was cut. Meanwhile that log is deleted and made again."""
    manager = started(MemoryDisk())
    for tp in (A, B):
        filled(manager, tp, is_clean_up_to=20)
    run(manager.cleaned.write("/data"))
    directory = directory_of(manager)

    def make_again() -> None:
        manager.delete(A)
        manager.get_or_create(A, None, {})

    async def scenario() -> None:
        log = manager.get(A)
        assert log is not None
        log.truncate_to(15)
        once_before(directory, "write_offsets", make_again)
        await manager.checkpoints.write_recovery_points()

    run(scenario())
    assert directory.read_offsets(RECOVERY_POINTS) == {A: 0, B: 20}


def test_a_checkpoint_that_was_overtaken_is_written_again() -> None:
    """By the removal of a deleted log's entry. That file does not have the new points, which a compaction relies on (LOG-4)."""
    manager = started(MemoryDisk())
    for tp in (A, B):
        filled(manager, tp)
    run(manager.checkpoints.write_recovery_points())
    directory = directory_of(manager)
    log = manager.get(B)
    assert log is not None
    fill(log, 5)
    run(log.flush())
    manager.delete(A)
    once_before(directory, "write_offsets", lambda: manager.get_or_create(A, None, {}))
    run(manager.checkpoints.write_recovery_points())
    assert directory.read_offsets(RECOVERY_POINTS) == {A: 0, B: 30}


def test_high_watermarks_are_those_of_the_logs_when_they_are_written() -> None:
    """The first directory's file takes a while."""
    manager = started(MemoryDisk(), "/one", "/two")
    for tp in (A, B):
        filled(manager, tp)
    marks = {A: 20, B: 20}

    def make_again() -> None:
        manager.delete(B)
        marks[B] = 0
        manager.get_or_create(B, None, {})

    once_before(directory_of(manager, "/one"), "write_offsets", make_again)
    run(manager.checkpoints.write_high_watermarks(marks.get))
    assert manager.checkpoints.read_high_watermarks() == {A: 20, B: 0}
    assert directory_of(manager, "/two").read_offsets(HIGH_WATERMARKS) == {B: 0}


# -- points that a cut lowers ------------------------------------------------------------------------------------------


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
