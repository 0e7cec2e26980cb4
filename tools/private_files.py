"""Files that a command creates: symbolic links are never followed, and other users cannot read logs and data."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

UMASK = 0o027
"""Minimum umask of servers that a command starts: their group cannot write their data, others cannot read it."""


OWNER_ONLY = 0o600


def write_anew(path: Path, text: str, mode: int = 0o666) -> None:
    """Replaces the file atomically. A symbolic link of that name is replaced, not followed. `mode` is before the umask.

    Raises OSError.
    """
    temporary = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, mode)
    except FileExistsError:
        temporary.unlink()
        fd = os.open(temporary, flags, mode)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        temporary.unlink()
        error.filename = str(path)  # a full disk names no file
        raise
    os.replace(temporary, path)


def write_output(path: Path, text: str) -> None:
    """Replaces a file that a person named, as `write_anew` does; a device or a pipe, such as /dev/null, is written. Raises OSError."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        write_anew(path, text)


def open_log(path: Path) -> int:
    """A descriptor that appends a server's output to the file. Raises OSError, also for a symbolic link, a directory or a FIFO."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)


def server_umask() -> int:
    """This process's umask combined with `UMASK`."""
    mine = os.umask(UMASK)
    os.umask(mine)
    return mine | UMASK
