"""After a crash the log is a valid prefix and all that belongs to it agrees (LOG-2, INV-21, FLT-26, FLT-27, BUG-15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from broker.storage.log import Log
from protocol.kafka.record_batch import parse_header, patch
from tests.support.busy_disk import run
from tests.support.logs import DIRECTORY, SMALL, batch, check, everything, fill, open_at, split, stored_epochs
from tests.support.thorough import first_in_quick_run, thorough
from tools.sim.world.disk import MemoryDisk

CHECKPOINT = f"{DIRECTORY}/leader-epoch-checkpoint"
UNPROTECTED = [*range(8), *range(12, 16)]
"""The base offset and the leader epoch: bytes of a batch that its CRC does not cover."""
EPOCH = range(12, 16)

either_stop = pytest.mark.parametrize("was_clean", [False, True], ids=["no marker", "marker"])


def filled() -> tuple[MemoryDisk, Log]:
    """Four segments, epochs 0, 1 and 3, flushed."""
    disk = MemoryDisk()
    log = open_at(disk)
    for epoch in (0, 1, 3):
        fill(log, 5, epoch=epoch, timestamp=1_000 + 100 * epoch)
    assert len(log.segments) == 4
    run(log.flush())
    return disk, log


def path_of(log: Log, number: int, kind: str = "log") -> str:
    return log.segments[number].path.removesuffix("log") + kind


def write_behind(disk: MemoryDisk, log: Log, data: bytes) -> None:
    disk.write(disk.open(path_of(log, -1)), (data,), log.segments[-1].size)


# -- nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [0, 20])
@pytest.mark.parametrize(
    "batches", [0, 1, 2, 6], ids=["none", "the last of the log", "and one more", "the last of a segment, and more"]
)
def test_records_of_a_new_epoch_are_kept_although_the_checkpoint_does_not_know_it_yet(
    batches: int, synced: int
) -> None:
    """A flush writes the checkpoint. All replicas killed just after an election would cut acknowledged records."""
    disk, log = filled()
    fill(log, batches, epoch=4)
    assert stored_epochs(disk)[-1][0] == 3
    again = open_at(disk.after_kill(), recovery_point=synced)
    assert everything(again) == everything(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    assert len(again.segments) == len(log.segments)
    check(again)
    fill(again, 5, epoch=5)
    check(again)


def behind_the_last_batch(data: bytes) -> Callable[[MemoryDisk, Log], None]:
    return lambda disk, log: write_behind(disk, log, data)


def indexes(kind: str, content_of: Callable[[bytes], bytes | None]) -> Callable[[MemoryDisk, Log], None]:
    def damage(disk: MemoryDisk, log: Log) -> None:
        log.segments[-1].write_indexes()
        for number in range(4):
            replace_file(disk, path_of(log, number, kind), content_of)

    return damage


def epochs(content: bytes | None) -> Callable[[MemoryDisk, Log], None]:
    return lambda disk, log: replace_file(disk, CHECKPOINT, lambda old: content)


def replace_file(disk: MemoryDisk, path: str, content_of: Callable[[bytes], bytes | None]) -> None:
    content = content_of(disk.content(path))
    if content is None:
        disk.remove(path)
    else:
        disk.write_atomically(path, content)


DAMAGES = {
    "a zero": behind_the_last_batch(b"\x00"),
    "70 zeros": behind_the_last_batch(bytes(70)),
    "5000 zeros": behind_the_last_batch(bytes(5_000)),
    "ff": behind_the_last_batch(b"\xff" * 200),
    "no epochs": epochs(None),
    "empty epochs": epochs(b""),
    "zeroed epochs": epochs(b"\x00" * 12),
    "torn epochs": epochs(b"0\n3\n0 0\n1 10\n"),
}
for kind in ("index", "timeindex"):
    DAMAGES |= {
        f"no {kind}": indexes(kind, lambda old: None),
        f"empty {kind}": indexes(kind, lambda old: b""),
        f"torn {kind}": indexes(kind, lambda old: old[:-1]),
        f"zeroed {kind}": indexes(kind, lambda old: bytes(len(old) + 24)),
    }


@either_stop
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_outside_of_the_records_loses_no_record(
    damage: Callable[[MemoryDisk, Log], None], was_clean: bool
) -> None:
    """Garbage after the last batch is cut. Indexes and the epoch checkpoint are rebuilt from the log."""
    disk, log = filled()
    damage(disk, log)
    again = open_at(disk.after_kill(), was_clean=was_clean, recovery_point=25 if "epochs" in str(damage) else 0)
    for segment in again.segments:
        segment.load_indexes()
    assert everything(again) == everything(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    run(again.flush())
    assert stored_epochs(again.files.disk) == log.leader_epochs.entries
    check(again)
    again.truncate_to(7)
    fill(again, 10, epoch=4)
    check(again)


# -- where the log is cut ---------------------------------------------------------------------------------------------


def test_torn_tail_at_every_byte_of_the_last_batch() -> None:
    """FLT-26."""
    disk, log = filled()
    data = everything(log)
    last = len(split(data)[-1])
    for missing in range(1, last + 1):
        crashed = disk.after_kill()
        crashed.cut(path_of(log, -1), log.segments[-1].size - missing)
        again = open_at(crashed)
        assert everything(again) == data[:-last], missing
        check(again)
        fill(again, 3, epoch=5)
        check(again)


@pytest.mark.parametrize(
    ("has_checkpoint", "numbers"),
    [(True, (0, 7, 14)), (False, (1, 8)), thorough(True, range(15))],
    ids=["with epochs", "without", "every batch"],
)
def test_a_flipped_bit_of_the_log_cuts_it_there(has_checkpoint: bool, numbers: Sequence[int]) -> None:
    """FLT-27: every bit that no CRC covers, one of each other byte.

    Without the checkpoint, the batch before may go too: only the broken one could vouch for its epoch.
    """
    disk, log = filled()
    if not has_checkpoint:
        disk.remove(CHECKPOINT)
    data = everything(log)
    placed = [(segment.path, at, header) for segment in log.segments for at, header in segment.headers(0)]
    for number in numbers:
        path, at, header = placed[number]
        before = number * header.size_in_bytes
        for byte in range(header.size_in_bytes):
            if number == len(placed) - 1 and byte in EPOCH:
                continue  # it may be newer than all that is known
            for bit in range(8) if byte in UNPROTECTED else [byte % 8]:
                crashed = disk.after_kill()
                crashed.corrupt(path, at + byte, 1 << bit)
                again = open_at(crashed)
                check(again)
                found = everything(again)
                assert data.startswith(found), (number, byte, bit)
                kept = before if has_checkpoint else before - header.size_in_bytes
                assert kept <= len(found) <= before + header.size_in_bytes, (number, byte, bit)


@pytest.mark.parametrize("bits", first_in_quick_run([2, 8]))
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_flipped_bit_of_a_full_index_never_changes_a_read(disk: MemoryDisk, kind: str, bits: int) -> None:
    """So many bits of each byte."""
    log = open_at(disk, replace(SMALL, segment_bytes=1_500))
    fill(log, 30)
    segment, end = log.segments[1], log.log_end_offset
    assert min(len(segment.index), len(segment.time_index)) > 4
    stamps = range(1_110, 1_270, 7)
    expected = [log.offset_for_timestamp(stamp, end) for stamp in stamps]
    path = path_of(log, 1, kind)
    for position in range(len(disk.content(path))):
        for bit in ((position + 3 * number) % 8 for number in range(bits)):
            crashed = disk.after_kill()
            crashed.corrupt(path, position, 1 << bit)
            again = open_at(crashed, was_clean=True)
            for found in again.segments:
                found.load_indexes()
            assert again.segments[1].newest_timestamp() == segment.newest_timestamp()
            for offset in range(segment.base_offset, segment.next_offset):
                assert parse_header(bytes(again.read(offset, 1, end, True).records[0])).base_offset == offset // 2 * 2
            assert [again.offset_for_timestamp(stamp, end) for stamp in stamps] == expected, (position, bit)


@either_stop
def test_a_flipped_bit_of_the_epoch_checkpoint_costs_no_synced_record(was_clean: bool) -> None:
    disk, log = filled()
    data = everything(log)
    for bit in range(len(disk.content(CHECKPOINT)) * 8):
        broken = disk.after_kill()
        broken.corrupt(CHECKPOINT, bit // 8, 1 << bit % 8)
        synced = open_at(broken.after_kill(), was_clean=was_clean, recovery_point=log.log_end_offset)
        assert everything(synced) == data
        if not was_clean:
            # Where the checkpoint and a batch's epoch contradict each other, nobody knows which of them has the wrong bit.
            unsynced = open_at(broken)
            assert data.startswith(everything(unsynced))
            check(unsynced)


def test_a_single_batch_is_kept_although_the_checkpoint_still_has_a_later_epoch_that_was_cut() -> None:
    """This replica was elected in epoch 9 and got no record. The next leader has one of epoch 7, which it had not copied before."""
    disk, log = filled()
    end = log.log_end_offset
    log.leader_epochs.assign(9, end)
    run(log.flush())
    log.leader_epochs.truncate_from_end(end)
    copied = bytearray(batch())
    patch(copied, 0, end, 7)
    log.append_as_follower(memoryview(copied))
    assert stored_epochs(disk)[-1] == (9, end)
    again = open_at(disk.after_kill(), recovery_point=end)
    assert everything(again) == everything(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    check(again)


def test_a_single_batch_with_an_unknown_epoch_is_cut() -> None:
    disk, log = filled()
    data = bytearray(batch())
    patch(data, 0, log.log_end_offset, 3 + 2**20)
    write_behind(disk, log, bytes(data))
    assert everything(open_at(disk.after_kill())) == everything(log)


def test_a_log_start_beyond_the_end() -> None:
    """After a clean stop it cannot be; after a crash the offsets below it must not be given out again (INV-6)."""
    disk, _ = filled()
    clean = open_at(disk.after_kill(), was_clean=True, log_start=500)
    assert (clean.log_start_offset, clean.log_end_offset) == (0, 30)
    crashed = open_at(disk.after_kill(), log_start=500)
    assert (crashed.log_start_offset, crashed.log_end_offset) == (500, 500)
    fill(crashed, 2, epoch=4)
    assert [header.base_offset for header in check(crashed)] == [500, 502]


# -- epochs -----------------------------------------------------------------------------------------------------------


def test_an_epoch_without_records_is_remembered() -> None:
    """BUG-15: a leader that was elected and appended nothing. What was not flushed tells nothing that the LEO does not."""
    disk, log = filled()
    log.leader_epochs.assign(7, log.log_end_offset)
    assert open_at(disk.after_kill()).leader_epochs.entries == log.leader_epochs.entries[:-1]
    run(log.flush())
    for was_clean in (False, True):
        again = open_at(disk.after_kill(), was_clean=was_clean)
        assert again.leader_epochs.latest_epoch() == 7
        check(again)


def test_a_log_that_another_clean_stop_did_not_close_keeps_its_epochs() -> None:
    """It was moved away after a kill and moved back, or is a copy of a log in use: the marker says nothing about it."""
    disk, log = filled()
    fill(log, 1, epoch=5)
    assert stored_epochs(disk)[-1][0] == 3
    again = open_at(disk.after_kill(), was_clean=True, recovery_point=log.log_end_offset)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    assert everything(again) == everything(log)
    check(again)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("was_clean", "read"), [(False, [2, 3]), (True, [3])], ids=["no marker", "marker"])
def test_segments_below_the_recovery_point_are_not_read(was_clean: bool, read: list[int]) -> None:
    """LOG-2. After a clean stop only the end of the last one is."""
    disk, log = filled()
    crashed = disk.after_kill()
    opened: set[str] = set()
    original = crashed.read

    def reading(fd: int, size: int, position: int) -> bytes:
        opened.add(crashed._opened_as[fd])
        return original(fd, size, position)

    crashed.read = reading  # type: ignore[method-assign]
    open_at(crashed, was_clean=was_clean, recovery_point=log.segments[2].base_offset)
    assert opened == {path_of(log, number) for number in read}


def test_leftovers_are_removed_and_strangers_are_left_alone() -> None:
    disk, log = filled()
    gone = {
        "00000000000000000099.index",
        "00000000000000000099.txnindex",
        "x.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.txnindex.cleaned",
        "a.tmp",
    }
    for name in {*gone, "notes.txt"}:
        disk.write_atomically(f"{DIRECTORY}/{name}", b"x")
    again = open_at(disk.after_kill())
    names = set(again.files.disk.list(DIRECTORY))
    assert "notes.txt" in names
    assert names.isdisjoint(gone)
    assert everything(again) == everything(log)
