"""Answers that their clients have not taken yet, of all connections together (NET-2). Pure.

Above `queued.max.response.bytes` a connection with anything unsent has no further request handled, a fetch gets no more than
ANSWER_MIN bytes, or its first batch, and who takes next to nothing is disconnected (`Processor.sweep`). At twice as much, fetches
of consumers wait until there is room; those of followers do not. What is fetched is smaller long before: each answer gets an
eighth of the room that is left, so those who read find room while others do not.
"""

from __future__ import annotations

ANSWER_MAX = 8 * 1024 * 1024
"""Bytes that one answer to a fetch has at the most, or its first batch: reading them takes 5 ms."""
ANSWER_MIN = 64 * 1024
SHARES = 8
PLENTY = SHARES * ANSWER_MAX


class UnsentAnswers:
    """Counts; connections tell it of what they hold."""

    __slots__ = ("max_bytes", "total")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` -1: no limit."""
        self.max_bytes = max_bytes
        self.total = 0

    @property
    def is_short(self) -> bool:
        """There is more than there should be."""
        return 0 <= self.max_bytes <= self.total

    @property
    def is_exhausted(self) -> bool:
        return 0 <= 2 * self.max_bytes <= self.total

    def room(self) -> int:
        """Bytes that the answer to one more fetch may have; 0 when it is to wait."""
        most = self.max_bytes
        left = most - self.total
        if left >= PLENTY or most < 0:
            return ANSWER_MAX
        if left <= -most:
            return 0
        return min(max(left // SHARES, ANSWER_MIN), ANSWER_MAX)
