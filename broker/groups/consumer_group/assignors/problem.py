"""What an assignor is asked, and what all assignors promise. Pure.

An assignor gets each member with the topics that it subscribes to, and the partitions that it had in the target assignment before. It
returns a target for each member, in which

- each partition of a topic that somebody subscribes to has exactly one member, which subscribes to the topic;
- nobody has a partition of another topic.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class IdPartition(NamedTuple):
    """A partition by the 16 bytes of its topic's id."""

    topic_id: bytes
    partition: int


Owned = frozenset[IdPartition]
NOTHING: Owned = frozenset()
Targets = dict[str, Owned]
"""Member id -> its target, also for members without a partition."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """`order`: what members are sorted by: the instance id of a static member, else the member id. `before`: its last target."""

    member_id: str
    order: str
    topics: frozenset[bytes]
    before: Owned = NOTHING


@dataclass(frozen=True, slots=True)
class Problem:
    """`partitions`: topic id -> number of partitions, of the subscribed topics that exist."""

    members: Sequence[Subscriber]
    partitions: Mapping[bytes, int]

    def in_order(self) -> list[Subscriber]:
        return sorted(self.members, key=lambda member: (member.order, member.member_id))


class Assignor(Protocol):
    """`name`: as clients ask for it (`group.remote.assignor`)."""

    name: str

    def assign(self, problem: Problem) -> Generator[None, None, Targets]:
        """In steps (`Pace`)."""
        ...
