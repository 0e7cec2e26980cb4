"""Waits for the effects of a fault."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.02
TIMEOUT_S = 60.0


def until(check: Callable[[], object], what: str) -> float:
    """Returns the time at which the check held (monotonic seconds). Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S:g} s for: {what}")
        time.sleep(POLL_S)
    return time.monotonic()
