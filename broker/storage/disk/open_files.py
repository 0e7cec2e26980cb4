"""Which files are open, so that a log at rest holds no descriptor (a broker has ten thousand logs, and a process twenty thousand files)."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Protocol

IDLE_CHECK_TICKS = 10
"""Files that were not used between two looks are closed."""
OPEN_MAX = 4096
"""With more than these open, or more than the files' share of the descriptors, each tick is a look."""
LOOKED_AT_FOR_ONE = 64
"""Files that are looked at when one is to be closed at once: those that are not synced stay open."""
CLOSED_AT_ONCE = 1000
"""A close takes 1 us, and much longer on a busy machine."""


class OpenFile(Protocol):
    """What opens a file when it needs one. `is_used` is set by each use."""

    is_used: bool

    @property
    def can_rest(self) -> bool:
        """Nobody uses it now, all of it is on the disk, and its descriptor is of use to others."""
        ...

    def rest(self) -> bool:
        """Closes the file. False: it cannot rest."""


class OpenFiles:
    """Those that were opened. `tick` is called each second, on the loop, where all of them are used.

    `share`: how many of the process's descriptors are for them (`descriptors`).
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
        """The loop's, from now on: until then one thread or another opens logs."""
        self._loops_thread = threading.get_ident()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % IDLE_CHECK_TICKS == 0 or self.are_too_many or self._idle:
            self.close_idle()

    @property
    def are_too_many(self) -> bool:
        """More than OPEN_MAX, or than their share."""
        return len(self._open) > min(self.share, OPEN_MAX)

    @property
    def are_far_too_many(self) -> bool:
        """Also those that are not synced have to be closed: they use twice their share."""
        return len(self._open) > 2 * self.share

    def close_one_at_rest(self) -> bool:
        """Closes the file that was opened or looked at the longest ago, and can be closed. False: there is none, or not for us.

        Only in the loop's thread: in another one, the loop may be using the file.
        """
        if threading.get_ident() != self._loops_thread:
            return False
        for file in list(islice(self._open, LOOKED_AT_FOR_ONE)):
            if file.can_rest and file.rest():
                return True
            if self._open.pop(file, self) is None:  # unless the cleaner's thread has just closed it
                self._open[file] = None  # after all others
        return False

    def close_idle(self) -> None:
        """Closes what was not used since the last call, some of it now and the rest in the next calls."""
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
