"""Ctrl-C and SIGTERM as a flag to check between two records, so that the current work is finished first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Inside this context the signals are only counted; `exit_code` is the shell's code for the first one."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_code = 0
        self._before: list[object] = []

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._count) for number in SIGNALS]
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: object, trace: TracebackType | None) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.exit_code = self.exit_code or 128 + number
