"""Returns freed memory to the kernel.

Frames and answers of hundreds of kilobytes come from the C library's heap, which keeps freed memory if anything above it is still in
use: a broker would stay as large as after its largest request. `malloc_trim` returns whole pages from anywhere in the heap. It is
called in a thread, and only when this process has grown.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

LOOK_S = 5.0
SHARE_OF_TIME = 0.01
"""Maximum share of time for trims, because a trim locks the heap. After a trim of 50 ms, the next one comes 5 s later at the earliest."""
GROWN_BYTES = 32 * 1024 * 1024
"""The heap is trimmed if the process is larger by this than at its smallest."""
STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The resident memory of this process; 0 if the system does not report it."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim_function() -> Callable[[int], int] | None:
    """glibc's `malloc_trim`; None with another C library."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


async def give_back_regularly(resident: Callable[[], int] = resident_bytes, look_s: float = LOOK_S) -> None:
    """Trims the heap when the process has grown. Runs until cancelled; returns at once without glibc."""
    trim = trim_function()
    if trim is None:
        return
    smallest, wait_s = resident(), look_s
    while True:
        await asyncio.sleep(wait_s)
        now, wait_s = resident(), look_s
        smallest = min(smallest, now)
        if now - smallest >= GROWN_BYTES:
            wait_s = max(look_s, await asyncio.to_thread(_timed, trim) / SHARE_OF_TIME)


def _timed(trim: Callable[[int], int]) -> float:
    """Calls `trim`. Returns the seconds of processor time that it took."""
    begun = time.thread_time()
    trim(0)
    return time.thread_time() - begun
