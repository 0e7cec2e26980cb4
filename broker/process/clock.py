"""Time, injected: nothing below `broker.main` reads a clock directly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The clocks that the broker uses."""

    def monotonic(self) -> float:
        """Seconds that never go back, and stop while the machine is suspended: for timeouts and lags."""
        ...

    def since_boot(self) -> float:
        """Seconds that never go back, and continue while the machine is suspended: for leases, since others continue to count."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that others read, never for decisions on the ISR or a session."""
        ...


def _since_boot() -> Callable[[], float]:
    """CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS (Python's own monotonic stops there). Elsewhere suspensions are not seen."""
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
