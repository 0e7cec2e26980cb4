"""Who may read which partition, as the members of groups were told (INV-24)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol.types import TopicPartition


class Holders:
    """A member that was heard of may count on its session: until then, its coordinator gives nothing away that it has not given up.

    `now`: seconds. `session_s`: of all members. `broken` takes a sentence about each partition that is given away.
    """

    def __init__(self, now: Callable[[], float], session_s: float, broken: Callable[[str], None]) -> None:
        self._now = now
        self._session_s = session_s
        self._broken = broken
        self._held: dict[tuple[str, TopicPartition], str] = {}
        self._safe_until: dict[str, float] = {}

    def heard(self, member: str, asked_at: float) -> None:
        """The coordinator has answered, without an error, what the member asked at that time."""
        self._safe_until[member] = asked_at + self._session_s

    def takes(self, group: str, member: str, partitions: Iterable[TopicPartition]) -> None:
        """The member was told that it may read these."""
        for tp in partitions:
            other = self._held.get((group, tp), member)
            if other != member and self._now() < self._safe_until.get(other, 0.0):
                self._broken(f"INV-24: {member} of {group} was given {tp}, which {other} has not given up")
            self._held[group, tp] = member

    def gives_up(self, group: str, member: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """The member reads these no more; None: it reads nothing. To be called before it says so."""
        for tp in [tp for (of, tp) in self._held if of == group] if partitions is None else partitions:
            if self._held.get((group, tp)) == member:
                del self._held[group, tp]
