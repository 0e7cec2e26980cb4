"""Gives memory that was freed back to the kernel.

Frames and answers of hundreds of kilobytes come from the C library's heap, which keeps what is freed if anything above it is
still in use: a broker that was once asked for much would stay as large. `malloc_trim` gives back whole pages from anywhere in
the heap. It is called in a thread, and only when this process has grown.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

LOOK_S = 5.0
LOOK_MAX_S = 60.0
"""While it gives nothing back, what has grown is in use."""
GROWN_BYTES = 32 * 1024 * 1024
"""By as much the process has to be larger than it was at its smallest."""
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """0 where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim_function() -> Callable[[int], int] | None:
    """None where the C library is not glibc."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


async def give_back_regularly(resident: Callable[[], int] = resident_bytes, look_s: float = LOOK_S) -> None:
    """Until it is cancelled."""
    trim = trim_function()
    if trim is None:
        return
    smallest, wait_s = resident(), look_s
    while True:
        await asyncio.sleep(wait_s)
        now = resident()
        smallest = min(smallest, now)
        if now - smallest < GROWN_BYTES:
            wait_s = look_s
            continue
        await asyncio.to_thread(trim, 0)
        is_back = now - resident() >= GROWN_BYTES // 4
        wait_s = look_s if is_back else min(2 * wait_s, LOOK_MAX_S)
