"""Time, injected: nothing below `broker.main` reads a clock of its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the broker knows of time."""

    def monotonic(self) -> float:
        """Seconds that only go forward: for time-outs, lags and leases."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that others read, never for decisions on the ISR or a session."""
        ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000
