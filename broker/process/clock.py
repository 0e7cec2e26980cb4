"""The clocks of a broker. `broker.main` creates them and passes them on, so that tests can set the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """The clocks that the broker uses."""

    def monotonic(self) -> float:
        """Seconds that never go back, without the time for which the machine was suspended: for time-outs and lags."""
        ...

    def since_boot(self) -> float:
        """Seconds that never go back, with the time for which the machine was suspended: leases may end during a suspension."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that others read, never for decisions on the ISR or a session."""
        ...


def _since_boot() -> Callable[[], float]:
    """CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS, which both count suspended time. `time.monotonic` elsewhere, which may not."""
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
