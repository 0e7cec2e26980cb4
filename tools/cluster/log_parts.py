"""Reading the logs of a run directory, which the servers rotate: `server.log.2`, `server.log.1`, `server.log`."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def parts_of(path: Path) -> list[Path]:
    """The files with everything that was written to `path` and is kept, the oldest first. Leaves out what is no file, such as a FIFO."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,3})")
    old = []
    with contextlib.suppress(OSError):
        old = [(int(match[1]), entry) for entry in path.parent.iterdir() if (match := pattern.fullmatch(entry.name))]
    return [entry for entry in (*(entry for _, entry in sorted(old, reverse=True)), path) if entry.is_file()]


def events_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of an event log, without a line that a crash cut off or that is being written."""
    for line in LogReader(path).new_lines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


class LogReader:
    """Reads a log in steps. Each step continues where the last one ended, also if the file was rotated in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._position = 0

    def rewind(self) -> None:
        """Reads everything that is kept again."""
        self._inode, self._position = 0, 0

    def skip(self) -> None:
        """Skips everything written so far."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            self._inode, self._position = status.st_ino, status.st_size

    def new_lines(self) -> Iterator[bytes]:
        """The lines added since the last call. A line that is not complete yet is returned in parts."""
        with contextlib.ExitStack() as opened:
            files = []
            for part in self._unread():  # all at once: the parts get other names if the log is rotated meanwhile
                with contextlib.suppress(FileNotFoundError):
                    files.append(opened.enter_context(part.open("rb")))
            for number, file in enumerate(files):
                inode = os.fstat(file.fileno()).st_ino
                if number or inode != self._inode:
                    self._inode, self._position = inode, 0
                file.seek(self._position)
                for line in file:
                    self._position += len(line)
                    yield line

    def _unread(self) -> list[Path]:
        """The file read last and the newer files; all files if the file read last was removed."""
        parts = parts_of(self._path)
        for number, part in enumerate(parts):
            with contextlib.suppress(FileNotFoundError):
                if part.stat().st_ino == self._inode:
                    return parts[number:]
        return parts
