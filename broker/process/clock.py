"""Time, injected: nothing below `broker.main` reads a clock of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """What the broker knows of time."""

    def monotonic(self) -> float:
        """Seconds that only go forward, and stand still while the machine is suspended: for time-outs and lags."""
        ...

    def since_boot(self) -> float:
        """Seconds that only go forward, also while the machine is suspended: for leases, which others count on meanwhile."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that others read, never for decisions on the ISR or a session."""
        ...


def _since_boot() -> Callable[[], float]:
    """Linux has CLOCK_BOOTTIME. On macOS CLOCK_MONOTONIC is it, and Python's own monotonic is not. Elsewhere a suspension is not seen."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name) and (name == "CLOCK_BOOTTIME" or sys.platform == "darwin"):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    since_boot = staticmethod(_since_boot())

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000
