"""The transactions that commit offsets in one partition of `__consumer_offsets`: whose offsets wait for a marker.

Here nothing is decided by time; all methods are called on the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class EndedTransaction(NamedTuple):
    """A replicated marker, at `marker_offset` in the partition."""

    producer_id: int
    marker_offset: int
    is_commit: bool


class OpenTransactions:
    """See the module. A partition that is gained again starts with a new object, which the load fills."""

    __slots__ = ("_ended_early", "_ending", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, set[str]] = {}
        """Producer -> the groups with offsets of its transaction."""
        self._ended_early: dict[int, EndedTransaction] = {}
        self._ending: dict[int, deque[EndedTransaction]] = {}
        """Producer -> its transactions whose offsets are being committed or dropped, in the order of the log."""

    def add(self, producer_id: int, group_id: str) -> None:
        self._groups.setdefault(producer_id, set()).add(group_id)

    def discard(self, producer_id: int, group_id: str) -> None:
        groups = self._groups.get(producer_id)
        if groups is not None:
            groups.discard(group_id)
            if not groups:
                del self._groups[producer_id]

    def groups_of(self, producer_id: int) -> list[str]:
        """A snapshot."""
        return list(self._groups.get(producer_id, ()))

    def ended_early(self, ended: EndedTransaction) -> None:
        """Notes a marker that was replicated while the partition was being loaded. A producer's first marker decides about its
        offsets: all of them were written by earlier leaders, and so before it."""
        self._ended_early.setdefault(ended.producer_id, ended)

    def take_ended_early(self) -> list[EndedTransaction]:
        ended = list(self._ended_early.values())
        self._ended_early.clear()
        return ended

    # -- whose offsets are being committed or dropped -----------------------------------------------------------------

    def begin_to_end(self, ended: EndedTransaction) -> bool:
        """False: earlier transactions of the producer are still being ended. This one follows them."""
        ending = self._ending.setdefault(ended.producer_id, deque())
        ending.append(ended)
        return len(ending) == 1

    def ending(self, producer_id: int) -> Iterable[EndedTransaction]:
        """Those of the producer, in the order of the log."""
        return self._ending.get(producer_id, ())

    def ended(self, producer_id: int) -> EndedTransaction | None:
        """The first one has ended. Returns the next; None: there is none."""
        ending = self._ending[producer_id]
        ending.popleft()
        if ending:
            return ending[0]
        del self._ending[producer_id]
        return None

    def end_no_more(self, producer_id: int) -> None:
        """Its transactions cannot be ended now. Their markers come again."""
        self._ending.pop(producer_id, None)
