"""Asks the kernel whether bytes of a file are in memory: cachestat(2), which Linux has since 6.5.

`sendfile` waits for the disk where they are not. `preadv` with RWF_NOWAIT says the same only of bytes that it copies. Of files on an
overlay file system, as containers have it outside of volumes, the kernel says that nothing is in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys

CACHESTAT = 451
"""The number of the system call, the same on all of MACHINES."""
MACHINES = frozenset({"x86_64", "aarch64", "riscv64"})

_syscall = ctypes.CDLL(None, use_errno=True).syscall if sys.platform == "linux" else None


class PageCache:
    """`is_known` is False where the kernel cannot say what it has in memory; `has` is then always False. For one thread."""

    def __init__(self) -> None:
        self.is_known = _syscall is not None and platform.machine() in MACHINES and hasattr(os, "sendfile")
        self._range = (ctypes.c_uint64 * 2)()
        self._counts = (ctypes.c_uint64 * 5)()  # in memory, dirty, being written, evicted, recently evicted
        self._range_at, self._counts_at = ctypes.addressof(self._range), ctypes.addressof(self._counts)

    def has(self, fd: int, size: int, position: int) -> bool:
        """Whether each page of these bytes is in the page cache. A page that is just being read from the disk counts as well."""
        if not self.is_known or _syscall is None:
            return False
        self._range[0], self._range[1] = position, size
        answer = _syscall(
            ctypes.c_long(CACHESTAT),
            ctypes.c_long(fd),
            ctypes.c_void_p(self._range_at),
            ctypes.c_void_p(self._counts_at),
            ctypes.c_long(0),
        )
        if answer:
            self.is_known = False  # an older kernel, or a container that forbids the call
            return False
        pages: int = (position + size - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
        return int(self._counts[0]) >= pages
