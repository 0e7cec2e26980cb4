"""What recovery makes of a swap that was interrupted, ours or Kafka's (LOG-4, FLT-24)."""

from __future__ import annotations

import pytest

from broker.storage.compaction.segment_swap import finish_swaps
from broker.storage.segment import Segment
from protocol.kafka.record_batch import build_batch, parse_header
from tests.support.logs import DIRECTORY
from tools.sim.world.disk import MemoryDisk

NEW = f"{DIRECTORY}/{10:020d}"
OLD = ["10.log", "20.log", "30.log"]


def segment(disk: MemoryDisk, base: int, *offsets: int, suffix: str = "") -> None:
    made = Segment(disk, DIRECTORY, base, index_interval_bytes=1, created_ms=0, suffix=suffix, is_new=True)
    made.rebuild_indexes()
    for offset in offsets:
        data = build_batch([(b"k", suffix.encode(), (), 1)], base_offset=offset, leader_epoch=0)
        made.append((data,), (parse_header(data),))
    made.seal()
    made.close()


def index_is_lost(disk: MemoryDisk) -> None:
    disk.remove(f"{NEW}.index.swap")


def kafka_renamed_the_log_file_first(disk: MemoryDisk) -> None:
    """While an index is still .cleaned, all old segments are there. Kafka's LogLoader drops the new one, so do we."""
    disk.rename(f"{NEW}.index.swap", f"{NEW}.index.cleaned")


def another_attempt_left_a_file(disk: MemoryDisk) -> None:
    """It says nothing about this swap, whose first old segment is gone already."""
    segment(disk, 5, suffix=".cleaned")
    for kind in (".log", ".index", ".timeindex"):
        disk.rename(f"{NEW}{kind}", f"{NEW}{kind}.deleted")


def kafka_was_splitting(disk: MemoryDisk) -> None:
    """Its first part is still .cleaned, so the old segment is there, and has the records of the parts that are .swap."""
    for kind in (".log", ".index", ".timeindex"):
        disk.rename(f"{NEW}{kind}.swap", f"{DIRECTORY}/{15:020d}{kind}.swap")
    segment(disk, 10, *range(10, 15), suffix=".cleaned")


@pytest.mark.parametrize(
    ("suffix", "offsets", "accident", "logs", "is_swapped"),
    [
        (".cleaned", (15, 29), None, OLD, False),
        (".swap", (15, 29), None, ["10.log", "30.log"], True),
        (".swap", (), None, OLD, True),  # an empty one replaces the first; the others go with the next cleaning
        (".swap", (15, 29), index_is_lost, ["10.log", "30.log"], True),
        (".swap", (), index_is_lost, OLD, True),
        (".swap", (15, 29), kafka_renamed_the_log_file_first, OLD, False),
        (".swap", (15, 29), another_attempt_left_a_file, ["10.log", "30.log"], True),
        (".swap", (), another_attempt_left_a_file, OLD, True),
        (".swap", (15, 16), kafka_was_splitting, OLD, False),
    ],
    ids=[
        "does not count yet",
        "takes their place",
        "is empty",
        "without its index",
        "empty and without",
        "Kafka's order",
        "beside a file of another attempt",
        "empty and beside one",
        "part of Kafka's split",
    ],
)
def test_the_next_start_finishes_or_drops_an_interrupted_swap(
    disk: MemoryDisk, suffix: str, offsets: tuple[int, ...], accident: object, logs: list[str], is_swapped: bool
) -> None:
    disk.make_directory(DIRECTORY)
    for base in (10, 20, 30):
        segment(disk, base, *range(base, base + 10))
    old = disk.content(f"{NEW}.log")
    segment(disk, 10, *offsets, suffix=suffix)
    if callable(accident):
        accident(disk)
    new = {kind: disk.read_file(f"{NEW}.{kind}{suffix}") for kind in ("log", "index")}
    finish_swaps(disk, DIRECTORY, 1)
    names = disk.list(DIRECTORY)
    assert sorted(name.lstrip("0") for name in names if name.endswith(".log")) == logs
    if is_swapped:
        assert not [name for name in names if name.endswith(".swap")]
        assert {kind: disk.read_file(f"{NEW}.{kind}") for kind in new} == new
    else:
        assert disk.content(f"{NEW}.log") == old
