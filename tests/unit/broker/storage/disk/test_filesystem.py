"""The real file system's few own decisions: partial writes, what is cached, files written whole or not at all (LOG-3)."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.storage.disk.filesystem import FileSystem
from tools.sim.world.disk import MemoryDisk, PowerLost


def test_a_file_written_atomically_has_its_old_or_its_new_content_at_any_crash_point() -> None:
    old, new = b"old" * 50, b"new content" * 40
    seen = set()
    for calls in range(12):
        for seed in range(20):
            disk = MemoryDisk()
            disk.write_atomically("/c", old)
            disk.calls_left = calls
            try:
                disk.write_atomically("/c", new)
            except PowerLost:
                pass
            else:
                assert disk.after_power_loss(Random(seed)).content("/c") == new
            seen.add(disk.after_power_loss(Random(seed)).content("/c"))
    assert seen == {old, new}


def test_partial_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, position: whole(fd, [b"".join(parts)[:3]], position))
    files = FileSystem()
    fd = files.open(str(tmp_path / "f"))
    files.write(fd, (b"ab", b"", memoryview(b"cdefg")), 2)
    assert files.read(fd, 100, 0) == b"\0\0abcdefg"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.write(fd, (b"abcdefg",), 9)
    files.close(fd)


def _raising(number: int) -> Any:
    def preadv(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    return preadv


def test_cached_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileSystem()
    fd = files.open(str(tmp_path / "f"))
    files.write(fd, (b"0123456789",), 0)
    assert bytes(files.read_cached(fd, 4, 3) or b"") == b"3456"
    assert bytes(files.read_cached(fd, 100, 8) or b"") == b"89"
    whole = os.preadv

    def half(fd: int, buffers: Sequence[bytearray], position: int, flags: int) -> int:
        return whole(fd, [memoryview(buffers[0])[:2]], position, flags)

    monkeypatch.setattr(os, "preadv", half)
    assert files.read_cached(fd, 4, 3) is None  # the rest of it is not in memory
    monkeypatch.setattr(os, "preadv", _raising(errno.EAGAIN))
    assert files.read_cached(fd, 4, 3) is None
    monkeypatch.setattr(os, "preadv", _raising(errno.EIO))
    with pytest.raises(OSError):
        files.read_cached(fd, 4, 3)
    monkeypatch.setattr(os, "preadv", _raising(errno.EOPNOTSUPP))
    assert bytes(files.read_cached(fd, 4, 3) or b"") == b"3456"
    monkeypatch.setattr(os, "preadv", _raising(errno.EIO))
    assert bytes(files.read_cached(fd, 4, 3) or b"") == b"3456"  # not asked again
    files.close(fd)


def _kind_of_file_system(path: Path) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], check=True, capture_output=True, text=True).stdout


def test_what_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what a read without waiting finds out, before and after the pages were dropped, if the system does drop them."""
    files = FileSystem()
    if not files.knows_the_page_cache or "overlay" in _kind_of_file_system(tmp_path):
        pytest.skip("NOT TESTED: this kernel has no cachestat, or not for this file system")
    size = 3 * 1024 * 1024 + 5
    fd = files.open(str(tmp_path / "f"))
    files.write(fd, (bytes(size),), 0)
    assert files.is_cached(fd, size, 0)
    assert files.is_cached(fd, 1, size - 1)
    assert not files.is_cached(fd, size, 1), "the file ends before"
    os.fsync(fd)
    files.drop_cached(fd)
    for at, length in [*((at, 100) for at in range(0, size - 100, 500_000)), (0, size)]:
        # The kernel may read ahead, or drop a page, between two calls.
        before = files.is_cached(fd, length, at)
        was_read = files.read_cached(fd, length, at) is not None
        assert was_read in (before, files.is_cached(fd, length, at))
    files.read(fd, size, 0)
    monkeypatch.setattr(os, "preadv", _raising(errno.EAGAIN))
    assert not files.is_cached(fd, size, 0), "the pages are there, but are just being read"
    monkeypatch.undo()
    assert files.is_cached(fd, size, 0)
    files.close(fd)
    assert not files.is_cached(fd, size, 0), "any error: it cannot say it"
    assert not files.knows_the_page_cache


def test_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    files = FileSystem()
    path = str(tmp_path / "gone")
    files.sync_path(path)
    files.sync_directory(path)
    files.remove(path)
    files.remove_tree(path)
    assert files.read_file(path) is None
    assert not os.path.exists(path)


def test_a_path_that_cannot_be_read_does_not_count_as_missing(tmp_path: Path) -> None:
    """A log whose directory's inode cannot be read must not be made anew (LOG-6)."""
    disk = FileSystem()
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    assert disk.is_directory(str(tmp_path))
    assert not disk.is_directory(str(tmp_path / "file"))
    assert disk.exists(str(tmp_path / "file"))
    for name in ("nothing", "file/below"):
        assert not disk.is_directory(str(tmp_path / name))
        assert not disk.exists(str(tmp_path / name))
    for look in (disk.is_directory, disk.exists):
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            look(str(tmp_path / "loop"))


IN_JAVAS_WAY = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
except BlockingIOError:
    print("refused", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="this system has not the kind of lock")
def test_a_lock_and_that_of_a_kafka_exclude_each_other(tmp_path: Path) -> None:
    files = FileSystem()
    path = str(tmp_path / ".lock")
    command = [sys.executable, "-c", IN_JAVAS_WAY, path]
    fd = files.lock(path)
    files.close(files.open(path))  # gives nothing back
    refused = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert refused.stdout == "refused\n"
    files.close(fd)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError):
            files.lock(path)
        other.stdin.close()
    files.close(files.lock(path))


def test_a_planted_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "meta.properties"
    target.write_text("mine")
    (tmp_path / "meta.properties.tmp").symlink_to(target)
    filesystem = FileSystem()
    filesystem.write_atomically(str(path), b"new")
    filesystem.write_new(str(tmp_path / "meta.properties.tmp"), b"left over")
    filesystem.write_atomically(str(path), b"newer")
    assert (target.read_text(), path.read_bytes()) == ("mine", b"newer")
    assert not path.is_symlink()


def test_a_held_directory_is_itself_whatever_its_path_says(tmp_path: Path) -> None:
    log, moved, target = tmp_path / "t-0", tmp_path / "t-0.1-delete", tmp_path / "target"
    log.mkdir()
    files = FileSystem()
    held = files.hold(str(log))
    held.write("a", b"old")
    target.write_text("mine")
    (log / "a.tmp").symlink_to(target)
    log.rename(moved)
    log.mkdir()
    held.write("a", b"new")
    held.sync_file("a")
    held.sync_file("missing")
    held.sync()
    assert [path.name for path in moved.iterdir()] == ["a"]
    assert ((moved / "a").read_bytes(), list(log.iterdir()), target.read_text()) == (b"new", [], "mine")
    files.remove_tree(str(moved))
    held.write("a", b"newer")
    assert not moved.exists()
    held.release()
    with pytest.raises(FileNotFoundError):
        files.hold(str(moved))


def test_a_link_in_place_of_a_log_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        FileSystem().lock(str(tmp_path / "lock"))
    assert not (tmp_path / "target").exists()
