"""Work on all segments of a log is done in pieces; in each pause anything may happen to the log (NET-4, INV-22)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.storage.upkeep import INDEXES_FORGOTTEN_AT_ONCE, SEGMENTS_DELETED_AT_ONCE
from tests.support.busy_disk import run
from tests.support.fake_time import FakeTime
from tests.support.logs import SMALL, TP, check, everything, failures_of, fill, log_of, started
from tools.sim.world.disk import MemoryDisk

ONE, TWO = "/one", "/two"


class Old:
    """A log of many segments, all so old that retention deletes them, except the last ones, which are not replicated yet."""

    def __init__(self, batches: int = 60) -> None:
        self.disk = MemoryDisk()
        self.manager = started(self.disk, ONE, TWO, config=replace(SMALL, retention_ms=1), time=FakeTime())
        self.failed = failures_of(self.manager)
        log = self.manager.get_or_create(TP, "AAAAAAAAAAAAAAAAAAAAWA", {})
        fill(log, batches)
        self.high_watermark = log.log_end_offset - 20
        self.manager.high_watermark_of = lambda tp: (
            0 if (found := self.manager.get(tp)) is None else min(self.high_watermark, found.log_end_offset)
        )
        self.pauses = 0

    def retain(self, in_a_pause: Callable[[int], object] = lambda number: None) -> None:
        """Calls `in_a_pause` with the number of each pause, from 1."""

        async def pause() -> None:
            self.pauses += 1
            in_a_pause(self.pauses)

        self.manager.upkeep.pause = pause
        run(self.manager.upkeep.delete_old_segments())

    def is_right(self) -> None:
        assert self.failed == []
        log = self.manager.get(TP)
        if log is not None:
            check(log)
            assert everything(log_of(started(self.disk.after_kill(), ONE, TWO))).endswith(everything(log))


def test_retention_deletes_a_few_segments_at_a_time() -> None:
    it = Old()
    log = log_of(it.manager)
    whole = everything(log)
    left = [len(log.segments)]
    killed: list[MemoryDisk] = []

    def note(number: int) -> None:
        left.append(len(log.segments))
        killed.append(it.disk.after_kill())

    it.retain(note)
    assert max(before - after for before, after in itertools.pairwise(left)) == SEGMENTS_DELETED_AT_ONCE
    assert log.log_start_offset == max(base for s in log.segments if (base := s.base_offset) <= it.high_watermark)
    it.is_right()
    for disk in killed:
        again = log_of(started(disk, ONE, TWO))
        check(again)
        assert whole.endswith(everything(again))


def test_indexes_are_freed_a_few_at_a_time() -> None:
    it = Old(100)
    log = log_of(it.manager)
    it.high_watermark = 0
    for segment in log.segments:
        segment.load_indexes()
    loaded = [len(log.segments)]
    it.retain(lambda number: loaded.append(sum(segment.index.is_loaded for segment in log.segments)))
    assert max(before - after for before, after in itertools.pairwise(loaded)) == INDEXES_FORGOTTEN_AT_ONCE
    assert loaded[-1] == 1


def delete(it: Old) -> None:
    it.manager.delete(TP)


def make_again(it: Old) -> None:
    it.manager.delete(TP)
    fill(it.manager.get_or_create(TP, "BBBBBBBBBBBBBBBBBBBBBA", {}), 3)


def cut(it: Old) -> None:
    log = log_of(it.manager)
    log.truncate_to(log.log_start_offset + 5)


def empty(it: Old) -> None:
    log = log_of(it.manager)
    log.truncate_fully_and_start_at(log.log_end_offset + 10)


def go_on(it: Old) -> None:
    fill(log_of(it.manager), 20)
    it.high_watermark += 40


def move(it: Old) -> None:
    log = log_of(it.manager)
    copy = it.manager.make_future(TP, TWO)
    copy.truncate_fully_and_start_at(log.log_start_offset)
    copy.append_as_follower(memoryview(everything(log)))
    it.manager.swap(TP)


@pytest.mark.parametrize("change", [delete, make_again, cut, empty, go_on, move])
def test_the_log_changes_in_a_pause_of_retention(change: Callable[[Old], None]) -> None:
    for at in itertools.count(1):
        it = Old()
        it.retain(lambda number, it=it, at=at: change(it) if number == at else None)  # type: ignore[misc]
        it.is_right()
        if change in (cut, go_on, move):
            assert log_of(it.manager).log_start_offset <= it.high_watermark
        if it.pauses < at:
            break
    assert at > 5
