"""A fetch session with one broker, as a client keeps it (KIP-227): requests name only what has changed. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

SESSIONS_SINCE = 7
FINAL_EPOCH = -1
"""Of a fetch outside of any session."""
Place = tuple[int, int]
"""The offset to fetch from, and the most bytes of that partition."""
Partition = TypeVar("Partition", bound=Hashable)


class FetchSession(Generic[Partition]):
    """`id` is 0 until a broker has opened it. `version`: of all its requests, which name topics in the same way."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.id = 0
        self.epoch = 0
        self._known: dict[Partition, Place] = {}

    def changes(self, wanted: Mapping[Partition, Place]) -> tuple[list[Partition], list[Partition]]:
        """Partitions to name, and those to forget, in the next request."""
        named = [tp for tp, place in wanted.items() if self._known.get(tp) != place]
        forgotten = [tp for tp in self._known if tp not in wanted]
        self._known = dict(wanted)
        return named, forgotten

    def answered(self, session: int) -> None:
        """An answer without an error has come. A broker that has no room for a session gives the id 0."""
        self.id = session
        if session:
            self.epoch += 1
        else:
            self._known.clear()
