"""Before a long cut a thread reads the producers' state there; meanwhile anything may happen to the log (NET-4, BUG-24)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest

from broker.storage.log import Log
from broker.storage.producers import log_producers, state_reading
from broker.storage.producers.producer_state import ProducerState
from broker.storage.producers.state_reading import StateReading
from protocol.errors import ErrorCode
from tests.support.busy_disk import run
from tests.support.logs import SMALL, check, fill, open_at, produced
from tests.support.refusals import refused
from tools.sim.world.disk import MemoryDisk

BATCHES = 1200
LARGE = replace(SMALL, segment_bytes=36_000, index_interval_bytes=1000)


def filled(log: Log) -> Log:
    """With batches of three producers, and of none."""
    start = log.log_end_offset
    for number in range(start, start + BATCHES):
        if number % 4:
            log.append_as_leader(produced(number % 4, number // 4, 1), 0)
        else:
            fill(log, 1, count=1)
    return log


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_producers, "COPY_BATCHES", 100)
    monkeypatch.setattr(log_producers, "READ_AT_ONCE", 200)
    monkeypatch.setattr(state_reading, "BATCHES_READ_AT_ONCE", 50)


@pytest.fixture(scope="module")
def stopped() -> MemoryDisk:
    """Segments of some hundred batches, after a clean stop."""
    disk = MemoryDisk()
    log = filled(open_at(disk, LARGE))
    log.sync_to_close()
    assert len(log.segments) == 3
    assert log.log_end_offset - log.segments[-1].base_offset > 260
    return disk


def reopened(disk: MemoryDisk) -> Log:
    return open_at(disk.after_kill(), LARGE, was_clean=True, recovery_point=BATCHES)


def test_a_cut_after_a_start_reads_nothing_on_the_loop(stopped: MemoryDisk) -> None:
    log = reopened(stopped)
    offset = log.segments[-1].base_offset + 250
    appended = [0]
    append, read = ProducerState.append, StateReading.read

    def counted_append(*arguments: object) -> object:
        appended[-1] += 1
        return append(*arguments)  # type: ignore[arg-type]

    def counted_read(*arguments: object) -> None:
        read(*arguments)  # type: ignore[arg-type]
        appended.append(0)

    assert log.is_long_cut(offset)
    with (
        mock.patch.object(ProducerState, "append", counted_append),
        mock.patch.object(StateReading, "read", counted_read),
    ):
        run(log.read_for_cut(offset))
        assert len(appended) > 2
        assert 0 < max(appended) <= state_reading.BATCHES_READ_AT_ONCE
        assert not log.is_long_cut(offset)
        appended.append(0)
        log.truncate_to(offset)
        assert appended[-1] == 0
    check(log)


def test_a_short_cut_needs_no_thread(stopped: MemoryDisk) -> None:
    log = reopened(stopped)
    assert not log.is_long_cut(log.segments[-1].base_offset + 150)
    log = filled(log)  # now copies of the state are in memory
    assert not log.is_long_cut(log.log_end_offset - 20)


def test_a_broken_snapshot_is_skipped(stopped: MemoryDisk) -> None:
    log = reopened(stopped)
    offset = log.segments[-1].base_offset + 250
    disk = log.files.disk
    assert isinstance(disk, MemoryDisk)
    disk.corrupt(f"{log.directory}/{log.segments[-1].base_offset:020d}.snapshot", 12, 1)
    run(log.read_for_cut(offset))
    assert not log.is_long_cut(offset)
    log.truncate_to(offset)
    check(log)


CHANGES: dict[str, Callable[[Log], object]] = {
    "cut": lambda log: log.truncate_to(log.log_end_offset - 20),
    "cut below": lambda log: log.truncate_to(100),
    "emptied": lambda log: log.truncate_fully_and_start_at(BATCHES + 7),
    "continued": filled,
    "segments deleted": lambda log: log.delete_old_segments(log.log_end_offset, 10**12, 3),
    "deleted": lambda log: log.mark_deleted(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_log_changes_while_its_state_is_read(stopped: MemoryDisk, change: str) -> None:
    read = StateReading.read
    for at in itertools.count(1):
        log = reopened(stopped)
        log.config = replace(LARGE, retention_ms=1)
        offset = log.segments[-1].base_offset + 250
        slices = 0

        def changing(reading: StateReading, segment: object, log: Log = log, at: int = at) -> None:
            nonlocal slices
            read(reading, segment)  # type: ignore[arg-type]
            slices += 1
            if slices == at:
                CHANGES[change](log)

        with mock.patch.object(StateReading, "read", changing):
            run(log.read_for_cut(offset))
        if log.is_deleted:
            with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
                log.truncate_to(offset)
        else:
            log.truncate_to(min(offset, log.log_end_offset - 1))
            check(log)
        if slices < at:
            break
    assert at > 2
