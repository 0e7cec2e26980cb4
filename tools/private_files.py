"""Files that a command makes: never through a link that somebody has put there, and not for everybody to read."""

from __future__ import annotations

import os
from pathlib import Path

UMASK = 0o027
"""What the owner's group may not write, and others not even read: the data of servers that a command starts."""


def write_anew(path: Path, text: str) -> None:
    """The file has its old content or the new one. A link that has its name, or that of the temporary file, is replaced. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, 0o666)
    except FileExistsError:
        temporary.unlink()
        fd = os.open(temporary, flags, 0o666)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def open_log(path: Path) -> int:
    """A descriptor for a server's output, which is added to the file. Raises OSError (ELOOP) for a symbolic link."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)


def server_umask() -> int:
    """This process's umask, and `UMASK` with it."""
    mine = os.umask(UMASK)
    os.umask(mine)
    return mine | UMASK
