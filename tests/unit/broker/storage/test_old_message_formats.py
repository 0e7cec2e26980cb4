"""Logs of Kafka with messages of format v0 or v1 (before 0.11): refused as they are, and never cut off as if they were damage."""

from __future__ import annotations

import pytest

from broker.storage.directories.log_directory import LogDirectoryError
from protocol.kafka.compression import compress
from protocol.kafka.record_batch import build_batch, old_message_format
from tests.support.logs import DIRECTORY, open_at
from tests.support.old_messages import message, messages
from tools.sim.world.disk import MemoryDisk

FIRST = f"{DIRECTORY}/{0:020}.log"
SECOND = f"{DIRECTORY}/{1:020}.log"
CLEAN = [True, False]
EPOCH_0 = b"0\n1\n0 0\n"


def new_batch(base_offset: int) -> bytes:
    return build_batch([(b"k", b"v", (), 1000)], base_offset=base_offset)


OLD = {
    "v0": messages(0),
    "v1": messages(1),
    "v1, compressed": message(1, 2, compress(messages(1), 1), attributes=1),
    "v1, then v2": messages(1) + new_batch(3),
}


def disk_with(*, epochs: bytes = b"0\n0\n", **files: bytes) -> MemoryDisk:
    """`epochs` is the leader epoch checkpoint. Kafka's has no entry for old messages."""
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for name, data in files.items():
        disk.write_atomically({"first": FIRST, "second": SECOND}[name], data)
    disk.write_atomically(f"{DIRECTORY}/leader-epoch-checkpoint", epochs)
    return disk


def contents(disk: MemoryDisk) -> list[bytes | None]:
    return [disk.read_file(path) for path in (FIRST, SECOND)]


def is_refused(disk: MemoryDisk, reason: str, *, was_clean: bool) -> None:
    before = contents(disk)
    with pytest.raises(LogDirectoryError, match=reason):
        open_at(disk, was_clean=was_clean)
    assert contents(disk) == before


@pytest.mark.parametrize("was_clean", CLEAN)
@pytest.mark.parametrize("data", OLD.values(), ids=OLD)
def test_a_log_that_begins_with_old_messages_is_refused(data: bytes, was_clean: bool) -> None:
    reason = r"0\.log has a message of format v[01] at byte 0\. ottla reads format v2"
    is_refused(disk_with(first=data), reason, was_clean=was_clean)


@pytest.mark.parametrize("was_clean", CLEAN)
def test_old_messages_behind_new_ones_are_not_cut_off(was_clean: bool) -> None:
    """`message.format.version` may have been lowered."""
    whole = new_batch(0)
    disk = disk_with(first=whole + message(1, 1, b"value"), second=new_batch(2), epochs=EPOCH_0)
    is_refused(disk, f"a message of format v1 at byte {len(whole)}", was_clean=False)
    disk = disk_with(first=new_batch(0), second=messages(1))
    is_refused(disk, r"1\.log has a message of format v1 at byte 0", was_clean=was_clean)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:20] + bytes((data[20] ^ 1,)) + data[21:],
        lambda data: data[:-1],
        lambda data: data[:8] + b"\x7f" + data[9:],
        lambda data: data[:16],
    ],
    ids=["a bit", "cut short", "its length", "its head only"],
)
def test_what_only_resembles_an_old_message_is_damage(damage) -> None:  # type: ignore[no-untyped-def]
    """FLT-27: a torn tail is cut, as always."""
    whole = new_batch(0)
    disk = disk_with(epochs=EPOCH_0, first=whole + damage(message(1, 1, b"value")))
    log = open_at(disk)
    assert (log.log_end_offset, disk.read_file(FIRST)) == (1, whole)


@pytest.mark.parametrize(("magic", "expected"), [(0, 0), (1, 1), (2, None), (-1, None)])
def test_formats_of_messages(magic: int, expected: int | None) -> None:
    assert old_message_format(message(magic, 7, b"x")) == expected
    assert old_message_format(new_batch(0)) is None
