"""Turns Ctrl-C, SIGTERM and a closed terminal into one exception, so that `finally` stops what was started.

Python drops an exception that is raised in a callback of garbage collection, or inside some C code. Therefore it is raised
again every `AGAIN_S` until cleaning up has started.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 2.0


class Interrupted(BaseException):
    """The program must end. Not an Exception, so that no error handler swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside this context the signals raise Interrupted in the main thread."""
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
    """Call it when cleaning up starts: a second Ctrl-C must not leave processes behind."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def interruption_was_handled() -> None:
    """Call it in the handler of Interrupted if the program goes on."""
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Within this context, SIGTERM and SIGHUP act like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    earlier: dict[signal.Signals, Any] = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
