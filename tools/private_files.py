"""Files that a command creates: symbolic links are never followed, and other users cannot read logs and data."""

from __future__ import annotations

import os
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
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def open_log(path: Path) -> int:
    """A descriptor that appends a server's output to the file. Raises OSError (ELOOP) for a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)


def server_umask() -> int:
    """This process's umask combined with `UMASK`."""
    mine = os.umask(UMASK)
    os.umask(mine)
    return mine | UMASK
