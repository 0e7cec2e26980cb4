"""Ctrl-C, SIGTERM and a closed terminal become one exception, so that what was started is stopped in `finally`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody wants us to end. No Exception: nothing that handles errors may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it the signals raise Interrupted in the main thread."""
    before = {number: signal.signal(number, raise_interrupted) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_interrupted(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def ignore_from_now() -> None:
    """Called when cleaning up begins: a second Ctrl-C must not leave processes behind."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
