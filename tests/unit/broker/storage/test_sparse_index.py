"""The two sparse indexes: Kafka's bytes, look-ups, and what is refused (FLT-27)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.sparse_index import IndexCorrupt, OffsetIndex, TimeIndex
from tests.support.memory_disk import MemoryDisk

BASE = 1_000


def offset_index(data: bytes = b"") -> OffsetIndex:
    disk = MemoryDisk()
    disk.write_atomically("/x.index", data)
    index = OffsetIndex(disk, "/x.index", BASE)
    index.load()
    return index


def time_index(data: bytes = b"") -> TimeIndex:
    disk = MemoryDisk()
    disk.write_atomically("/x.timeindex", data)
    index = TimeIndex(disk, "/x.timeindex", BASE)
    index.load()
    return index


def test_bytes_are_kafkas() -> None:
    disk = MemoryDisk()
    offsets, times = OffsetIndex(disk, "/x.index", BASE), TimeIndex(disk, "/x.timeindex", BASE)
    offsets.append(BASE + 7, 300)
    times.append(1_700_000_000_000, BASE + 7)
    assert disk.content("/x.index") == bytes.fromhex("00000007 0000012c")
    assert disk.content("/x.timeindex") == bytes.fromhex("0000018bcfe56800 00000007")


@pytest.mark.parametrize(
    ("offset", "entry"),
    [
        (BASE, None),
        (BASE + 9, None),
        (BASE + 10, (BASE + 10, 100)),
        (BASE + 11, (BASE + 10, 100)),
        (BASE + 20, (BASE + 20, 200)),
        (BASE + 10**12, (BASE + 20, 200)),
        (0, None),
    ],
)
def test_offset_look_up(offset: int, entry: tuple[int, int] | None) -> None:
    index = offset_index()
    index.append(BASE + 10, 100)
    index.append(BASE + 20, 200)
    assert index.entry_before(offset) == entry


@pytest.mark.parametrize(
    ("timestamp", "entry"), [(500, None), (501, (500, BASE + 3)), (600, (500, BASE + 3)), (601, (600, BASE + 9))]
)
def test_time_look_up_is_below_the_timestamp(timestamp: int, entry: tuple[int, int] | None) -> None:
    index = time_index()
    index.append(500, BASE + 3)
    index.append(600, BASE + 9)
    assert index.entry_before(timestamp) == entry


def test_entries_that_do_not_rise_are_left_out() -> None:
    offsets, times = offset_index(), time_index()
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
    ],
    ids=["one byte", "torn entry", "zeroes", "keys go back", "values go back", "negative key", "negative value"],
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(IndexCorrupt):
        offset_index(data)


def test_an_empty_entry_is_refused() -> None:
    """What a power loss may leave of the first one (FLT-27); found by the test of power losses, seed 167418961."""
    with pytest.raises(IndexCorrupt):
        offset_index(bytes(8))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(IndexCorrupt):
        OffsetIndex(MemoryDisk(), "/x.index", BASE).load()


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
    again = OffsetIndex(disk, "/x.index", BASE)
    again.load()
    for found in (index, again):
        assert len(found) == len(kept)
        assert found.last() == (kept[-1] if kept else None)
    index.unload()
    index.load()
    assert index.last() == again.last()


def test_files_are_open_only_while_they_are_written() -> None:
    disk = MemoryDisk()
    index = OffsetIndex(disk, "/x.index", BASE)
    index.reset()
    assert disk.open_files() == 0
    index.append(BASE + 1, 1)
    assert disk.open_files() == 1
    index.close()
    index.append(BASE + 2, 2)
    index.close()
    assert disk.open_files() == 0
    assert disk.content("/x.index") == bytes.fromhex("00000001 00000001 00000002 00000002")
