"""Which consumer group a fetch belongs to. Pure.

A fetch does not name its group, and a client uses other connections for it than for its coordinator, which may be another broker. What
both have in common is the client id and the address. If clients of several groups share both, the topics tell them apart: a group
reads the topics that its members subscribe to or commit. If that does not decide, the group is not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class GroupMembers:
    """What all brokers have seen of the members of groups."""

    def __init__(self) -> None:
        self._groups: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._topics: defaultdict[str, set[str]] = defaultdict(set)
        self._found: dict[tuple[str, str, str], str | None] = {}

    def add(self, client: str, address: str, group: str, topics: Iterable[str]) -> None:
        self._groups[client, address].add(group)
        self._topics[group].update(topics)
        self._found.clear()

    def group_of(self, client: str, address: str, topic: str) -> str | None:
        """The group of a client at an address that reads the topic; None if there is none, or more than one."""
        key = (client, address, topic)
        if key not in self._found:
            groups = self._groups.get((client, address), ())
            fitting = [group for group in groups if not self._topics[group] or topic in self._topics[group]]
            self._found[key] = fitting[0] if len(fitting) == 1 else None
        return self._found[key]
