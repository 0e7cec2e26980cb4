"""Requests to a group, its answers, and its effects, which the coordinator carries out. Pure.

A request that may wait has a `ticket`, a number that the coordinator chose. The answer has the same ticket and is given at once or
after a later event. Times are monotonic seconds (`now_s`), durations milliseconds as on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""
CLASSIC, CONSUMER = "classic", "consumer"
"""The types of groups, as ListGroups names them: the second is the new kind (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """`group.*` of the broker's configuration."""

    min_session_ms: int = 6_000
    max_session_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


class Protocol(NamedTuple):
    """An assignor that a member supports, and its metadata for the group's leader: opaque bytes, for consumers a subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`member_id` is empty for a new member, which then gets the id `new_member_id`.

    `needs_member_id`: JoinGroup v4 and later, of a dynamic member. A new one gets its id first, and then joins with it (KIP-394).
    `can_skip_assignment`: v9 and later (KIP-814). `reason`: why the member joins, for the log.
    """

    group_id: str
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_member_id: bool
    can_skip_assignment: bool = False
    reason: str = ""


class JoinedMember(NamedTuple):
    """A member in the leader's answer. `metadata` is that of the member for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`members` is empty for all but the leader."""

    error: ErrorCode
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """`assignments` (member id -> opaque bytes) come from the leader only. Protocol type and name are None before v5."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class LeavingMember(NamedTuple):
    """The member to remove. An empty member id means the member that has the instance id now."""

    member_id: str
    instance_id: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as stored in `__consumer_offsets` (Kafka's GroupMetadataValue)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group as stored in `__consumer_offsets`. `state_since_ms`: wall clock; -1: unknown (values before v2)."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberMetadata, ...]


class AnswerJoin(NamedTuple):
    """Effect."""

    ticket: int
    answer: JoinAnswer


class AnswerSync(NamedTuple):
    """Effect."""

    ticket: int
    answer: SyncAnswer


class Store(NamedTuple):
    """Effect: write the group, and call `Group.stored(number, error, ...)` when the record is below the high watermark, or failed."""

    number: int
    metadata: GroupMetadata


Effect = AnswerJoin | AnswerSync | Store


class CommittedOffset(NamedTuple):
    """A group's position in a partition. `leader_epoch` -1: not known. `expire_timestamp_ms` None: the broker's retention applies.

    `commit_timestamp_ms` is wall clock time. `topic_id`: the 16 bytes of the topic's id at the commit; None: not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: bytes | None = None


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction offsets are committed. `adds`: the commit adds the group's partition of `__consumer_offsets` to the
    transaction (transaction version 2)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool = False


FetchedOffset = CommittedOffset | ErrorCode | None
"""A partition's row in OffsetFetch. None: nothing is committed. UNSTABLE_OFFSET_COMMIT: a commit is pending (KIP-447)."""


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it. `metadata` (for the chosen protocol) and `assignment` are empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as DescribeGroups shows it. `state` is Kafka's name (`PreparingRebalance`); `protocol_name` is empty unless it is Stable."""

    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()
    message: str = ""
    """Why it is Dead."""


class GroupListing(NamedTuple):
    """A group as ListGroups shows it. `state` is Kafka's name; `group_type`: CLASSIC or CONSUMER."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC
