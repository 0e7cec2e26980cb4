"""Checkpoints that are written while logs are deleted and made again (FLT-36, BUG-24)."""

from __future__ import annotations

from broker.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from broker.storage.directories.log_directory import LogDirectory
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition
from tests.support.logs import fill, once_before, started
from tests.support.memory_disk import MemoryDisk, run

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
