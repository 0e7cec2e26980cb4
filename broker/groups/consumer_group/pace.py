"""Long work of a group is done in steps, with other requests in between. Pure."""

from __future__ import annotations

STEP = 200
"""How many members, topics or partitions one step has, more or less: a fraction of a millisecond."""


class Pace:
    """Says when a step is over: `if pace.has_done(1 + len(member.topics)): yield`."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    def has_done(self, count: int) -> bool:
        """`count`: of the things that were looked at. True: the step is over."""
        self._done += count
        if self._done < STEP:
            return False
        self._done = 0
        return True
