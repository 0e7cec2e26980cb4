"""Brokers of one machine without the cost of their imports: a process that has imported a broker forks one for each request.

The imports are four fifths of the processor time of a start, and forks share the memory of what none of them writes.

A request is a line of JSON on standard input: `directory`, `environment` and `umask`, which a process started alone would inherit. The
answer is a line of JSON on standard output: the pid of the broker, or a text that says why there is none. This process ends when its
standard input ends.

A fork differs in one thing from a broker that was started alone: its command line is that of all. Paths in it are relative, and the
current directory says which broker it is. Its name in `ps -e` and `top` is that of the directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from broker.process.rotated_file import open_to_append

NAME = Path("/proc/self/comm")
PR_SET_PDEATHSIG = 1


def fork_for_each_request(log_file: Path, *, is_owned: bool) -> None:
    """Returns in each fork. An owned one is killed when this process ends (Linux). Call it before any thread is started."""
    gc.collect()
    gc.freeze()  # a collection would write to each object, and the forks share none of those
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks here how a broker ended
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may be for all processes, and the brokers need time to stop
    parent = os.getpid()
    for line in sys.stdin.buffer:
        try:
            if os.fork():
                continue
        except OSError as error:  # for a limit, or without memory; brokers that run must not end for that
            _answer(f"cannot fork: {error.strerror}")
            continue
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if is_owned:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before prctl was called
                os._exit(1)
        try:
            _become_a_server(json.loads(line), log_file)
        except OSError as error:
            _answer(f"{error.filename}: {error.strerror}")
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - whoever asked would wait for an answer
            _answer(repr(error))
            os._exit(1)
        return
    os._exit(0)


def _become_a_server(request: dict[str, Any], log_file: Path) -> None:
    """Takes on what a new process inherits, and answers. From then on, the server log has the output. Raises OSError."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(request["umask"])
    os.chdir(request["directory"])
    with contextlib.suppress(OSError):
        NAME.write_bytes(os.fsencode(Path.cwd().name))
    log, nothing = open_to_append(log_file), os.open(os.devnull, os.O_RDONLY)
    _answer(os.getpid())
    for descriptor, target in ((nothing, sys.stdin), (log, sys.stdout), (log, sys.stderr)):
        os.dup2(descriptor, target.fileno())
    os.close(nothing)
    os.close(log)


def _answer(said: int | str) -> None:
    os.write(sys.stdout.fileno(), json.dumps(said).encode() + b"\n")
