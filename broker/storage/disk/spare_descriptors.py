"""Descriptors that are kept for nothing, so that a file can be opened when the process has no other left (FLT-30).

A file that is opened and closed again (a checkpoint, an index, a directory to sync) takes a spare one and gives it back. So what
must be written is written however many connections there are. A log file that stays open may take spare ones only down
to a half; after that its partition waits until another file is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time

log = logging.getLogger(__name__)

TOLD_EVERY_S = 60.0


class SpareDescriptors:
    """Used by all threads: each operation on the list is one step of the interpreter."""

    def __init__(self) -> None:
        self._wanted = 0
        self._spare: list[int] = []
        self._model: int | None = None
        self._told_at = -TOLD_EVERY_S

    def __len__(self) -> int:
        return len(self._spare)

    @property
    def are_missing(self) -> bool:
        """Some are in use, or cannot be had."""
        return len(self._spare) < self._wanted

    def keep(self, count: int) -> None:
        """So many from now on, as soon as they can be had."""
        self._wanted = count
        while len(self._spare) > count:
            os.close(self._spare.pop())
        self.fill()

    def fill(self) -> None:
        """Opens what is missing, as far as there are descriptors: to be called now and then."""
        with contextlib.suppress(OSError):
            if self._model is None and self._wanted:
                self._model = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            while len(self._spare) < self._wanted:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def give_up_one(self, *, is_kept: bool) -> bool:
        """Frees a descriptor for a file. False: none is left for that; `is_kept`: for one that stays open."""
        self._tell()
        if is_kept and len(self._spare) <= self._wanted // 2:
            return False
        try:
            os.close(self._spare.pop())
        except IndexError:
            return False
        return True

    def take_back(self, fd: int) -> bool:
        """A file's descriptor, about to be closed, becomes a spare one in the same step. False: it is to be closed."""
        if len(self._spare) >= self._wanted or self._model is None:
            return False
        try:
            os.dup2(self._model, fd, inheritable=False)
        except OSError:  # the limit was lowered below its number (`prlimit`)
            return False
        self._spare.append(fd)
        return True

    def close(self) -> None:
        self._wanted = 0
        while self._spare:
            os.close(self._spare.pop())
        if self._model is not None:
            os.close(self._model)
            self._model = None

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            log.error(
                "this process has no descriptor left for a file; it uses the %d that it keeps spare, and partitions for which there "
                "is none answer KAFKA_STORAGE_ERROR until files or connections are closed: raise the limit of open files "
                "(ulimit -n, LimitNOFILE) of the broker or of the machine (fs.file-max)",
                len(self._spare),
            )
