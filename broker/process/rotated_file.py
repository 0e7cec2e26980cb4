"""A file to which lines are appended. A full file is rotated: `name` becomes `name.1`, `name.1` becomes `name.2`, and so on.

Output that clients cause thus never fills a disk: all files together take about `bytes_max * (old_files + 1)` bytes. Readers read the
old files first (`tools/cluster/log_parts.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import NamedTuple

MIB = 1024 * 1024


class Rotation(NamedTuple):
    """A file is rotated when it has `bytes_max` bytes; `old_files` rotated files are kept."""

    bytes_max: int
    old_files: int


EVENT_LOG_ROTATION = Rotation(64 * MIB, 4)
SERVER_LOG_ROTATION = Rotation(32 * MIB, 4)
AUDIT_LOG_ROTATION = Rotation(16 * MIB, 4)


class RotatedFile:
    """Appends whole lines, each with one write to the kernel, so that a killed process leaves whole lines."""

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self.path = path
        self._rotation = rotation
        self._fd = -1
        self._size = 0
        self._is_torn = False

    def append(self, line: bytes) -> None:
        """Adds a line that ends in a newline. Raises OSError; the next call then opens the file again."""
        try:
            if self._fd < 0:
                self._open()
            if self._size and self._size + len(line) > self._rotation.bytes_max:
                self.close()
                put_aside(self.path, self._rotation.old_files)
                self._open()
            rest = b"\n" + line if self._is_torn else line
            self._is_torn = False
            # A disk that becomes full accepts a part of a line, and then refuses. The next call finds the torn line.
            while rest:
                written = os.write(self._fd, rest)
                self._size += written
                rest = rest[written:]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _open(self) -> None:
        self._fd = open_to_append(self.path)
        self._size = os.fstat(self._fd).st_size
        self._is_torn = self._size > 0 and not _ends_a_line(self.path)


def open_to_append(path: Path) -> int:
    """A descriptor of the file. Creates the file if it does not exist. Raises OSError, for a symbolic link with ELOOP.

    A FIFO that nobody reads is an error (ENXIO), and not waited for.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    os.set_blocking(fd, True)
    return fd


def put_aside(path: Path, old_files: int) -> None:
    """Renames the file to `.1`, `.1` to `.2`, and so on; the oldest is overwritten. Raises OSError."""
    names = [path, *(_aside(path, number + 1) for number in range(old_files))]
    for newer, older in reversed(list(itertools.pairwise(names))):
        with contextlib.suppress(FileNotFoundError):
            os.replace(newer, older)


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
