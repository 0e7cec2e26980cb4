"""Fills the log directories of a broker, if they are on a small file system of their own, and empties them again (FLT-28).

A user's disk is never filled: a file system above SIZE_MAX is refused, and so is one that another broker uses, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.processes import ClusterError

BALLAST = "ottla-fault-ballast"
"""The file that fills a log directory. Brokers ignore files in `log.dirs` that they do not know."""
SIZE_MAX = 1 << 30
BLOCKS = (1 << 20, 1 << 12, 1)
HOW = "docs/FAULTS.md says how to give a broker a small disk"


def why_not(directories: Sequence[Path]) -> str | None:
    """The reason why none of these directories may be filled; None if one may. Raises ClusterError."""
    if any(_size(directory) <= SIZE_MAX for directory in directories):
        return None
    sizes = ", ".join(f"{directory} is on one of {_size(directory) / (1 << 30):.1f} GiB" for directory in directories)
    return f"fill-disk fills only file systems of at most {SIZE_MAX >> 30} GiB, and {sizes}; {HOW}"


def fill(name: str, directories: Sequence[Path], others: Sequence[Path]) -> None:
    """Fills those of a broker's log directories that may be filled. `others`: the log directories of other brokers.

    Raises ClusterError if there is none, or if another broker would be hit.
    """
    reason = why_not(directories)
    if reason is not None:
        raise ClusterError(reason)
    small = [directory for directory in directories if _size(directory) <= SIZE_MAX]
    devices = {os.stat(directory).st_dev for directory in small}
    for other in others:
        with contextlib.suppress(OSError):
            if os.stat(other).st_dev in devices:
                raise ClusterError(f"the disk of {name} is also the disk of another broker ({other}); {HOW}")
    for directory in small:
        _fill(directory / BALLAST)


def empty(directories: Sequence[Path]) -> bool:
    """Removes the files of `fill`. Returns whether there were any. Raises ClusterError."""
    found = False
    for directory in directories:
        try:
            (directory / BALLAST).unlink()
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise ClusterError(f"{directory / BALLAST} cannot be removed: {problem.strerror}") from None
        found = True
    return found


def _size(directory: Path) -> int:
    """Of the file system that has the directory, or will have it."""
    existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    try:
        found = os.statvfs(existing)
    except OSError as problem:
        raise ClusterError(f"{directory}: {problem.strerror}") from None
    return found.f_blocks * found.f_frsize


def _fill(path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as problem:
        raise ClusterError(f"{path} cannot be written: {problem.strerror}") from None
    try:
        for size in BLOCKS:
            with contextlib.suppress(OSError):  # no space left: on with a smaller block
                while os.write(fd, bytes(size)) == size:
                    pass
    finally:
        os.close(fd)
