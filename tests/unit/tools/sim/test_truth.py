"""Which of the copies of a replica in two log directories counts, after each step of a move (LOG-6)."""

from __future__ import annotations

import pytest

from broker.storage.compaction.batch_cleaning import _emptied
from broker.storage.directories.future_logs import REPLACES_CURRENT
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.record_batch import parse_header
from protocol.types import TopicPartition
from tools.sim.truth import (
    batches_in,
    copies_of,
    replicas_on,
    segments_on,
    that_counts,
    unfinished_on,
    visible_in,
)
from tools.sim.world.disk import MemoryDisk

TP = TopicPartition("topic-1", 0)
OLD, NEW = f"/data/{TP}", f"/more/{TP}"
COPY = f"{NEW}.{'0a' * 16}-future"
MARK = f"/{REPLACES_CURRENT}"


@pytest.mark.parametrize(
    ("directories", "counts"),
    [
        ((), None),
        ((OLD,), OLD),
        ((OLD, COPY), OLD),
        ((OLD, COPY, COPY + MARK), OLD),
        ((COPY, COPY + MARK), COPY),
        ((COPY,), None),
        ((NEW, NEW + MARK), NEW),
        ((OLD, NEW, NEW + MARK), NEW),
    ],
    ids=["nothing", "before", "copying", "complete", "between the renames", "of a log that is gone", "after", "torn"],
)
def test_one_copy_counts(directories: tuple[str, ...], counts: str | None) -> None:
    """Also after a power loss, when the names in two volumes are of different steps."""
    disk = MemoryDisk()
    for path in ("/data", "/more", *(path for path in directories if not path.endswith(MARK))):
        disk.make_directory(path)
    for path in directories:
        disk.write_new(path if path.endswith(MARK) else f"{path}/{0:020d}.log", b"")
    found = that_counts(copies_of(disk, TP))
    assert (found.path if found is not None else None) == counts
    assert list(replicas_on(disk)) == [TP] * (counts is not None)
    assert len(segments_on(disk, TP)) == (counts is not None)
    others = [path for path in directories if not path.endswith(MARK) and path != counts]
    assert unfinished_on(disk) == others


def test_a_marker_that_was_compacted_away_begins_no_transaction() -> None:
    marker = bytearray(marker_batch(7, 0, Marker(is_commit=True, coordinator_epoch=0), 0))
    assert [batch.marker for batch in batches_in(marker)] == [True]
    (emptied,) = batches_in(bytearray(_emptied(parse_header(marker))))
    assert visible_in([emptied]).open == []


def test_other_partitions_and_deleted_directories_do_not_count() -> None:
    disk = MemoryDisk()
    for path in ("/data", "/more", "/data/topic-10", f"{OLD}.{'0a' * 16}-delete", "/more/topic-1-00-future"):
        disk.make_directory(path)
    assert copies_of(disk, TP) == []
    assert unfinished_on(disk) == []
