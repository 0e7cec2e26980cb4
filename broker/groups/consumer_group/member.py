"""A member of a consumer group, and what the broker has given to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from broker.groups.consumer_group.assignors.problem import NOTHING, Owned
from broker.groups.group.limits import protocols_bytes
from broker.groups.group.messages import Protocol

JOINING = 0
LEAVING, LEAVING_FOR_A_WHILE = -1, -2
"""Member epochs that a request has in place of its own: the second is a static member's, which keeps its partitions."""

MEMBER_BYTES, TOPIC_BYTES, PARTITION_BYTES = 1_500, 100, 300
"""Approximate memory of a member without partitions, of a name that it subscribes to, and of a partition that it holds."""


class MemberState(Enum):
    """The values are Kafka's, as they are stored."""

    STABLE = 0
    """It has its target, or is behind it and has nothing to give up yet."""
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions, and has not said that it has."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions of its target that others have not given up."""


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """What a member said in its JoinGroup: it uses the classic protocol in a group of the new kind."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """`topics`: names that it subscribes to, `regex`: a regular expression of further ones.

    `assigned`: what it may read. `revoking`: what it must give up; nobody else gets that before.

    `epoch`: of the target that it has reached. `previous_epoch`: that of its answer before, which may have been lost.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = -1
    epoch: int = JOINING
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = NOTHING
    revoking: Owned = NOTHING
    classic: ClassicProtocols | None = None

    @property
    def order(self) -> str:
        """What an assignor sorts members by."""
        return self.instance_id if self.instance_id is not None else self.member_id

    @property
    def held(self) -> Owned:
        """What nobody else may get."""
        return self.assigned | self.revoking if self.revoking else self.assigned

    @property
    def is_away(self) -> bool:
        """A static member that left for a while."""
        return self.epoch == LEAVING_FOR_A_WHILE

    @property
    def subscription(self) -> tuple[object, ...]:
        """What is stored of the member besides its assignment."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.topics,
            self.regex,
            self.assignor,
            self.rebalance_timeout_ms,
            self.classic,
        )

    def size(self) -> int:
        """Approximate bytes in memory, with the target, without the names that it subscribes to (`topics_bytes`)."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.regex, self.assignor)
        return (
            MEMBER_BYTES
            + sum(len(text) * 2 for text in texts if text is not None)
            + PARTITION_BYTES * len(self.held)
            + (protocols_bytes(self.classic.protocols) if self.classic is not None else 0)
        )

    def at_epoch(self, epoch: int) -> ConsumerMember:
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)


def topics_bytes(names: Iterable[str]) -> int:
    """Approximate bytes in memory of names that a member subscribes to."""
    return sum(TOPIC_BYTES + len(name) for name in names)
