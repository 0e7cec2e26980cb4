"""Whether the loop looks for the next request for some microseconds before it sleeps. Pure.

A client that waits for each answer sends its next request a few dozen microseconds later. To sleep until then and to wake up takes the
kernel about as long, and longer on a virtual machine, whose processor halts meanwhile. So the loop polls its sockets for at most
POLL_S after a turn, while requests keep coming that fast. It wastes little where they do not. After a turn that took longer than
SHORT_TURN_S, such as one with a large answer, it sleeps: to wake up is a small part of the time then.

    asleep  --a row of requests, each within SOON_S--> polling
    polling --no request within POLL_S---------------> asleep; the row must be twice as long the next time, ROW_MAX at most
    polling --a row of requests----------------------> polling; half of the row is enough the next time, ROW_MIN at least
"""

from __future__ import annotations

from typing import Final

POLL_S: Final = 0.0001
SOON_S: Final = 0.0002
"""POLL_S, and about as long for a loop that sleeps to wake up."""
SHORT_TURN_S: Final = 0.0002
POLLS_MAX: Final = 200
"""Limit of polls after one turn, should the clock stand still."""
ROW_MIN: Final = 8
ROW_MAX: Final = 32


class BriefPolling:
    """Times are monotonic, in seconds."""

    __slots__ = ("_needed", "_polls", "_row", "_turn_ended_at", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._turn_ended_at = 0.0
        self._row = 0
        self._needed = ROW_MIN
        self._polls = 0

    def arrived(self, at: float) -> None:
        """The first request since the end of the turn has come."""
        if at - self._turn_ended_at > SOON_S:
            self._row = 0
            self.is_on = False
            return
        self._row += 1
        if self._row < self._needed:
            return
        self._row = 0
        if not self.is_on:
            self.is_on = True
        elif self._needed > ROW_MIN:
            self._needed >>= 1

    def turn_ended(self, began: float, now: float) -> None:
        """All requests are handled. If `is_on`, the loop polls while `goes_on` says so."""
        self._turn_ended_at = now
        self._polls = 0
        if now - began > SHORT_TURN_S:
            self._row = 0
            self.is_on = False

    def goes_on(self, now: float) -> bool:
        """Whether to poll once more."""
        self._polls += 1
        if now - self._turn_ended_at < POLL_S and self._polls < POLLS_MAX:
            return True
        self.is_on = False
        self._row = 0
        if self._needed < ROW_MAX:
            self._needed <<= 1
        return False
