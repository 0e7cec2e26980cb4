"""Ctrl-C and SIGTERM as something to look at between two records: what is under way is finished first."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Within it the signals are only counted; `exit_code` is the shell's for the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_code = 0
        self._before: list[object] = []

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._noted) for number in SIGNALS]
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: object, trace: TracebackType | None) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _noted(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.exit_code = self.exit_code or 128 + number
