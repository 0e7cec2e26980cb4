"""Servers that die with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tools.cluster.ownership import _Starter

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


class Interrupt(Exception):
    """Stands for KeyboardInterrupt, which would end pytest."""


def test_an_interrupt_while_a_server_is_started_leaves_no_server() -> None:
    """The signal comes when the thread that starts servers has begun, so the caller never gets the process."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(before_exec: Callable[[], None]) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGUSR1)
        started.append(subprocess.Popen(SLEEPER, preexec_fn=before_exec))
        return started[0]

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupt):
            _Starter.of(os.getpid()).start(popen)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert started[0].returncode == -signal.SIGKILL
