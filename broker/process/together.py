"""Brokers that start together on one machine: one process imports what a broker needs, and each broker is a fork of it.

The imports are four fifths of the processor time of a start, and forks share the memory of what none of them writes.

A fork differs in one thing from a broker that was started alone: its command line is that of all. Paths in it are relative, and the
current directory says which broker it is. Its name in `ps -e` and `top` is that of the directory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path

NAME = Path("/proc/self/comm")


def fork_in_each(directories: Iterable[str]) -> None:
    """Returns in each fork, in its directory. This process prints their pids, and ends. Call it before any thread is started."""
    gc.collect()
    gc.freeze()  # a collection would write to each object, and the forks share none of those
    for directory in directories:
        # Before the fork: whoever looks for the broker of this directory finds it from its first moment.
        os.chdir(directory)
        pid = os.fork()
        if not pid:
            _become_a_server(Path(directory).name)
            return
        print(pid, flush=True)
    os._exit(0)


def _become_a_server(name: str) -> None:
    """Leaves the session and the standard input of the process that forked. The server log takes the output."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    with contextlib.suppress(OSError):
        NAME.write_text(name)
