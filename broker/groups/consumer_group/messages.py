"""What a consumer group is told, and what comes out: an answer, and changes to store. Pure.

Times are monotonic seconds (`now_s`), durations milliseconds as on the wire.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker.groups.consumer_group.assignors.problem import Owned
from broker.groups.consumer_group.member import ConsumerMember
from protocol.errors import ErrorCode


class Topics(Protocol):
    """What a coordinator knows of the cluster's topics."""

    def find(self, name: str) -> tuple[bytes, int] | None:
        """The topic's id and its number of partitions; None: there is no such topic."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """None: there is no topic with this id."""
        ...

    def check(self, regex: str) -> None:
        """Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
        ...

    def matching(self, regex: str) -> Generator[None, None, frozenset[str]]:
        """The names that match."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """`group.consumer.*` of the broker or the group. `assignors`: names; the first is the default.

    `regex_refresh_ms`: a regular expression is resolved again after that time.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    regex_refresh_ms: int = 600_000


class ConsumerHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat. None: as in the heartbeat before. `owned`: what the member reads now.

    `epoch`: what the member was told last, or one of JOINING, LEAVING, LEAVING_FOR_A_WHILE. `regex`: a regular expression in RE2's syntax
    of the topics that it subscribes to, besides `topics`; "": none any more.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Owned | None = None

    @property
    def says_more(self) -> bool:
        """Whether it has more than a sign of life, the epoch, and what the member reads."""
        return (
            self.rebalance_timeout_ms is not None
            or self.topics is not None
            or self.regex is not None
            or self.assignor is not None
            or self.rack_id is not None
        )

    @property
    def is_full(self) -> bool:
        """A client that is not sure what the broker knows says everything, and is told everything."""
        is_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms is not None and is_subscription and self.owned is not None


class HeartbeatAnswer(NamedTuple):
    """`assignment`: all that the member may read; None: as before."""

    error: ErrorCode
    message: str = ""
    member_id: str = ""
    epoch: int = -1
    heartbeat_interval_ms: int = 0
    assignment: Owned | None = None


class Waiting(NamedTuple):
    """A heartbeat or a JoinGroup of a member that is answered when the group has a target of this epoch, or of a later one.

    `before`, `member`: as the member was before the request, and after. `owned`: what the request says that it reads. `must_tell`: the
    answer has the assignment in any case.
    """

    epoch: int
    before: ConsumerMember
    member: ConsumerMember
    owned: Owned | None
    must_tell: bool = False


class DescribedConsumer(NamedTuple):
    member: ConsumerMember
    target: Owned


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A group as ConsumerGroupDescribe shows it. `state` is Kafka's name."""

    error: ErrorCode
    message: str = ""
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


class MemberChanged(NamedTuple):
    """To store: what the member subscribes to. None: it is gone."""

    member_id: str
    member: ConsumerMember | None


class EpochChanged(NamedTuple):
    """To store: the group's epoch, with the hash of the topics that it was made for (KIP-1101). Epoch None: the group is gone."""

    epoch: int | None
    topics_hash: int = 0


class TargetChanged(NamedTuple):
    """To store: a member's target. None: the member is gone."""

    member_id: str
    target: Owned | None


class TargetEpochChanged(NamedTuple):
    """To store, behind the targets: all of them are those of this epoch. None: the group is gone."""

    epoch: int | None


class AssignmentChanged(NamedTuple):
    """To store: where the member is on its way to its target. None: the member is gone."""

    member_id: str
    member: ConsumerMember | None


class RegexResolved(NamedTuple):
    """To store: the topics that match a regular expression. None: no member has it any more."""

    regex: str
    topics: frozenset[str] | None


Change = MemberChanged | EpochChanged | TargetChanged | TargetEpochChanged | AssignmentChanged | RegexResolved
"""They take effect at once. Nobody may be told of them before they are below the high watermark."""
