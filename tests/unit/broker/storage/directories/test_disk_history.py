"""Since when a broker's disks have been present, with empty, removed and damaged ones (FLT-33)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.storage.checkpoints import HIGH_WATERMARKS, encode_offsets
from broker.storage.directories import disk_history
from broker.storage.directories.disk_history import DiskHistory
from broker.storage.disk.filesystem import FileSystem
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.logs import fill, started

TP = TopicPartition("t", 0)


def live(paths: Sequence[Path], epoch: int, *, makes_log: bool = False, is_refused: bool = False) -> int:
    """One life of a broker on these directories. Returns the broker epoch since which its disks have been present."""
    manager = started(FileSystem(), *map(str, paths))
    manager.note_disks(epoch)
    if not is_refused:
        manager.log_directories.ensure_meta(1, "c")
    if makes_log:
        fill(manager.get_or_create(TP, None, {}), 1)
        run(manager.checkpoints.write_high_watermarks({TP: 1}.get))
    since = manager.disks_since
    run(manager.shutdown())
    return since


def test_a_disk_counts_as_present_since_the_first_broker_life_that_had_it(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert live([a], 10, is_refused=True) == 10
    assert live([a], 20) == 20, "the life before did not get as far as meta.properties"
    assert live([a], 30) == 20
    assert live([a, b], 40) == 40, "one more disk: nobody knows what was on the one before it"
    assert live([a, b], 50) == 40
    shutil.rmtree(a)
    assert live([a, b], 60) == 60, "one of several was replaced"
    assert live([a, b], 70) == 60, "the next life knows it too"


def test_a_directory_removed_from_log_dirs_makes_the_others_count_as_new(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    live([a, b], 10)
    assert live([a, b], 20) == 10
    assert live([a], 30) == 30
    assert live([a], 40) == 30


def test_a_log_removed_by_hand_makes_the_disk_count_as_new(tmp_path: Path) -> None:
    assert live([tmp_path], 10, makes_log=True) == 10
    assert live([tmp_path], 20) == 10
    (tmp_path / HIGH_WATERMARKS).write_bytes(encode_offsets({TP: 1}))
    assert live([tmp_path], 25) == 10
    (tmp_path / HIGH_WATERMARKS).write_bytes(encode_offsets({TP: 1}))
    shutil.rmtree(tmp_path / str(TP))
    assert live([tmp_path], 30) == 30
    (tmp_path / HIGH_WATERMARKS).write_bytes(encode_offsets({}))
    assert live([tmp_path], 40) == 30, "the evidence may be gone by then"


@pytest.mark.parametrize(
    ("content", "since"),
    [
        (None, disk_history.ALWAYS),
        (b"", 20),
        (b"\xff\xfe", 20),
        (b"since.broker.epoch=-4\nversion=0\n", 20),
        (b"since.broker.epoch=7\nlog.dirs=/", 20),
        (b"#\nsince.broker.epoch=7\nversion=0\n", 7),
    ],
)
def test_a_damaged_file_makes_the_disk_count_as_new_and_a_missing_one_as_always_present(
    tmp_path: Path, content: bytes | None, since: int
) -> None:
    live([tmp_path], 10)
    file = tmp_path / disk_history.FILE
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert live([tmp_path], 20) == since
    assert live([tmp_path], 30) == since
    assert disk_history.decode(file.read_bytes()) == DiskHistory(since, (str(tmp_path),))
