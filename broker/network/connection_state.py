"""What decides whether a connection is read, its requests are handled, and which answer leaves next. Pure.

    OPEN --our close, garbage, limits--> CLOSING (answers written before still leave) --> CLOSED
    OPEN --the client went away--------> CLOSED

Answers leave in the order of the requests (NET-1): each request has the next number of its connection, and an answer
that comes before its turn is held. Requests are handled while earlier ones are parked, but not while one of the `Hold`
reasons is set; then they wait with the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from protocol.kafka.framing import Buffer


class ConnectionState(Enum):
    """See the module."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Hold:
    """Bits: why requests of a connection wait. Plain ints, since they are looked at once per request."""

    ASYNC_API = 1
    """An API that awaits is at work; what follows on the connection waits for it."""
    SLOW_CLIENT = 2
    """The client does not read its answers."""
    EARLY_ANSWERS = 4
    """Too many bytes of answers are held for an earlier request that is parked."""
    ANOTHER_FETCH = 8
    """A fetch came while another is not answered: one at a time is read for a connection."""
    HAD_ITS_SHARE = 32
    """It got a large answer in this turn of the loop; others come first."""
    NO_ROOM = 16
    """The answers that all clients have not taken yet leave no room for another fetch."""


HELD_BYTES_MAX = 1024**2
"""Bytes of early answers of one connection, above which its next requests wait."""


class AnswerOrder:
    """Numbers requests and lets their answers out in that order."""

    __slots__ = ("_held", "answered", "held_bytes", "received")

    def __init__(self) -> None:
        self.received = 0
        self.answered = 0
        self.held_bytes = 0
        self._held: dict[int, tuple[Sequence[Buffer] | Callable[[], Sequence[Buffer]], int]] = {}

    @property
    def in_flight(self) -> int:
        """Requests received and not answered yet."""
        return self.received - self.answered

    def next_number(self) -> int:
        """The number of the request that just came."""
        number = self.received
        self.received = number + 1
        return number

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> Sequence[Buffer]:
        """As `answer`, but what it says is made when it may leave, and not a moment before."""
        if number == self.answered:
            return self.answer(number, make())
        self._held[number] = (make, 0)
        return ()

    def answer(self, number: int, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """What may leave now that request `number` is answered by `parts` (none at all for acks=0): in order, maybe nothing."""
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
