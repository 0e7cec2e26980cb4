"""The two sparse indexes: Kafka's bytes, look-ups, and what is refused (FLT-27)."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.sparse_index import UNWRITTEN_BYTES_MAX, IndexCorrupt, OffsetIndex, TimeIndex
from tools.sim.world.disk import MemoryDisk

BASE = 1_000


def loaded(kind: type[OffsetIndex] | type[TimeIndex], data: bytes = b"") -> OffsetIndex | TimeIndex:
    disk = MemoryDisk()
    disk.write_atomically("/x", data)
    index = kind(disk, "/x", BASE)
    index.load()
    return index


def test_bytes_are_kafkas(disk: MemoryDisk) -> None:
    offsets, times = OffsetIndex(disk, "/x.index", BASE), TimeIndex(disk, "/x.timeindex", BASE)
    for index in (offsets, times):
        index.reset()
    offsets.append(BASE + 7, 300)
    times.append(1_700_000_000_000, BASE + 7)
    for index in (offsets, times):
        index.write_out()
    assert disk.content("/x.index") == bytes.fromhex("00000007 0000012c")
    assert disk.content("/x.timeindex") == bytes.fromhex("0000018bcfe56800 00000007")


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        (OffsetIndex, 0, None),
        (OffsetIndex, BASE + 9, None),
        (OffsetIndex, BASE + 10, 0),
        (OffsetIndex, BASE + 11, 0),
        (OffsetIndex, BASE + 20, 1),
        (OffsetIndex, BASE + 10**12, 1),
        (TimeIndex, 500, None),
        (TimeIndex, 501, 0),
        (TimeIndex, 600, 0),
        (TimeIndex, 601, 1),
    ],
)
def test_look_up(kind: type[OffsetIndex] | type[TimeIndex], key: int, expected: int | None) -> None:
    """At or below an offset; below a timestamp."""
    entries = [(BASE + 10, 100), (BASE + 20, 200)] if kind is OffsetIndex else [(500, BASE + 3), (600, BASE + 9)]
    index = loaded(kind)
    for entry in entries:
        index.append(*entry)
    assert index.entry_before(key) == (None if expected is None else entries[expected])


def test_entries_that_do_not_increase_are_ignored() -> None:
    offsets, times = loaded(OffsetIndex), loaded(TimeIndex)
    for offset in (BASE + 5, BASE + 5, BASE + 4):
        offsets.append(offset, 10)
    for timestamp in (50, 50, 40, -1):
        times.append(timestamp, BASE + 5)
    assert (len(offsets), len(times)) == (1, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        bytes(8) + bytes(7),
        bytes(16),
        bytes.fromhex("00000005 00000001 00000004 00000002"),
        bytes.fromhex("00000005 00000009 00000006 00000002"),
        bytes.fromhex("ffffffff 00000000"),
        bytes.fromhex("00000001 ffffffff"),
        bytes(8),  # what a power loss may leave of the first one (FLT-27); found by test_power_loss.py, seed 167418961
    ],
    ids=[
        "one byte",
        "torn entry",
        "zeroes",
        "keys go back",
        "values go back",
        "negative key",
        "negative value",
        "an empty entry",
    ],
)
def test_a_file_that_is_not_an_index_is_refused(data: bytes) -> None:
    with pytest.raises(IndexCorrupt):
        loaded(OffsetIndex, data)


rising = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=30)


@given(rising, st.integers(0, 2_000), st.integers(0, 2_000))
def test_truncation_and_reload_keep_the_same_entries(steps: list[tuple[int, int]], offset: int, position: int) -> None:
    disk = MemoryDisk()
    index = OffsetIndex(disk, "/x.index", BASE)
    index.reset()
    entries, last = [], (BASE, 0)
    for step in steps:
        last = (last[0] + step[0], last[1] + step[1])
        entries.append(last)
        index.append(*last)
    index.truncate_to(BASE + offset, position)
    kept = [entry for entry in entries if entry[0] < BASE + offset and entry[1] < position]
    index.write_out()
    again = OffsetIndex(disk, "/x.index", BASE)
    again.load()
    for found in (index, again):
        assert len(found) == len(kept)
        assert found.last() == (kept[-1] if kept else None)
    index.unload()
    index.load()
    assert index.last() == again.last()


def test_entries_are_written_together_and_no_file_stays_open(disk: MemoryDisk) -> None:
    index = OffsetIndex(disk, "/x.index", BASE)
    index.reset()
    count = UNWRITTEN_BYTES_MAX // 8
    for number in range(1, count):
        index.append(BASE + number, number)
    assert (disk.exists("/x.index"), disk.open_files()) == (False, 0)
    index.append(BASE + count, count)
    index.append(BASE + count + 1, count + 1)
    assert (len(disk.content("/x.index")), disk.open_files()) == (UNWRITTEN_BYTES_MAX, 0)
    index.unload()
    assert len(disk.content("/x.index")) == UNWRITTEN_BYTES_MAX + 8
    index.load()
    assert index.last() == (BASE + count + 1, count + 1)


def test_the_last_entry_is_read_alone(disk: MemoryDisk) -> None:
    """The index of a full segment has 260,000 entries, which must not be read one by one."""
    disk.write_atomically("/x.timeindex", b"".join(struct.pack(">qi", n * 10, n) for n in range(1, 1000)))
    index = TimeIndex(disk, "/x.timeindex", BASE)
    assert index.last_in_file() == (9990, BASE + 999)
    assert not index.is_loaded
    index.load()
    assert index.entry_before(5001) == (5000, BASE + 500)
    disk.cut("/x.timeindex", 13)
    with pytest.raises(IndexCorrupt, match="not whole entries"):
        TimeIndex(disk, "/x.timeindex", BASE).last_in_file()
