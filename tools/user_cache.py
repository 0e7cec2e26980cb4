"""The user's own directory for what is made once and used again: compiled programs, archives of Java classes."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def user_cache() -> Path:
    """`ottla` in `$XDG_CACHE_HOME` or `~/.cache`, made if it is not there.

    Raises OSError, also if others can write to it: what is in it is run.
    """
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ottla"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {directory}")
    return directory
