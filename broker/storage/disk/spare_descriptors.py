"""Spare file descriptors: with one of them, a file can be opened when the process has no other left (FLT-30).

A file that is closed soon (a checkpoint, an index, a directory to sync) takes a spare descriptor and returns it. Necessary writes
therefore succeed however many connections there are. A log file that stays open may take only half of the spare descriptors;
after that its partition waits until another file is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

from broker.process.rare_lines import RareLine

log = logging.getLogger(__name__)

LOGGED_EVERY_S = 60.0


class SpareDescriptors:
    """Used by all threads: each operation on the list is one step of the interpreter."""

    def __init__(self) -> None:
        self._wanted = 0
        self._spare: list[int] = []
        self._null_fd: int | None = None
        self._shortages = RareLine(LOGGED_EVERY_S, time.monotonic)

    def __len__(self) -> int:
        return len(self._spare)

    @property
    def are_missing(self) -> bool:
        """Some are in use, or could not be opened."""
        return len(self._spare) < self._wanted

    def keep(self, count: int) -> None:
        """Sets the number of spare descriptors, and opens as many as possible now."""
        self._wanted = count
        while len(self._spare) > count:
            os.close(self._spare.pop())
        self.fill()

    def fill(self) -> None:
        """Opens missing spare descriptors, as far as the limit allows. Call it now and then."""
        with contextlib.suppress(OSError):
            if self._null_fd is None and self._wanted:
                self._null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            while len(self._spare) < self._wanted:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def give_up_one(self, *, is_kept: bool) -> bool:
        """Frees a descriptor for a file; `is_kept`: the file stays open. False when none is left for it."""
        self._log_shortage()
        if is_kept and len(self._spare) <= self._wanted // 2:
            return False
        try:
            os.close(self._spare.pop())
        except IndexError:
            return False
        return True

    def take_back(self, fd: int) -> bool:
        """Turns a file's descriptor into a spare one, in one step. False when the caller must close it."""
        if len(self._spare) >= self._wanted or self._null_fd is None:
            return False
        try:
            os.dup2(self._null_fd, fd, inheritable=False)
        except OSError:  # the limit was lowered below its number (`prlimit`)
            return False
        self._spare.append(fd)
        return True

    def close(self) -> None:
        self._wanted = 0
        while self._spare:
            os.close(self._spare.pop())
        if self._null_fd is not None:
            os.close(self._null_fd)
            self._null_fd = None

    def _log_shortage(self) -> None:
        if self._shortages.happened() is not None:
            log.error(
                "this process has no descriptor left for a file; it uses its %d spare ones, and a partition that gets none answers "
                "KAFKA_STORAGE_ERROR until files or connections are closed: raise the limit of open files "
                "(ulimit -n, LimitNOFILE) of the broker or of the machine (fs.file-max)",
                len(self._spare),
            )
