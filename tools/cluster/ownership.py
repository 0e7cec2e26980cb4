"""Servers that die with the process that started them, however that ends: those of the demo, the benches and the tests.

`ottla cluster start` leaves its servers running. A demo's servers have nobody else: were the demo killed with SIGKILL, and
with it whatever it has set to watch over them, they would run for ever. So the kernel watches (Linux' PR_SET_PDEATHSIG).
It goes by the *thread* that started a process, hence one thread starts them all, and lives as long as this process.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache

PR_SET_PDEATHSIG = 1
OWNER_IS_GONE = 1

Popen = subprocess.Popen[bytes]


class _Role:
    is_owner = False


def own_servers() -> None:
    """Servers that this process starts from now on are killed when it ends. Elsewhere than on Linux nothing is done."""
    _Role.is_owner = sys.platform == "linux"


def start(popen: Callable[[Callable[[], None] | None], Popen]) -> Popen:
    """`popen` starts a server, with what it is given as its `preexec_fn`."""
    return _Starter.of(os.getpid()).start(popen) if _Role.is_owner else popen(None)


class _Starter:
    """The thread."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._asked: queue.SimpleQueue[tuple[Callable[[Callable[[], None]], Popen], Future[Popen]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="starter of servers", daemon=True).start()

    @staticmethod
    @cache
    def of(owner: int) -> _Starter:
        """A fork of this process has no such thread, and gets another."""
        return _Starter(owner)

    def start(self, popen: Callable[[Callable[[], None]], Popen]) -> Popen:
        started: Future[Popen] = Future()
        self._asked.put((popen, started))
        return started.result()

    def _run(self) -> None:
        while True:
            popen, started = self._asked.get()
            try:
                started.set_result(popen(self._die_with_owner))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                started.set_exception(error)

    def _die_with_owner(self) -> None:
        """In the new process, before it becomes the server."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._owner:  # it ended before the kernel was told
            os._exit(OWNER_IS_GONE)
