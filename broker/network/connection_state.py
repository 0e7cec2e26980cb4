"""The states of a connection, the reasons why its requests wait, and the order of its answers. Pure.

  WAITING --its turn among the new connections has come (`turnstile.py`)--> OPEN; most are open at once
  OPEN --our close, garbage, limits--> CLOSING (answers written before are still sent) --> CLOSED
  OPEN --the client closed it--------> CLOSED

Answers are sent in the order of the requests (NET-1): each request has the next number of its connection, and an answer before its
turn is held. Requests are handled while earlier ones are parked, but not while one of the `Hold` reasons is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from protocol.types import Buffer


class ConnectionState(Enum):
    """See the module's docstring."""

    WAITING = "waiting"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Hold:
    """Bits: the reasons why requests of a connection wait. Plain ints, because every request reads them."""

    ASYNC_API: Final = 1
    """An API is awaiting something: later requests of the connection wait for it."""
    SLOW_CLIENT: Final = 2
    """The client does not read its answers."""
    EARLY_ANSWERS: Final = 4
    """Too many bytes of answers are held behind an earlier request that is parked."""
    ANOTHER_FETCH: Final = 8
    """The next request is a fetch, and another is unanswered: a connection has one at a time."""
    NO_ROOM: Final = 16
    """The next request is a fetch, and the unread answers of all clients leave no room for its answer."""
    HAD_ITS_SHARE: Final = 32
    """The connection got a large answer in this turn of the loop: others come first."""
    THROTTLED: Final = 64
    """The client is over a quota: the connection is muted (KIP-219)."""
    FAULT: Final = 128
    """An injected fault: nothing arrives any more."""


HELD_BYTES_MAX: Final = 1024**2
"""When the held answers of one connection have more bytes, its next requests wait."""


class AnswerOrder:
    """Numbers requests and releases their answers in that order."""

    __slots__ = ("_held", "answered", "held_bytes", "received")

    def __init__(self) -> None:
        self.received = 0
        self.answered = 0
        self.held_bytes = 0
        self._held: dict[int, tuple[Sequence[Buffer] | Callable[[], Sequence[Buffer]], int]] = {}

    @property
    def in_flight(self) -> int:
        """The number of unanswered requests."""
        return self.received - self.answered

    def next_number(self) -> int:
        """Numbers the request that has just arrived."""
        number = self.received
        self.received = number + 1
        return number

    def drop_held(self) -> None:
        """The answers that are held for an earlier one are not sent."""
        self._held.clear()
        self.held_bytes = 0

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> Sequence[Buffer]:
        """Like `answer`, but `make` is called only when the answer can be sent."""
        if number == self.answered:
            return self.answer(number, make())
        self._held[number] = (make, 0)
        return ()

    def answer(self, number: int, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """The buffers to send now that request `number` is answered by `parts` (none for acks=0): in order, perhaps none."""
        if number != self.answered:
            size = sum(map(len, parts))
            self._held[number] = (parts, size)
            self.held_bytes += size
            return ()
        self.answered = number + 1
        if not self._held:
            return parts
        ready = list(parts)
        while (held := self._held.pop(self.answered, None)) is not None:
            content, size = held
            ready += content() if callable(content) else content
            self.held_bytes -= size
            self.answered += 1
        return ready
