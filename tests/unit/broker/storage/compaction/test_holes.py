"""Holes that compaction made are not damage, although a cut lowers the recovery point below them, or it is lost (LOG-4, INV-21, FLT-27)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random

import pytest

from broker.storage.checkpoints import CLEANED, HOLES, RECOVERY_POINTS, decode_offsets
from broker.storage.log import Log
from broker.storage.segment import Segment
from tests.support.busy_disk import run
from tests.support.compaction import CompactedLog, everything_with_holes, records_of
from tests.support.logs import LOG_DIR, TP, check
from tests.support.thorough import first_in_quick_run
from tools.sim.world.disk import LOSSES, MemoryDisk


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def filled() -> CompactedLog:
    """60 records in several segments, all synced. A cleaning leaves holes in the middle and at the ends of segments."""
    it = CompactedLog()
    for number in range(30):
        key = b"k%d" % (number % 3 if number % 5 else 100 + number)
        other = b"u%d" % (number if number % 7 == 0 else 0)
        it.append((key, bytes(40)), (other, bytes(40)))
    it.roll()
    it.append((b"z", b"z"))
    run(it.log.flush())
    run(it.manager.checkpoints.write_recovery_points())
    return it


class Stopped(Exception):
    pass


def clean_until(it: CompactedLog, swaps: int, then: object) -> None:
    """Calls `then` in the turn of that swap, counted from 1."""
    replace = it.log.replace_segments
    left = swaps

    def replaced(cleaned: Segment, sources: Sequence[Segment]) -> None:
        nonlocal left
        replace(cleaned, sources)
        left -= 1
        if left == 0:
            assert callable(then)
            then()

    it.log.replace_segments = replaced  # type: ignore[method-assign]
    run(it.cleaner.clean_next())
    it.log.replace_segments = replace  # type: ignore[method-assign]


def cut_while_it_is_cleaned(cut_at: int, swaps: int) -> CompactedLog:
    it = filled()
    clean_until(it, swaps, lambda: it.log.truncate_to(cut_at))
    return it


def copied_and_cut(cut_at: int) -> CompactedLog:
    """A follower that has its leader's holes. It has cleaned nothing itself."""
    leader, follower = filled(), CompactedLog()
    leader.clean()
    follower.log.append_as_follower(memoryview(everything_with_holes(leader.log)))
    run(follower.log.flush())
    run(follower.manager.checkpoints.write_recovery_points())
    assert follower.log.cleaned_up_to == 0
    run(cut(follower.log, cut_at))
    return follower


async def cut(log: Log, offset: int) -> None:
    log.truncate_to(offset)
    await log.appendable()


SITUATIONS = {f"after swap {n}": lambda cut_at, n=n: cut_while_it_is_cleaned(cut_at, n) for n in (1, 2, 3)}
SITUATIONS["copied"] = copied_and_cut


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_log_that_is_cut_loses_nothing_else_in_a_kill(name: str) -> None:
    for cut_at in range(1, 40, 2):
        for appended in (0, 1):
            it = SITUATIONS[name](cut_at)
            if appended:
                it.append((b"new", b""), epoch=1)
            run(it.log.flush())
            again = it.reopened()
            found = everything_with_holes(again.log), again.log.log_end_offset
            assert found == (everything_with_holes(it.log), it.log.log_end_offset), (cut_at, appended)
            if again.log.segments[-1].size:
                check(again.log, is_gapless=False)


@pytest.mark.parametrize("cut_at", first_in_quick_run((5, 16, 3, 9, 14, 30), 2))
@pytest.mark.parametrize("name", SITUATIONS)
def test_power_is_lost_after_the_cut(name: str, cut_at: int) -> None:
    it = SITUATIONS[name](cut_at)
    synced, cut_end = records_of(it.log), it.log.log_end_offset
    crashes: list[MemoryDisk] = []
    random = Random(cut_at)

    def note() -> None:
        crashes.extend(it.disk.after_power_loss(random, loss) for loss in LOSSES)

    note()
    it.disk.on_change = note
    it.append((b"new", b""), epoch=1)
    run(it.log.flush())
    run(it.manager.checkpoints.write_recovery_points())
    it.append((b"more", b""), epoch=1)
    for disk in crashes:
        again = CompactedLog(disk)
        assert [record for record in records_of(again.log) if record.offset < cut_end] == synced
        end = again.log.log_end_offset
        again.append((b"on", b""), epoch=2)
        assert records_of(again.log)[-1].offset == end


@pytest.mark.parametrize("swaps", [1, 2, 3, 99])
def test_the_recovery_point_is_lost_twice(swaps: int) -> None:
    """The broker is killed in a cleaning, or after it. The next start is killed too, after all checkpoints were written again."""
    it = filled()
    disk = it.disk
    crashed: list[MemoryDisk] = []
    clean_until(it, swaps, lambda: crashed.append(disk.after_kill()))
    for _ in range(2):
        disk = crashed.pop() if crashed else disk.after_kill()
        disk.remove(f"{LOG_DIR}/{RECOVERY_POINTS}")
        it = CompactedLog(disk)
        assert it.log.log_end_offset == 61
        assert {record.key for record in records_of(it.log)} >= {b"k0", b"k1", b"k2", b"u0", b"z", b"k100", b"k125"}
        it.manager.cleaned.lower_now(LOG_DIR)


def test_an_end_of_holes_beyond_the_log_is_lowered_at_a_start() -> None:
    """The disk has lost synced records. What is appended in their place is not compacted, and a hole in it is damage."""
    it = filled()
    it.clean()
    disk = it.disk.after_kill()
    for segment in it.log.segments[1:]:
        disk.remove(segment.path)
    again = CompactedLog(disk)
    end = again.log.log_end_offset
    assert end < 60
    for name in (HOLES, CLEANED):
        assert decode_offsets(disk.content(f"{LOG_DIR}/{name}")).get(TP, 0) <= end
