"""No name leads out of a log directory, whoever asks the log manager (LeaderAndIsr for `../../x`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.storage.directories.log_directory import LogDirectory
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode, KafkaError
from protocol.types import TopicPartition
from tests.support.busy_disk import run
from tests.support.logs import started

OUTSIDE = [
    TopicPartition("../../x", 0),
    TopicPartition("..", 0),
    TopicPartition("/etc/x", 0),
    TopicPartition("a\nb", 0),
    TopicPartition("a\0b", 0),
    TopicPartition("x" * 250, 0),
    TopicPartition("t", -1),
    TopicPartition("t", 2**31),
    TopicPartition("t", "/../../x"),  # type: ignore[arg-type]
    TopicPartition("t", float("nan")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("tp", OUTSIDE, ids=ascii)
def test_nothing_is_made_or_renamed_outside(tp: TopicPartition, tmp_path: Path) -> None:
    data = tmp_path / "a" / "b" / "data"
    manager = started(FileSystem(), str(data))
    try:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(KafkaError) as caught:
            manager.get_or_create(tp, None, {})
        assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert str(caught.value).isprintable()
        found = manager.get_or_create(TopicPartition("t", 0), None, {})
        found.topic_partition = tp
        manager._logs[tp] = found
        for remove in (manager.delete, manager.set_aside):
            with pytest.raises(KafkaError):
                remove(tp)
            manager._logs[tp] = found
        assert sorted(path for path in tmp_path.rglob("*") if data / "t-0" not in (path, *path.parents)) == before
        assert manager.offline_dirs == ()
    finally:
        run(manager.shutdown())


def test_directories_with_names_that_no_topic_has_are_left_alone(tmp_path: Path) -> None:
    for name in ("t-0", "a b-0", "ü-1", "t-01", "t-²", "t-4294967296", "-0", "..-0", f"{'x' * 250}-0", "q-0.stray"):
        (tmp_path / name).mkdir()
    found = LogDirectory(FileSystem(), str(tmp_path)).partitions()
    assert found == [(TopicPartition("t", 0), f"{tmp_path}/t-0")]
