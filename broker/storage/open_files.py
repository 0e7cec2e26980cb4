"""Which files are open, so that a log at rest holds no descriptor (a broker has ten thousand logs, and a process twenty thousand files)."""

from __future__ import annotations

from typing import Protocol

IDLE_CHECK_TICKS = 10
"""Files that were not used between two looks are closed."""
OPEN_MAX = 4096
"""With more than these open, each tick is a look."""
CLOSED_AT_ONCE = 1000
"""A close takes 1 us, and much longer on a busy machine."""


class OpenFile(Protocol):
    """What opens a file when it needs one. `is_used` is set by each use."""

    is_used: bool

    def rest(self) -> bool:
        """Closes the file. False: a thread uses it."""


class OpenFiles:
    """Those that were opened. `tick` is called each second, on the loop, where all of them are used."""

    def __init__(self) -> None:
        self._open: dict[OpenFile, None] = {}
        self._idle: list[OpenFile] = []
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, file: OpenFile) -> None:
        self._open[file] = None

    def discard(self, file: OpenFile) -> None:
        self._open.pop(file, None)

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % IDLE_CHECK_TICKS == 0 or len(self._open) > OPEN_MAX or self._idle:
            self.close_idle()

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
