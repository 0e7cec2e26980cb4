"""Servers of the demo, the benches and the tests: they die with the process that started them, even if SIGKILL ended it.

The kernel kills them (Linux's PR_SET_PDEATHSIG) when the *thread* that started them ends. Therefore one thread, which lives as long as
its process, starts all servers. `ottla cluster start` does not use this: it leaves its servers running.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

PR_SET_PDEATHSIG = 1
OWNER_IS_GONE = 1

Popen = subprocess.Popen[bytes]


class _Role:
    is_owner = False


def own_servers() -> None:
    """Makes servers that this process starts from now on die with it. Has no effect outside Linux."""
    _Role.is_owner = sys.platform == "linux"


def is_owner() -> bool:
    return _Role.is_owner


def start(command: Sequence[str], **options: Any) -> Popen:
    """Starts a server: `options` are those of `subprocess.Popen` but for `preexec_fn`."""
    if not _Role.is_owner:
        return subprocess.Popen(command, **options)
    return _Starter.of(os.getpid()).start(
        lambda before_exec: subprocess.Popen(command, preexec_fn=before_exec, **options)
    )


class _Starter:
    """The thread that starts servers."""

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
        """The starter of this process. A fork has no such thread and gets a new one."""
        return _Starter(owner)

    def start(self, popen: Callable[[Callable[[], None]], Popen]) -> Popen:
        started: Future[Popen] = Future()
        self._asked.put((popen, started))
        try:
            return started.result()
        except BaseException:
            # A signal handler raised here, as for a Ctrl-C. The thread starts the server nevertheless, and nobody would know of it.
            server = started.result()  # raises again what was raised while it was started
            server.kill()
            server.wait()
            raise

    def _run(self) -> None:
        while True:
            popen, started = self._asked.get()
            try:
                started.set_result(popen(self._die_with_owner))
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                started.set_exception(error)

    def _die_with_owner(self) -> None:
        """Runs in the new process, before it becomes the server."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._owner:  # the owner ended before prctl was called
            os._exit(OWNER_IS_GONE)
