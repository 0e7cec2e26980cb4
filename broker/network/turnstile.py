"""Where the new connections of a listener wait for their turn, while they come faster than `max.connection.creation.rate` (KIP-612).

One that waits is accepted, and at most its first bytes are read. Its client notices only that no answer comes. Kafka leaves those behind
the first one to the kernel. Whoever has gone when its turn comes gives it to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from broker.process.rare_lines import RareLine
from broker.settings.config import MAX_CONNECTION_CREATION_RATE

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
"""Limit of the connections of a listener that wait. Further ones are closed at once."""
PASSED_IN_A_TURN: Final = 8
REFUSALS_LOGGED_EVERY_S: Final = 1.0
GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Arriving(Protocol):
    """A new connection."""

    def begin(self) -> None:
        """Its turn has come."""

    def abort(self) -> None:
        """It is closed."""

    def has_left(self) -> bool:
        """Whether its client has gone."""


class Turnstile:
    """See the module's docstring."""

    def __init__(
        self,
        listener: str,
        wait_ms: Callable[[], int],
        room: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        """`wait_ms` counts a connection; above 0, it and all behind it wait for so many milliseconds. `room`: how many may wait."""
        self._listener = listener
        self._wait_ms = wait_ms
        self._room = room
        self._waiting: deque[Arriving] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = RareLine(REFUSALS_LOGGED_EVERY_S, monotonic)

    def passes(self, one: Arriving) -> bool:
        """False: its `begin` or `abort` is called later, or `abort` has been called."""
        if not self._waiting:
            wait_ms = self._wait_ms()
            if not wait_ms:
                return True
            self._next_in(wait_ms / 1000)
        elif len(self._waiting) >= max(1, min(WAITING_MAX, self._room())):
            if (earlier := self._refusals.happened()) is not None:
                others = f" (and {earlier} earlier connections)" if earlier else ""
                log.warning(
                    "refused a connection on %s: %s is reached, and %d connections wait%s",
                    self._listener,
                    MAX_CONNECTION_CREATION_RATE,
                    len(self._waiting),
                    others,
                )
            one.abort()
            return False
        self._waiting.append(one)
        return False

    def close(self) -> None:
        """Closes all that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.abort()

    def _next_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._next)

    def _next(self) -> None:
        """The first one has waited for its time, and is counted."""
        self._timer = None
        is_counted = True
        for _ in range(PASSED_IN_A_TURN):
            self._drop_those_who_left()
            if not self._waiting:
                return
            if not is_counted and (wait_ms := self._wait_ms()):
                self._next_in(wait_ms / 1000)
                return
            is_counted = False
            self._waiting.popleft().begin()
        if self._waiting:
            self._next_in(self._wait_ms() / 1000)

    def _drop_those_who_left(self) -> None:
        while self._waiting and self._waiting[0].has_left():
            self._waiting.popleft().abort()


def hung_up(descriptor: int) -> bool:
    """Whether the peer of this socket sends no more, even if something from it was not read yet."""
    poll = select.poll()
    poll.register(descriptor, GONE)
    return bool(poll.poll(0))
