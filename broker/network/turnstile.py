"""Where the new connections of a listener wait for their turn, while they come faster than `max.connection.creation.rate` (KIP-612).

One that waits is accepted, and at most its first bytes are read. Its client notices only that no answer comes. Addresses take turns, so
that many connections of one keep no other out, such as a follower (BAD-34). Kafka leaves those behind the first one to the kernel, in
their order. Whoever has gone when its turn comes gives it to the next one.
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

    remote_address: str

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
        self._waiting: dict[str, deque[Arriving]] = {}
        """By address, none empty. The first address has the next turn."""
        self._count = 0
        """Of all that wait."""
        self._timer: asyncio.TimerHandle | None = None
        self._refusals = RareLine(REFUSALS_LOGGED_EVERY_S, monotonic)

    def passes(self, one: Arriving) -> bool:
        """False: its `begin` or `abort` is called later, or `abort` has been called."""
        if not self._count:
            wait_ms = self._wait_ms()
            if not wait_ms:
                return True
            self._next_in(wait_ms / 1000)
        elif self._count >= max(1, min(WAITING_MAX, self._room())):
            waiting, refused = self._count, self._who_goes(one)
            if (earlier := self._refusals.happened()) is not None:
                others = f" (and {earlier} earlier connections)" if earlier else ""
                log.warning(
                    "refused a connection of %s on %s: %s is reached, and %d connections wait%s",
                    refused.remote_address,
                    self._listener,
                    MAX_CONNECTION_CREATION_RATE,
                    waiting,
                    others,
                )
            refused.abort()
            if refused is one:
                return False
        self._waiting.setdefault(one.remote_address, deque()).append(one)
        self._count += 1
        return False

    def close(self) -> None:
        """Closes all that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for of_address in waiting.values():
            for one in of_address:
                one.abort()

    def _who_goes(self, one: Arriving) -> Arriving:
        """For `one`, the last of the address with most of them no longer waits, if the address of `one` still has fewer with it."""
        crowd = max(self._waiting.values(), key=len)
        if len(crowd) <= len(self._waiting.get(one.remote_address, ())) + 1:
            return one
        self._count -= 1
        return crowd.pop()

    def _next_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._next)

    def _next(self) -> None:
        """The first one has waited for its time, and is counted."""
        self._timer = None
        is_counted = True
        for _ in range(PASSED_IN_A_TURN):
            self._drop_those_who_left()
            if not self._count:
                return
            if not is_counted and (wait_ms := self._wait_ms()):
                self._next_in(wait_ms / 1000)
                return
            is_counted = False
            self._take().begin()
        if self._count:
            self._next_in(self._wait_ms() / 1000)

    def _drop_those_who_left(self) -> None:
        """Until the next one is there."""
        while self._count:
            address, of_address = next(iter(self._waiting.items()))
            if not of_address[0].has_left():
                return
            gone = of_address.popleft()
            self._count -= 1
            if not of_address:
                del self._waiting[address]
            gone.abort()

    def _take(self) -> Arriving:
        """The next one. Its address has its next turn after all others."""
        address, of_address = next(iter(self._waiting.items()))
        del self._waiting[address]
        one = of_address.popleft()
        self._count -= 1
        if of_address:
            self._waiting[address] = of_address
        return one


def hung_up(descriptor: int) -> bool:
    """Whether the peer of this socket sends no more, even if something from it was not read yet."""
    poll = select.poll()
    poll.register(descriptor, GONE)
    return bool(poll.poll(0))
