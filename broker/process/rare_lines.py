"""Lines of the log that could repeat thousands of times a second, and are written now and then."""

from __future__ import annotations

from collections.abc import Callable


class RareLine:
    """Allows one line in `every_s` seconds, and counts what happened in between."""

    def __init__(self, every_s: float, monotonic: Callable[[], float]) -> None:
        self._every_s = every_s
        self._monotonic = monotonic
        self._written_at = float("-inf")
        self._others = 0

    def happened(self) -> int | None:
        """To be called each time. None: no line now. Else the caller writes one; the number is that of the times without a line before."""
        now = self._monotonic()
        if now - self._written_at < self._every_s:
            self._others += 1
            return None
        others, self._others = self._others, 0
        self._written_at = now
        return others
