"""Ctrl-C, SIGTERM and a closed terminal become one exception, so that what was started is stopped in `finally`.

Python drops an exception that comes up in a callback of a garbage collection, or inside some C code. So it is raised
again each `AGAIN_S` until cleaning up has begun.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 2.0


class Interrupted(BaseException):
    """Somebody wants us to end. No Exception: nothing that handles errors may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it the signals raise Interrupted in the main thread."""
    before = {number: signal.signal(number, raise_interrupted) for number in SIGNALS}
    before[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_interrupted(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, lambda _, frame: raise_interrupted(number, frame))
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    raise Interrupted(number)


def ignore_from_now() -> None:
    """Called when cleaning up begins: a second Ctrl-C must not leave processes behind."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
