"""After a crash the log is a valid prefix and all that belongs to it agrees (LOG-2, INV-21, FLT-26, FLT-27, BUG-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.log import Log
from protocol.kafka.record_batch import BatchHeader, parse_header, patch
from tests.support.logs import DIRECTORY, SMALL, batch, check, everything, fill, open_at, split, stored_epochs
from tests.support.memory_disk import MemoryDisk

CHECKPOINT = f"{DIRECTORY}/leader-epoch-checkpoint"


def filled() -> tuple[MemoryDisk, Log]:
    """Four segments, epochs 0, 1 and 3, flushed."""
    disk = MemoryDisk()
    log = open_at(disk)
    for epoch in (0, 1, 3):
        fill(log, 5, epoch=epoch, timestamp=1_000 + 100 * epoch)
    assert len(log.segments) == 4
    asyncio.run(log.flush())
    return disk, log


def path_of(log: Log, number: int, kind: str = "log") -> str:
    return log.segments[number].path.removesuffix("log") + kind


def assert_prefix(log: Log, data: bytes) -> list[BatchHeader]:
    found = everything(log)
    assert data.startswith(found)
    return check(log)


def test_nothing_lost_when_only_the_process_died() -> None:
    disk, log = filled()
    again = open_at(disk.after_kill())
    assert everything(again) == everything(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries == [(0, 0), (1, 10), (3, 20)]
    check(again)
    fill(again, 5, epoch=4)
    check(again)


@pytest.mark.parametrize(
    "batches", [1, 2, 6], ids=["the last of the log", "and one more", "the last of a segment, and more"]
)
def test_records_of_a_new_epoch_are_kept_although_the_checkpoint_does_not_know_it_yet(batches: int) -> None:
    """It is written in the background. All replicas killed just after an election cut what was acknowledged."""
    disk, log = filled()
    fill(log, batches, epoch=4)
    segments = len(log.segments)
    assert stored_epochs(disk)[-1][0] == 3
    again = open_at(disk.after_kill(), recovery_point=20)
    assert everything(again) == everything(log)
    assert again.leader_epochs.latest_epoch() == 4
    assert len(again.segments) == segments
    check(again)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_new_epoch_that_starts_with_the_last_batch_of_a_segment_is_kept(count: int) -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    fill(log, 5 + count, epoch=0)
    asyncio.run(log.flush())
    fill(log, 12, epoch=1)
    assert everything(open_at(disk.after_kill())) == everything(log)


def test_torn_tail_at_every_byte_of_the_last_batch() -> None:
    """FLT-26."""
    disk, log = filled()
    data = everything(log)
    size = log.segments[-1].size
    last = len(split(data)[-1])
    for missing in range(1, last + 1):
        crashed = disk.after_kill()
        crashed.cut(path_of(log, -1), size - missing)
        again = open_at(crashed)
        assert everything(again) == data[:-last], missing
        assert again.log_end_offset == log.log_end_offset - 2
        check(again)
        fill(again, 3, epoch=5)
        check(again)


@pytest.mark.parametrize("was_clean", [False, True], ids=["no marker", "marker"])
@pytest.mark.parametrize("tail", [b"\x00", bytes(70), bytes(5_000), b"\xff" * 200], ids=["1", "70", "5000", "ff"])
def test_rubbish_behind_the_last_batch_is_cut(tail: bytes, was_clean: bool) -> None:
    disk, log = filled()
    crashed = disk.after_kill()
    fd = crashed.open(path_of(log, -1))
    crashed.write(fd, (tail,), log.segments[-1].size)
    again = open_at(crashed, was_clean=was_clean)
    assert everything(again) == everything(log)
    check(again)
    fill(again, 5, epoch=9)
    check(again)


@given(st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=250, deadline=None)
def test_any_flipped_bit_of_the_log_cuts_it_there(segment: int, position: int, bit: int) -> None:
    """FLT-27, also in the 16 bytes that no CRC covers."""
    disk, log = filled()
    data = everything(log)
    path = path_of(log, segment)
    position %= log.segments[segment].size
    disk.corrupt(path, position, 1 << bit)
    again = open_at(disk.after_kill())
    broken_at = sum(s.size for s in log.segments[:segment]) + position
    last = split(data)[-1]
    if broken_at - (len(data) - len(last)) in range(12, 16):
        return  # see `Judge`: the epoch of the last batch may be newer than all that is known
    headers = assert_prefix(again, data)
    intact = [h for h in split(data[:broken_at]) if h]
    # All before the broken batch is kept; the one before it only if nothing but the broken one could vouch for it.
    whole = sum(len(one) for one in intact if len(one) >= parse_header(one).size_in_bytes)
    assert sum(header.size_in_bytes for header in headers) >= _end_of_batch_before(data, whole, broken_at)


def _end_of_batch_before(data: bytes, whole: int, broken_at: int) -> int:
    ends = [0]
    for one in split(data):
        ends.append(ends[-1] + len(one))
    return max((end for end in ends if end <= broken_at), default=0) if whole else 0


UNPROTECTED = [*range(8), *range(12, 16)]
"""The base offset and the leader epoch: bytes of a batch that its CRC does not cover."""


@pytest.mark.parametrize(
    ("number", "has_checkpoint"),
    [(1, True), (1, False), (5, True), (8, True), (8, False), (10, True)],
    ids=["middle", "middle, alone", "first of an epoch", "first of a segment", "first of a segment, alone", "of both"],
)
def test_every_bit_outside_the_crc(number: int, has_checkpoint: bool) -> None:
    disk, log = filled()
    if not has_checkpoint:
        disk.remove(CHECKPOINT)
    data = everything(log)
    segment, position = next(
        (segment, at)
        for segment in log.segments
        for at, header in segment.headers(0)
        if header.base_offset == 2 * number
    )
    before = sum(len(one) for one in split(data)[: number - 1])
    for byte in UNPROTECTED:
        for bit in range(8):
            crashed = disk.after_kill()
            crashed.corrupt(segment.path, position + byte, 1 << bit)
            found = everything(open_at(crashed))
            assert data.startswith(found), (byte, bit)
            assert len(found) >= before


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_every_bit_of_a_full_index(kind: str) -> None:
    disk = MemoryDisk()
    log = open_at(disk, replace(SMALL, segment_bytes=1_500))
    fill(log, 30)
    segment, end = log.segments[1], log.log_end_offset
    assert min(len(segment.index), len(segment.time_index)) > 4
    offsets = range(segment.base_offset, segment.next_offset)
    stamps = range(1_110, 1_270, 7)
    expected = [log.offset_for_timestamp(stamp, end) for stamp in stamps]
    path = path_of(log, 1, kind)
    for position in range(len(disk.content(path))):
        for bit in range(8):
            crashed = disk.after_kill()
            crashed.corrupt(path, position, 1 << bit)
            again = open_at(crashed, was_clean=True)
            for found in again.segments:
                found.load_indexes()
            assert again.segments[1].newest_timestamp() == segment.newest_timestamp()
            for offset in offsets:
                assert parse_header(bytes(again.read(offset, 1, end, True).records[0])).base_offset == offset // 2 * 2
            assert [again.offset_for_timestamp(stamp, end) for stamp in stamps] == expected, (position, bit)


@given(
    st.integers(0, 3), st.sampled_from(["index", "timeindex"]), st.integers(0, 10**6), st.integers(0, 7), st.booleans()
)
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_of_an_index_never_shows(segment: int, kind: str, position: int, bit: int, clean: bool) -> None:
    disk, log = filled()
    log.segments[-1].write_indexes()
    data = everything(log)
    path = path_of(log, segment, kind)
    disk.corrupt(path, position % len(disk.content(path)), 1 << bit)
    again = open_at(disk.after_kill(), was_clean=clean, recovery_point=log.log_end_offset)
    for found in again.segments:
        found.load_indexes()
    for offset in range(log.log_end_offset):
        records = bytes(again.read(offset, 10_000, log.log_end_offset, True).records[0])
        assert parse_header(records).base_offset == offset // 2 * 2
        assert records in data
    for stamp in range(990, 1_350, 7):
        end = log.log_end_offset
        assert again.offset_for_timestamp(stamp, end) == log.offset_for_timestamp(stamp, end)


@pytest.mark.parametrize("was_clean", [False, True], ids=["no marker", "marker"])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "zeroes"])
def test_missing_and_torn_indexes_are_made_anew(kind: str, damage: str, was_clean: bool) -> None:
    disk, log = filled()
    log.segments[-1].write_indexes()
    for number in range(4):
        path = path_of(log, number, kind)
        content = disk.content(path)
        if damage == "gone":
            disk.remove(path)
        elif damage == "zeroes":
            disk.write_atomically(path, bytes(len(content) + 24))
        else:
            disk.cut(path, 0 if damage == "empty" else max(len(content) - 1, 0))
    again = open_at(disk.after_kill(), was_clean=was_clean, recovery_point=0)
    for segment in again.segments:
        segment.load_indexes()
    assert everything(again) == everything(log)
    check(again)
    again.truncate_to(7)
    fill(again, 10, epoch=4)
    check(again)


@given(st.integers(0, 10**6), st.integers(0, 7), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_of_the_epoch_checkpoint_costs_no_synced_record(position: int, bit: int, was_clean: bool) -> None:
    disk, log = filled()
    disk.corrupt(CHECKPOINT, position % len(disk.content(CHECKPOINT)), 1 << bit)
    synced = open_at(disk.after_kill(), was_clean=was_clean, recovery_point=log.log_end_offset)
    assert everything(synced) == everything(log)
    if not was_clean:
        # Where the checkpoint and a batch's epoch contradict each other, nobody knows which of them has the wrong bit.
        assert_prefix(open_at(disk.after_kill()), everything(log))


@pytest.mark.parametrize("was_clean", [False, True], ids=["no marker", "marker"])
@pytest.mark.parametrize("damage", [b"", b"\x00" * 12, b"0\n3\n0 0\n1 10\n", None])
def test_a_broken_epoch_checkpoint_is_made_anew_from_the_log(damage: bytes | None, was_clean: bool) -> None:
    disk, log = filled()
    if damage is None:
        disk.remove(CHECKPOINT)
    else:
        disk.write_atomically(CHECKPOINT, damage)
    again = open_at(disk.after_kill(), was_clean=was_clean, recovery_point=25)
    assert everything(again) == everything(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    asyncio.run(again.flush())
    assert stored_epochs(again._filesystem) == log.leader_epochs.entries


def test_segments_below_the_recovery_point_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-2: neither after a crash nor, but for the end of the last one, after a clean stop."""
    disk, log = filled()
    third = log.segments[2].base_offset
    for was_clean, expected in ((False, {path_of(log, 2), path_of(log, 3)}), (True, {path_of(log, 3)})):
        crashed = disk.after_kill()
        read: set[str] = set()
        by_inode = {id(inode): path for path, inode in crashed.names.items()}
        original = crashed.read
        monkeypatch.setattr(crashed, "read", _spy(crashed, original, read, by_inode))
        open_at(crashed, was_clean=was_clean, recovery_point=third)
        assert read == expected


def _spy(
    disk: MemoryDisk, original: Callable[[int, int, int], bytes], read: set[str], by_inode: dict[int, str]
) -> Callable[[int, int, int], bytes]:
    def reading(fd: int, size: int, position: int) -> bytes:
        read.add(by_inode[id(disk._open[fd])])
        return original(fd, size, position)

    return reading


def test_a_hole_cuts_everything_after_it() -> None:
    disk, log = filled()
    disk.corrupt(path_of(log, 1), 30, 0xFF)
    again = open_at(disk.after_kill())
    assert len(again.segments) == 2
    assert again.log_end_offset == log.segments[1].base_offset
    names = set(again._filesystem.list(DIRECTORY))
    assert {name for name in names if name.endswith(".log")} == {s.path.rpartition("/")[2] for s in again.segments}
    check(again)


def test_a_recovery_point_beyond_the_end_is_brought_back() -> None:
    disk, log = filled()
    disk.cut(path_of(log, -1), 5)
    again = open_at(disk.after_kill(), recovery_point=10**9)
    assert again.recovery_point == again.log_end_offset == log.segments[-1].base_offset
    check(again)


def test_an_epoch_without_records_is_remembered() -> None:
    """BUG-15: a leader that was elected and appended nothing. What was not flushed tells nothing that the LEO does not."""
    disk, log = filled()
    log.leader_epochs.assign(7, log.log_end_offset)
    assert open_at(disk.after_kill()).leader_epochs.entries == log.leader_epochs.entries[:-1]
    asyncio.run(log.flush())
    for was_clean in (False, True):
        again = open_at(disk.after_kill(), was_clean=was_clean)
        assert again.leader_epochs.latest_epoch() == 7
        check(again)


def test_epochs_that_were_cut_and_not_yet_written_do_not_come_back() -> None:
    """The checkpoint still has epoch 3 from 20; the log was cut there and goes on with epoch 5."""
    disk, log = filled()
    log.truncate_to(12)
    fill(log, 4, epoch=5)
    again = open_at(disk.after_kill(), recovery_point=log.recovery_point)
    assert again.leader_epochs.entries == log.leader_epochs.entries == [(0, 0), (1, 10), (5, 12)]
    check(again)


def test_an_epoch_whose_records_were_lost_is_forgotten() -> None:
    disk, log = filled()
    disk.cut(path_of(log, 2), 0)
    again = open_at(disk.after_kill())
    assert again.leader_epochs.entries == [e for e in log.leader_epochs.entries if e[1] <= again.log_end_offset]
    check(again)


def test_a_lone_batch_with_an_epoch_that_nobody_knows_is_not_believed() -> None:
    disk, log = filled()
    data = bytearray(batch())
    patch(data, 0, log.log_end_offset, 3 + 2**20)
    fd = disk.open(path_of(log, -1))
    disk.write(fd, (data,), log.segments[-1].size)
    again = open_at(disk.after_kill())
    assert everything(again) == everything(log)


def test_holes_of_compaction_are_no_damage() -> None:
    disk = MemoryDisk()
    log = open_at(disk)
    for base in (0, 2, 8, 10, 30, 32):
        data = bytearray(batch())
        patch(data, 0, base, 0)
        log.append_as_follower(memoryview(bytes(data)))
    again = open_at(disk.after_kill())
    assert [header.base_offset for header in check(again, is_gapless=False)] == [0, 2, 8, 10, 30, 32]
    assert parse_header(bytes(again.read(4, 1, 34, True).records[0])).base_offset == 8
    assert sum(len(part) for part in again.read(0, 10_000, 5, True).records) == 2 * len(batch())


def test_a_log_start_beyond_the_end() -> None:
    """After a clean stop it cannot be; after a crash the offsets below it must not be given out again (INV-6)."""
    disk, log = filled()
    clean = open_at(disk.after_kill(), was_clean=True, log_start=500)
    assert (clean.log_start_offset, clean.log_end_offset) == (0, 30)
    crashed = open_at(disk.after_kill(), log_start=500)
    assert (crashed.log_start_offset, crashed.log_end_offset) == (500, 500)
    fill(crashed, 2, epoch=4)
    assert [header.base_offset for header in check(crashed)] == [500, 502]
    assert log.log_end_offset == 30


def test_leftovers_are_removed_and_strangers_are_left_alone() -> None:
    disk, log = filled()
    gone = (
        "00000000000000000099.index",
        "00000000000000000099.txnindex",
        "x.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.txnindex.cleaned",
        "a.tmp",
    )
    for name in gone:
        disk.write_atomically(f"{DIRECTORY}/{name}", b"x")
    disk.write_atomically(f"{DIRECTORY}/notes.txt", b"x")
    again = open_at(disk.after_kill())
    names = set(again._filesystem.list(DIRECTORY))
    assert "notes.txt" in names
    assert names.isdisjoint(gone)
    assert everything(again) == everything(log)
