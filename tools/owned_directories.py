"""Temporary directories that do not outlive their owner for long, even if SIGKILL ended it: the next owner removes them.

Each has a file with a lock (`flock`), which the kernel releases when the process that made the directory ends, in any way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

LOCK = ".owner"


def owned_directory(prefix: str, started: ExitStack) -> Path:
    """A new temporary directory; closing `started` removes it. Those of this prefix whose owners have ended are removed first."""
    remove_abandoned(prefix)
    path = Path(tempfile.mkdtemp(prefix=prefix))
    started.callback(shutil.rmtree, path, ignore_errors=True)
    # Under its name only when it is locked: another process must not take it for abandoned.
    new = path / f"{LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    started.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(path / LOCK)
    return path


def remove_abandoned(prefix: str) -> None:
    """Removes this user's directories of this prefix whose owner has ended. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            if not path.is_symlink() and path.lstat().st_uid == os.geteuid() and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """False also for a directory without a lock: somebody else made it, or it has just been made."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
