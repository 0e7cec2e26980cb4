"""One killed broker for all clients that are tested side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable

LIMIT_S = 200.0


class Disaster:
    """Happens when each of `parties` is ready for it, or has left."""

    def __init__(self, parties: int, strike: Callable[[], None]) -> None:
        self._parties = parties
        self._strike = strike
        self._ready = 0
        self._is_over = False
        self._changed = threading.Condition()

    def happen(self) -> None:
        """Returns when the broker is dead."""
        with self._changed:
            self._ready += 1
            self._strike_if_all_are_ready()
            assert self._changed.wait_for(lambda: self._is_over, LIMIT_S), "another client was not ready for the kill"

    def leave(self) -> None:
        """For a party that ends without it."""
        with self._changed:
            self._parties -= 1
            self._strike_if_all_are_ready()

    def _strike_if_all_are_ready(self) -> None:
        if not self._is_over and 0 < self._ready == self._parties:
            self._strike()
            self._is_over = True
            self._changed.notify_all()
