"""Whichever call of the disk fails: only its directory goes offline, and whoever caused the call gets LogDirFailed or nothing (LOG-6)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.storage.compaction.log_cleaner import CleanerSettings, LogCleaner
from broker.storage.log import Log, LogDirFailed, LogUnavailable
from broker.storage.log_manager import LogManager
from broker.storage.upkeep import LogSchedule
from protocol.types import TopicPartition
from tests.support import logs
from tests.support.busy_disk import run
from tests.support.compaction import records_of, table_of
from tests.support.fake_time import FakeTime
from tests.support.logs import SMALL, Failures, batch, failures_of, fill, log_of
from tests.support.thorough import first_in_quick_run
from tools.sim.world.disk import MemoryDisk

TOPIC_ID = "qK2jlmhTQcuDVtQ7zJ_nNw"
A, B = "/a", "/b"
IN_A, IN_B = (TopicPartition("orders", number) for number in range(2))
OLD = replace(SMALL, retention_ms=10**9, retention_bytes=1200, flush_messages=1)
COMPACTED = replace(SMALL, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=1)
WHILE_STARTED = 10_000
"""More calls than any of these makes."""


class FailingDisk(MemoryDisk):
    """The call below A with the number `left` fails, and all that follow it: with EIO, or one time only, for want of a descriptor."""

    left = WHILE_STARTED
    number = errno.EIO

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[str] = []

    def close(self, fd: int) -> None:
        """Frees the descriptor, and may fail all the same."""
        path = self._opened_as[fd]
        super().close(fd)
        if self.number == errno.EIO:
            self._call("close", path)

    def _call(self, operation: str, path: str) -> None:
        super()._call(operation, path)
        if self._shown(path).startswith(A):
            self.left -= 1
            if self.left == 0 or (self.left < 0 and self.number == errno.EIO):
                self.failed.append(self._shown(path))
                raise OSError(self.number, os.strerror(self.number), path)


class FailingRenames(FailingDisk):
    """Only renames are counted, and fail."""

    def _call(self, operation: str, path: str) -> None:
        (super() if operation == "rename" else super(FailingDisk, self))._call(operation, path)


def stored(config: logs.TopicConfig) -> FailingDisk:
    """A log in each directory, after a crash. Indexes are damaged: the one who looks at them rebuilds and writes them."""
    disk = FailingDisk()
    manager = started(disk, config)
    for tp, directory in ((IN_A, A), (IN_B, B)):
        log = manager.get_or_create(tp, TOPIC_ID, {})
        assert log.log_dir == directory
        for _ in range(3):
            fill(log, 6)
        run(log.flush())
        for segment in log.segments[:-1]:
            disk.cut(segment.time_index.path, 5)
    run(manager.checkpoints.write_recovery_points())
    survivor = FailingDisk()
    survivor.root = disk.after_kill().root
    return survivor


def started(disk: MemoryDisk, config: logs.TopicConfig) -> LogManager:
    manager = logs.started(
        disk, A, B, config=config, schedule=LogSchedule(retention_s=0, recovery_points_s=0, log_starts_s=0)
    )
    failures_of(manager)
    return manager


def upkeep(manager: LogManager, log: Log) -> None:
    """One tick, with something for each duty to do."""
    fill(log, 1, epoch=4)
    manager.checkpoints.are_behind = True
    run(manager.upkeep.tick())


def idle_files(manager: LogManager, log: Log) -> None:
    """Files are closed that were not used for a while."""
    everywhere = list(log.segments)
    for segment in everywhere:
        segment.is_used = False
    for _ in range(2):
        manager.upkeep._filesystem.in_use.close_idle()


def clean(manager: LogManager, log: Log) -> None:
    cleaner = LogCleaner(manager, FakeTime(), CleanerSettings(dedupe_bytes=1024**2), lambda kind, **fields: None)
    for _ in range(3):
        run(cleaner.clean_next())
    assert not log.is_uncleanable, "it is the disk, not the log"


BACKGROUND = {
    "upkeep": (OLD, upkeep),
    "files that rest": (OLD, idle_files),
    "the cleaner": (COMPACTED, clean),
}


def append(manager: LogManager, log: Log) -> None:
    for number in range(8):
        log.append_as_leader(batch(mark=number), 5)


def replicate(manager: LogManager, log: Log) -> None:
    """After a cut below the recovery point, which a checkpoint must say before the first append."""
    source = logs.open_at(MemoryDisk())
    fill(source, 16, epoch=6)
    log.truncate_to(9)
    log.append_as_follower(memoryview(logs.everything(source)[5 * len(batch()) :]))


ON_EVENTS: dict[str, Callable[[LogManager, Log], object]] = {
    "append": append,
    "replicate": replicate,
    "read": lambda manager, log: run(log.read_cold(0, 1000, log.log_end_offset, True)),
    "find a time": lambda manager, log: log.offset_for_timestamp(1_020, log.log_end_offset),
    "find the newest": lambda manager, log: log.max_timestamp_offset(),
    "truncate": lambda manager, log: log.truncate_to(3),
    "restart": lambda manager, log: log.truncate_fully_and_start_at(100),
    "flush": lambda manager, log: (fill(log, 1), run(log.flush())),
    "delete": lambda manager, log: manager.delete(IN_A),
    "create": lambda manager, log: manager.get_or_create(TopicPartition("orders", 2), TOPIC_ID, {}),
    "look at the topic id": lambda manager, log: manager.is_of(IN_A, "AAAAAAAAAAAAAAAAAAAAWA"),
}


EVERY_CALL = pytest.mark.parametrize("apart", first_in_quick_run([3, 1]))
"""How many calls are between two that fail."""


@EVERY_CALL
@pytest.mark.parametrize("name", BACKGROUND)
def test_background_work_continues_with_the_other_directory(name: str, apart: int) -> None:
    """It never ends by an error of the disk: the broker would end with it."""
    config, work = BACKGROUND[name]
    intact = stored(config)
    for count in itertools.count(1, apart):
        disk = FailingDisk()
        disk.root = intact.after_kill().root
        manager = started(disk, config)
        log = log_of(manager, IN_A)
        disk.left = count
        try:
            work(manager, log)
        except LogDirFailed:
            assert name == "upkeep", count  # of the append that it begins with
        if disk.left > 0:
            break
        assert manager.offline_dirs == (A,), count
        assert manager.get(IN_A) is None
        disk.left = WHILE_STARTED
        other = log_of(manager, IN_B)
        work(manager, other)
        other.append_as_leader(batch(), 5)
    assert count > 5 or name == "files that rest"


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=["the disk", "no descriptor"])
@EVERY_CALL
@pytest.mark.parametrize("name", ON_EVENTS)
def test_who_uses_a_log_gets_a_failure_that_is_reported(name: str, apart: int, number: int) -> None:
    intact = stored(SMALL)
    failures: list[LogDirFailed] = []
    for count in itertools.count(1, apart):
        disk = FailingDisk()
        disk.root = intact.after_kill().root
        disk.number = number
        manager = started(disk, SMALL)
        log = log_of(manager, IN_A)
        disk.left = count
        try:
            ON_EVENTS[name](manager, log)
        except LogDirFailed as error:
            failures.append(error)
        if disk.left > 0:
            break
        # What cannot be removed stays until the next start.
        needs_the_disk = name != "delete" and not all(path.endswith(".deleted") for path in disk.failed)
        assert manager.offline_dirs == (() if number != errno.EIO else (A,)) or not needs_the_disk, count
        log_of(manager, IN_B).append_as_leader(batch(), 5)
    assert {isinstance(failure, LogUnavailable) for failure in failures} <= {number != errno.EIO}
    assert {failure.directory for failure in failures} <= {A}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=["the disk", "no descriptor"])
def test_a_log_that_could_not_be_created_is_in_one_directory_after_the_next_try(number: int) -> None:
    """The next start would refuse a log that is in two."""
    intact = stored(SMALL)
    new = TopicPartition("orders", 2)
    for count in itertools.count(1):
        disk = FailingDisk()
        disk.root = intact.after_kill().root
        disk.number = number
        manager = started(disk, SMALL)
        disk.left = count
        files_before = disk.open_files()
        with contextlib.suppress(LogDirFailed):
            manager.get_or_create(new, TOPIC_ID, {})
        if disk.left > 0:
            break
        assert disk.open_files() <= files_before
        disk.left = WHILE_STARTED
        with contextlib.suppress(LogDirFailed) if number == errno.EIO else contextlib.nullcontext():
            fill(manager.get_or_create(new, TOPIC_ID, {}), 1)
        found = started(disk.after_kill(), SMALL).get(new)
        assert number == errno.EIO or (found is not None and found.topic_id == TOPIC_ID), count
    assert count > 5


def test_a_log_that_did_not_fit_on_a_full_disk_is_created_on_the_other(disk: MemoryDisk) -> None:
    """FLT-28. The next start, when there is space again, finds it in one directory."""
    manager = started(disk, SMALL)
    disk.fail("write", errno.ENOSPC, below=A)
    with pytest.raises(LogDirFailed):
        manager.get_or_create(IN_A, TOPIC_ID, {})
    assert manager.offline_dirs == (A,)
    fill(manager.get_or_create(IN_A, TOPIC_ID, {}), 3)
    found = log_of(started(disk.after_kill(), SMALL), IN_A)
    assert (found.log_dir, found.log_end_offset) == (B, 6)


def test_a_swap_of_compacted_segments_that_lacked_memory_makes_the_log_unusable() -> None:
    """Some of its files have other names by then. The next start completes or undoes the swap (FLT-31)."""
    intact = stored(COMPACTED)
    table = table_of(records_of(log_of(started(intact, COMPACTED), IN_A)))
    renames = 0
    for count in itertools.count(1):
        disk = FailingRenames()
        disk.root = intact.after_kill().root
        disk.number = errno.ENOMEM
        manager = started(disk, COMPACTED)
        replicas = Failures()
        manager.serve(replicas, lambda tp, manager=manager: log_of(manager, tp).log_end_offset)
        log = log_of(manager, IN_A)
        disk.left = count
        clean(manager, log)
        if disk.left > 0:
            break
        disk.left = WHILE_STARTED
        if replicas.replicas:
            renames += 1
            with pytest.raises(LogUnavailable) as raised:
                log.read(0, 1000, log.log_end_offset, True)
            assert not raised.value.is_passing
        again = log_of(started(disk.after_kill(), COMPACTED), IN_A)
        assert table_of(records_of(again)) == table
    assert renames > 5


def test_a_segment_that_retention_could_not_rename_is_deleted_later() -> None:
    """For want of memory. Until then it is in the log, and after a kill too: no deleted segment comes back."""
    for count in itertools.count(1):
        disk = FailingRenames()
        manager = started(disk, replace(SMALL, retention_bytes=2000))
        replicas = Failures()
        manager.serve(replicas, lambda tp, manager=manager: log_of(manager, tp).log_end_offset)
        log = manager.get_or_create(IN_A, TOPIC_ID, {})
        fill(log, 60)
        run(log.flush())
        run(manager.checkpoints.write_recovery_points())
        disk.number, disk.left = errno.ENOMEM, count
        with contextlib.suppress(LogUnavailable):
            run(manager.upkeep.delete_old_segments())
        if disk.left > 0:
            break
        disk.left = WHILE_STARTED
        again = log_of(started(disk.after_kill(), SMALL), IN_A)
        assert (again.segments[0].base_offset, again.log_end_offset) == (log.log_start_offset, log.log_end_offset)
        logs.check(again)
        if replicas.replicas:  # a segment is half removed: the log is unusable until the next start, which is as far
            assert any(path.endswith((".index", ".timeindex")) for path in disk.failed), disk.failed
            continue
        assert logs.everything(again) == logs.everything(log)
        run(manager.upkeep.delete_old_segments())
        assert log.size <= 2000 + SMALL.segment_bytes
        again = log_of(started(disk.after_kill(), SMALL), IN_A)
        assert logs.everything(again) == logs.everything(log)
        logs.check(log)
    assert count > 20
