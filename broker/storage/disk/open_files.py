"""Tracks open log files, and closes unused ones: a broker may have ten thousand logs, a process twenty thousand open files."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Protocol

IDLE_CHECK_TICKS = 10
"""Ticks between two checks. Files that were not used between two checks are closed."""
OPEN_MAX = 4096
"""With more open files than this, or than the files' share of the descriptors, every tick is a check."""
LOOKED_AT_FOR_ONE = 64
"""Files tried when one must be closed at once: unsynced files stay open."""
CLOSED_AT_ONCE = 1000
"""Files closed per tick. A close takes 1 us, and much longer on a busy machine."""


class OpenFile(Protocol):
    """An object that opens its file when needed. Each use sets `is_used`."""

    is_used: bool

    @property
    def can_rest(self) -> bool:
        """The file is not pinned, it is synced, and closing it frees a usable descriptor."""
        ...

    def rest(self) -> bool:
        """Closes the file. False when it must stay open."""


class OpenFiles:
    """The open files. `tick` is called each second, on the loop.

    `share`: how many of the process's descriptors are for these files (`descriptors`).
    """

    def __init__(self) -> None:
        self.share = OPEN_MAX
        self._loops_thread: int | None = None
        self._open: dict[OpenFile, None] = {}
        self._idle: list[OpenFile] = []
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, file: OpenFile) -> None:
        self._open[file] = None

    def discard(self, file: OpenFile) -> None:
        self._open.pop(file, None)

    def belong_to_this_thread(self) -> None:
        """Makes the current thread the loop's thread. Until this call, several threads open logs."""
        self._loops_thread = threading.get_ident()

    @property
    def are_of_another_thread(self) -> bool:
        """The current thread is not the loop's."""
        return self._loops_thread is not None and threading.get_ident() != self._loops_thread

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % IDLE_CHECK_TICKS == 0 or self.are_too_many or self._idle:
            self.close_idle()

    @property
    def are_too_many(self) -> bool:
        """More files are open than OPEN_MAX, or than `share`."""
        return len(self._open) > min(self.share, OPEN_MAX)

    @property
    def are_far_too_many(self) -> bool:
        """More than twice `share` are open: unsynced files must be closed, too."""
        return len(self._open) > 2 * self.share

    def close_one_at_rest(self) -> bool:
        """Closes one file that can rest, starting with those opened or tried longest ago. False when none of them can.

        Does nothing in other threads than the loop's, as the loop may be using the file.
        """
        if threading.get_ident() != self._loops_thread:
            return False
        for file in list(islice(self._open, LOOKED_AT_FOR_ONE)):
            if file.can_rest and file.rest():
                return True
            if self._open.pop(file, self) is None:  # unless the cleaner's thread has just closed it
                self._open[file] = None  # tried last from now on
        return False

    def close_idle(self) -> None:
        """Closes files that were not used since the last call: some now, the rest in the next calls."""
        if not self._idle:
            for file in list(self._open):  # the cleaner's thread may open one meanwhile
                if file.is_used:
                    file.is_used = False
                else:
                    self._idle.append(file)
        for file in self._idle[-CLOSED_AT_ONCE:]:
            if not file.is_used:
                file.rest()
        del self._idle[-CLOSED_AT_ONCE:]
