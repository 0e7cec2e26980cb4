"""Appending, reading, rolling, truncating and retention of one log (LOG-1, REP-6, INV-15, INV-19, INV-22)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.settings.config import TopicConfig
from broker.storage.listeners import LogListener
from broker.storage.log import SEGMENTS_SYNCED_AT_ONCE, Log, LogDirFailed, WouldBlock
from protocol.errors import ErrorCode
from protocol.kafka.record_batch import build_batch, parse_header, patch
from tests.support.busy_disk import run
from tests.support.logs import SMALL, batch, batches_of, check, everything, fill, once_before, open_at, split
from tests.support.refusals import refused
from tools.sim.world.disk import IS_IN_THREAD, Loss, MemoryDisk


class Listener(LogListener):
    """What was reported, in order."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def rolled(self, log: Log) -> None:
        self.heard.append("rolled")

    def was_cut(self, log: Log) -> None:
        self.heard.append("was cut")

    def failed(self, log: Log, failure: LogDirFailed) -> None:
        self.heard.append(failure)


def reopened(log: Log) -> Log:
    """After a clean stop: nothing is known of the segments."""
    log.segments[-1].close_time_index()
    log.close()
    return open_at(log.files.disk, was_clean=True, recovery_point=log.recovery_point)


def offsets(
    log: Log, offset: int, max_bytes: int = 10_000, max_offset: int | None = None, *, whole: bool = True
) -> list[int]:
    limit = log.log_end_offset if max_offset is None else max_offset
    records = b"".join(bytes(part) for part in log.read(offset, max_bytes, limit, whole).records)
    return [header.base_offset for header in batches_of(records)]


# -- appending --------------------------------------------------------------------------------------------------------


def test_leader_assigns_offsets_and_epoch(log: Log) -> None:
    sent = batch(3)
    first = log.append_as_leader(memoryview(sent), 7)
    second = log.append_as_leader(sent, 7)
    assert (first.first_offset, first.last_offset, first.log_append_time_ms, first.size_bytes) == (0, 2, -1, len(sent))
    assert (second.first_offset, second.last_offset, log.log_end_offset) == (3, 5, 6)
    stored = split(everything(log))
    assert [parse_header(data).partition_leader_epoch for data in stored] == [7, 7]
    assert [data[16:] for data in stored] == [sent[16:]] * 2
    assert log.leader_epochs.entries == [(7, 0)]
    check(log)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(SMALL, max_message_bytes=99), ErrorCode.MESSAGE_TOO_LARGE),
        (replace(SMALL, segment_bytes=99), ErrorCode.RECORD_LIST_TOO_LARGE),
        (replace(SMALL, cleanup_policy="compact"), ErrorCode.INVALID_RECORD),
    ],
)
def test_refused_appends_write_nothing(disk: MemoryDisk, config: TopicConfig, code: ErrorCode) -> None:
    log = open_at(disk, config)
    before = disk.calls
    with refused(code):
        log.append_as_leader(build_batch([(None, bytes(50), (), 1)]), 0)
    assert (log.log_end_offset, disk.calls) == (0, before)


def test_follower_log_is_the_leaders_byte_for_byte(log: Log) -> None:
    for epoch in (0, 2, 2, 5):
        fill(log, 4, epoch=epoch)
    follower = open_at(MemoryDisk())
    while follower.log_end_offset < log.log_end_offset:
        # A fetch's size limit cuts the last batch.
        records = bytes(log.read(follower.log_end_offset, 250, log.log_end_offset, True).records[0])
        follower.append_as_follower(memoryview(records))
    assert everything(follower) == everything(log)
    assert follower.leader_epochs.entries == log.leader_epochs.entries
    check(follower)


def test_follower_refuses_what_is_before_its_end_and_what_is_broken(log: Log) -> None:
    fill(log, 3)
    records = everything(log)
    follower = open_at(MemoryDisk())
    follower.append_as_follower(memoryview(records))
    for data, code in (
        (records, ErrorCode.OFFSET_OUT_OF_RANGE),
        (_moved(records, 6)[:-1] + b"\x55", ErrorCode.CORRUPT_MESSAGE),
        (bytes(80), ErrorCode.CORRUPT_MESSAGE),
    ):
        with refused(code):
            follower.append_as_follower(memoryview(data))
    assert everything(follower) == records
    check(follower)


def _moved(records: bytes, by: int) -> bytes:
    moved = bytearray()
    for one in split(records):
        copy = bytearray(one)
        patch(copy, 0, parse_header(one).base_offset + by, 0)
        moved += copy
    return bytes(moved)


def test_follower_appends_nothing_of_a_lone_partial_batch(log: Log) -> None:
    fill(log, 1)
    follower = open_at(MemoryDisk())
    info = follower.append_as_follower(memoryview(everything(log)[:-1]))
    assert (info.first_offset, info.last_offset, info.size_bytes, follower.log_end_offset) == (0, -1, 0, 0)


def test_empty_follower_whose_start_is_inside_the_first_batch(log: Log) -> None:
    """The leader's records were deleted up to 3, in the middle of the batch 2..3 that it sends."""
    fill(log, 4)
    follower = open_at(MemoryDisk())
    follower.truncate_fully_and_start_at(3)
    follower.append_as_follower(memoryview(everything(log)[len(split(everything(log))[0]) :]))
    assert (follower.log_start_offset, follower.log_end_offset) == (3, 8)
    assert offsets(follower, 3) == [2, 4, 6]


# -- rolling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "timestamps", "segments"),
    [
        (replace(SMALL, segment_bytes=10_000), [1, 2, 3, 4], 1),
        (replace(SMALL, segment_bytes=100), [1, 2, 3, 4], 4),
        (replace(SMALL, segment_ms=10), [1, 2, 11, 12], 2),
        (replace(SMALL, segment_ms=10, segment_jitter_ms=10**6), [1, 1, 1, 1], 1),
        (replace(SMALL, segment_ms=10), [1, 12, 23, 12], 3),
        (replace(SMALL, segment_index_bytes=24, index_interval_bytes=0, segment_bytes=10_000), [1, 2, 3, 4, 5, 6], 2),
    ],
    ids=["not", "size", "time not reached twice", "jitter longer than the time", "time", "index"],
)
def test_when_an_append_rolls(disk: MemoryDisk, config: TopicConfig, timestamps: list[int], segments: int) -> None:
    listener = Listener()
    log = open_at(disk, config, listener=listener)
    for timestamp in timestamps:
        log.append_as_leader(batch(1, timestamp=timestamp), 0)
    assert log.segments[0].base_offset == 0
    assert (len(log.segments), listener.heard) == (segments, ["rolled"] * (segments - 1))
    check(log)


def test_roll_when_an_offset_does_not_fit_the_index(log: Log) -> None:
    fill(log, 1)
    follower = open_at(MemoryDisk())
    follower.append_as_follower(memoryview(everything(log)))
    follower.append_as_follower(memoryview(_moved(everything(log), 2**31)))
    assert [segment.base_offset for segment in follower.segments] == [0, 2]
    follower.append_as_follower(memoryview(_moved(everything(log), 2**31 + 2)))
    assert [segment.base_offset for segment in follower.segments] == [0, 2, 2**31 + 2]
    fill(follower, 10)
    check(follower, is_gapless=False)


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [False, True], ids=["by memory", "by index"])
def test_read_from_any_offset_up_to_any_offset(log: Log, forgets: bool) -> None:
    """INV-15: nothing at or above the limit, whole batches, beginning with the one that holds the offset."""
    fill(log, 20)
    if forgets:
        log = reopened(log)
    bases = [header.base_offset for header in check(log)]
    for limit in range(log.log_end_offset + 1):
        for offset in range(log.log_end_offset + 1):
            found: list[int] = []
            at = offset
            while at < limit and (more := offsets(log, at, max_offset=limit)):
                found += more
                at = more[-1] + 2
            assert found == [base for base in bases if offset <= base + 1 and base + 2 <= limit]


@pytest.mark.parametrize(
    ("max_bytes", "whole", "count"), [(0, True, 1), (1, True, 1), (0, False, 0), (250, False, 2), (250, True, 2)]
)
def test_size_limits_of_reads(disk: MemoryDisk, max_bytes: int, whole: bool, count: int) -> None:
    log = open_at(disk, replace(SMALL, segment_bytes=10_000))
    fill(log, 5)
    size = len(batch())
    result = log.read(2, max_bytes, 10, whole)
    assert result.size == sum(len(part) for part in result.records) == (max_bytes if count == 2 else count * size)
    if count:
        assert parse_header(bytes(result.records[0])).base_offset == 2


def test_reads_outside_the_log_are_refused(log: Log) -> None:
    fill(log, 3)
    log.increment_log_start(2)
    assert log.read(6, 100, 6, True).size == 0
    for offset in (-1, 1, 7):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(offset, 100, 6, True)


@pytest.mark.parametrize("is_old", [False, True], ids=["pages", "indexes of old segments"])
def test_records_outside_of_the_page_cache_are_read_in_a_thread(disk: MemoryDisk, log: Log, is_old: bool) -> None:
    fill(log, 10)
    run(log.flush())
    expected = bytes(log.read(3, 10_000, 20, True).records[0])
    disk.is_cold = not is_old
    if is_old:
        log = reopened(log)
    with pytest.raises(WouldBlock):
        log.read(3, 10_000, 20, True)
    assert bytes(run(log.read_cold(3, 10_000, 20, True)).records[0]) == expected
    assert offsets(log, 3)[0] == 2


def test_a_cold_read_checks_everything_again(disk: MemoryDisk, log: Log) -> None:
    """BUG-12: the log was cut while the thread read."""
    fill(log, 10)
    disk.is_cold = True
    once_before(disk, "read", lambda: log.truncate_to(2))
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        run(log.read_cold(12, 10_000, 20, True))


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(0, 100, 6, True),
        lambda log: log.append_as_leader(batch(), 0),
        lambda log: log.truncate_to(0),
    ],
    ids=["read", "append", "truncate"],
)
def test_a_deleted_log_never_uses_another_files_descriptor(log: Log, use: Callable[[Log], object]) -> None:
    fill(log, 3)
    log.mark_deleted()
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        use(log)


# -- timestamps -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=25), st.booleans())
@settings(max_examples=30)
def test_offsets_by_timestamp(stamps: list[int], reopens: bool) -> None:
    log = open_at(MemoryDisk())
    for stamp in stamps:
        log.append_as_leader(batch(2, timestamp=stamp), 4)
    if reopens:
        log = reopened(log)
    records = [(stamp + number, 2 * at + number) for at, stamp in enumerate(stamps) for number in (0, 1)]
    for wanted in range(63):
        first = next(((stamp, offset, 4) for stamp, offset in records if stamp >= wanted), None)
        assert log.offset_for_timestamp(wanted, log.log_end_offset) == first
        limited = None if first is None or first[1] >= 3 else first
        assert log.offset_for_timestamp(wanted, 3) == limited
    newest = max((stamp for stamp, _ in records), default=0)
    assert log.max_timestamp_offset() == next(((s, offset, 4) for s, offset in records if s == newest), None)


# -- cutting ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 1)), max_size=16), st.integers(0, 40), st.booleans())
@settings(max_examples=30)
def test_truncate_then_append(appends: list[tuple[int, int]], offset: int, reopens: bool) -> None:
    """INV-19: what is below the cut stays, byte for byte, what is above is gone, and later appends do not depend on what was cut."""
    disk = MemoryDisk()
    log = open_at(disk)
    epoch = 0
    for count, rise in appends:
        epoch += rise
        log.append_as_leader(batch(count), epoch)
    if reopens:
        log = reopened(log)
    before = check(log)
    data = everything(log)
    log.truncate_to(offset)
    kept = [header for header in before if header.next_offset <= offset]
    assert check(log) == kept
    assert everything(log) == data[: sum(header.size_in_bytes for header in kept)]
    fill(log, 12, epoch=epoch + 1)
    check(log)
    killed = open_at(disk.after_kill())
    again = reopened(log)
    assert everything(again) == everything(killed)
    check(again)


@pytest.mark.parametrize("starts_at", [0, 12])
def test_truncate_below_the_log_start_moves_it_back(log: Log, starts_at: int) -> None:
    """Also before the first segment, which empties the log."""
    log.truncate_fully_and_start_at(starts_at)
    fill(log, 10)
    log.increment_log_start(12)
    log.truncate_to(6)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    fill(log, 2, epoch=1)
    assert check(log)[-1].base_offset == 8


def test_a_cut_inside_of_broken_bytes_changes_nothing(disk: MemoryDisk, log: Log) -> None:
    """It found them when the later segments were gone already, and the log end was wrong from then on."""
    fill(log, 12)
    run(log.flush())
    segments, end = list(log.segments), log.log_end_offset
    disk.corrupt(segments[0].path, 16, 0x01)
    log = reopened(log)
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.truncate_to(3)
    assert len(log.segments) == len(segments) > 1
    fill(log, 1)
    assert log.log_end_offset == end + 2
    assert log.segments[-1].next_offset == end + 2


# -- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_fails_the_directory_and_is_not_retried(disk: MemoryDisk, operation: str) -> None:
    """FLT-29: the kernel drops the dirty pages of a failed fsync, so a second one would succeed wrongly.

    The failure is reported once, before it is raised, so its caller finds the partition already offline.
    """
    listener = Listener()
    log = open_at(disk, listener=listener)
    fill(log, 2)
    disk.fail(operation)
    with pytest.raises(LogDirFailed) as raised:
        append_and_flush(log, listener)
    assert (listener.heard, raised.value.directory) == ([raised.value], "/data")
    assert (raised.value.code, raised.value.message) == (ErrorCode.KAFKA_STORAGE_ERROR, ""), "no path goes to a client"
    disk.failures.clear()
    calls = disk.calls
    with pytest.raises(LogDirFailed):
        fill(log, 1)
    with pytest.raises(LogDirFailed):
        run(log.flush())
    assert disk.calls == calls
    assert log.recovery_point == 0


def append_and_flush(log: Log, listener: Listener) -> None:
    try:
        fill(log, 1)
        run(log.flush())
    finally:
        assert len(listener.heard) == 1


def after_a_kill(segments: int) -> tuple[MemoryDisk, Log]:
    """A log of at least that many segments, whose recovery point was lost: all its indexes were made again."""
    before = MemoryDisk()
    fill(open_at(before), 4 * segments)
    disk = before.after_kill()
    return disk, open_at(disk)


def test_a_flush_of_many_segments_is_done_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    """NET-4. The recovery point follows each part: what is below it survives a power loss at any moment (INV-21)."""
    caplog.set_level(logging.CRITICAL)
    disk, log = after_a_kill(3 * SEGMENTS_SYNCED_AT_ONCE)
    whole, count = everything(log), len(log.segments)
    changes_on_the_loop = [0]
    points: list[int] = []
    crashes: list[tuple[int, MemoryDisk]] = []

    def note() -> None:
        if IS_IN_THREAD.get():
            changes_on_the_loop.append(0)
        else:
            changes_on_the_loop[-1] += 1
        points.append(log.recovery_point)
        if len(points) % 10 == 0:
            crashes.append((log.recovery_point, disk.after_power_loss(Random(len(points)))))

    disk.on_change = note
    run(log.flush())
    disk.on_change = lambda: None
    assert log.recovery_point == log.log_end_offset
    assert max(changes_on_the_loop) <= 2 * 3 * SEGMENTS_SYNCED_AT_ONCE, (
        "two files for each segment: created, written, renamed"
    )
    assert len(set(points)) == -(-count // SEGMENTS_SYNCED_AT_ONCE)
    for point, crashed in crashes:
        again = open_at(crashed, recovery_point=point)
        assert everything(again) == whole
        check(again)


@pytest.mark.parametrize(
    "offset", [0, 1, 50, 200, -1], ids=["first", "in the first", "synced", "not yet", "everything"]
)
def test_a_log_is_cut_between_two_parts_of_a_flush(offset: int) -> None:
    disk, log = after_a_kill(2 * SEGMENTS_SYNCED_AT_ONCE)

    def cut() -> None:
        if offset < 0:
            log.truncate_fully_and_start_at(log.log_end_offset + 5)
        else:
            log.truncate_to(offset)
        fill(log, 30, epoch=1)

    once_before(disk, "sync_directory", cut)
    run(log.flush())
    assert log.recovery_point <= max(offset, 0)
    run(log.flush())
    assert log.recovery_point == log.log_end_offset
    again = open_at(disk.after_power_loss(Random(0), Loss("none", "none")), recovery_point=log.recovery_point)
    assert everything(again) == everything(log)


def test_a_stop_after_a_kill_holds_few_files_at_once() -> None:
    disk, log = after_a_kill(3 * SEGMENTS_SYNCED_AT_ONCE)
    held: list[int] = []
    disk.on_change = lambda: held.append(sum(segment._pins for segment in log.segments))
    log.sync_to_close()
    assert max(held) == SEGMENTS_SYNCED_AT_ONCE
    again = open_at(
        disk.after_power_loss(Random(0), Loss("none", "none")), was_clean=True, recovery_point=log.recovery_point
    )
    assert everything(again) == everything(log)


def rest(disk: MemoryDisk) -> None:
    """Closes the files that were not used between two checks."""
    disk.in_use.close_idle()
    disk.in_use.close_idle()


def test_an_idle_log_keeps_no_file_open(disk: MemoryDisk, log: Log) -> None:
    """Ten thousand of them are more than a process may have open. What is not synced stays open: its error must be heard (FLT-29)."""
    fill(log, 20)
    data = everything(log)
    rest(disk)
    assert disk.open_files() == len(log.segments)
    run(log.flush())
    rest(disk)
    assert (disk.open_files(), len(disk.in_use)) == (0, 0)
    assert everything(log) == data
    disk.in_use.close_idle()
    assert disk.open_files() == len(log.segments)
    rest(disk)
    fill(log, 1)
    assert disk.open_files() == 1
    log.truncate_to(15)
    fill(log, 10, epoch=1)
    check(log)
    log.close()
    assert disk.open_files() == 0


def test_a_segment_without_timestamps_is_as_old_as_its_file(disk: MemoryDisk) -> None:
    """Not as old as the broker's process: every restart would make such a segment young again."""
    config = replace(SMALL, retention_ms=1_000)
    first = open_at(disk, config)
    for number in range(20):
        first.append_as_leader(batch(1, timestamp=-1, mark=number), 0)
    run(first.flush())
    again = disk.after_kill()
    log = open_at(again, config, was_clean=True, recovery_point=20)
    sealed = len(log.segments) - 1
    again.files_are_of_ms = 50_000
    assert log.delete_old_segments(20, 51_000) == 0
    assert log.delete_old_segments(20, 51_001) == sealed > 0
