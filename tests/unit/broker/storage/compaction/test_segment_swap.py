"""What recovery makes of a swap that was interrupted, ours or Kafka's (LOG-4, FLT-24)."""

from __future__ import annotations

import pytest

from broker.storage.compaction.segment_swap import finish_swaps
from broker.storage.segment import Segment
from protocol.kafka.record_batch import build_batch, parse_header
from tests.support.logs import DIRECTORY
from tests.support.memory_disk import MemoryDisk


def segment(disk: MemoryDisk, base: int, *offsets: int, suffix: str = "") -> None:
    made = Segment(disk, DIRECTORY, base, index_interval_bytes=1, created_ms=0, suffix=suffix, is_new=True)
    made.rebuild_indexes()
    for offset in offsets:
        data = build_batch([(b"k", suffix.encode(), (), 1)], base_offset=offset, leader_epoch=0)
        made.append((data,), (parse_header(data),))
    made.seal()
    made.close()


def left(disk: MemoryDisk) -> list[str]:
    return sorted(name.lstrip("0") for name in disk.list(DIRECTORY) if name.endswith((".log", ".swap", ".cleaned")))


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory(DIRECTORY)
    for base in (10, 20, 30):
        segment(disk, base, *range(base, base + 10))
    return disk


def test_before_the_new_one_counts_the_old_ones_stay(disk: MemoryDisk) -> None:
    segment(disk, 10, 15, 29, suffix=".cleaned")
    names = left(disk)
    finish_swaps(disk, DIRECTORY, 1)
    assert left(disk) == names


def test_from_then_on_it_takes_their_place(disk: MemoryDisk) -> None:
    segment(disk, 10, 15, 29, suffix=".swap")
    swapped = disk.content(f"{DIRECTORY}/00000000000000000010.log.swap")
    index = disk.content(f"{DIRECTORY}/00000000000000000010.index.swap")
    finish_swaps(disk, DIRECTORY, 1)
    assert left(disk) == ["10.log", "30.log"]
    assert disk.content(f"{DIRECTORY}/00000000000000000010.log") == swapped
    assert disk.content(f"{DIRECTORY}/00000000000000000010.index") == index


def test_an_empty_one_replaces_the_first(disk: MemoryDisk) -> None:
    """The others have nothing that is needed, and go with the next cleaning."""
    segment(disk, 10, suffix=".swap")
    finish_swaps(disk, DIRECTORY, 1)
    assert left(disk) == ["10.log", "20.log", "30.log"]
    assert disk.content(f"{DIRECTORY}/00000000000000000010.log") == b""


def test_an_index_of_the_old_one_is_not_taken_for_the_new_ones(disk: MemoryDisk) -> None:
    segment(disk, 10, 15, 29, suffix=".swap")
    disk.remove(f"{DIRECTORY}/00000000000000000010.index.swap")
    finish_swaps(disk, DIRECTORY, 1)
    assert not disk.exists(f"{DIRECTORY}/00000000000000000010.index")


def test_kafka_renames_the_log_file_first(disk: MemoryDisk) -> None:
    """While an index is still .cleaned, all old segments are there: Kafka's LogLoader drops the new one, so do we."""
    segment(disk, 10, 15, 29, suffix=".swap")
    disk.rename(f"{DIRECTORY}/00000000000000000010.index.swap", f"{DIRECTORY}/00000000000000000010.index.cleaned")
    finish_swaps(disk, DIRECTORY, 1)
    assert [name for name in left(disk) if name.endswith(".log")] == ["10.log", "20.log", "30.log"]
