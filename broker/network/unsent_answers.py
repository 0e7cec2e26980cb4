"""The bytes of answers that clients have not read yet, of all connections together (NET-2). Pure.

From `queued.max.response.bytes` on, a connection with counted unsent answers has no further request handled, a fetch gets at most
ANSWER_MIN bytes or its first batch, and a client that reads next to nothing is disconnected (`Processor.sweep`). From twice that limit
on, fetches of consumers wait until there is room; fetches of followers do not. Answers become smaller long before the limit: each gets
an eighth of the remaining room, so that clients that read find room while others do not read.
"""

from __future__ import annotations

from typing import Final

ANSWER_MAX: Final = 8 * 1024 * 1024
"""Limit of one answer to a fetch, in bytes, unless its first batch is larger. A read of 8 MiB takes 5 ms."""
ANSWER_MIN: Final = 64 * 1024
SHARES: Final = 8
PLENTY: Final = SHARES * ANSWER_MAX


class UnsentAnswers:
    """Counts the bytes; connections report what they hold."""

    __slots__ = ("max_bytes", "total")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` -1 means no limit."""
        self.max_bytes = max_bytes
        self.total = 0

    @property
    def is_short(self) -> bool:
        """Whether the unread answers have reached the limit."""
        return 0 <= self.max_bytes <= self.total

    @property
    def is_exhausted(self) -> bool:
        """Whether the unread answers have reached twice the limit."""
        return 0 <= 2 * self.max_bytes <= self.total

    def room(self) -> int:
        """Bytes that the answer to one more fetch may have; 0 if a consumer's fetch must wait."""
        most = self.max_bytes
        left = most - self.total
        if left >= PLENTY or most < 0:
            return ANSWER_MAX
        if left <= -most:
            return 0
        return min(max(left // SHARES, ANSWER_MIN), ANSWER_MAX)
