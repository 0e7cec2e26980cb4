"""Makes a classic group one of the new kind while it has members, and back (KIP-848, `group.consumer.migration.policy`). Pure.

Up: when the first member of the new protocol joins. Each member keeps its partitions; the generation becomes the epoch of the group, of its
target and of all members. Down: when the last member of the new protocol is gone. The epoch becomes the generation, and all join again.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.classic_members import by_id, by_name, read_subscription
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.member import ClassicProtocols, ConsumerMember
from broker.groups.consumer_group.messages import (
    AssignmentChanged,
    Change,
    ConsumerGroupSettings,
    EpochChanged,
    TargetChanged,
    TargetEpochChanged,
    Topics,
)
from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.group import Group
from broker.groups.group.members import Member
from broker.groups.group.messages import GroupMetadata, MemberMetadata
from broker.groups.group.states import GroupState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import consumer_protocol
from protocol.kafka.framing import MalformedRequest


def to_new(group: Group, settings: ConsumerGroupSettings, topics: Topics, now_s: float) -> ConsumerGroup:
    """Raises KafkaError(GROUP_ID_NOT_FOUND) if the group cannot be converted."""
    reason = ""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = "its members are no consumers"
    elif group.member_count > settings.max_size:
        reason = f"it has {group.member_count} members, and group.consumer.max.size is {settings.max_size}"
    if not reason:
        try:
            changes = list(_changes(group, topics))
        except (KafkaError, MalformedRequest):
            reason = "the subscription or the assignment of a member cannot be read"
    if reason:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id!r} is a group of classic members, and stays one: {reason}"
        )
    converted = ConsumerGroup.restored(group.group_id, settings, changes, now_s)
    converted.must_store_all = True
    return converted


def _changes(group: Group, topics: Topics) -> Iterator[Change]:
    """Raises KafkaError, MalformedRequest."""
    yield EpochChanged(group.generation)
    yield TargetEpochChanged(group.generation)
    taken: set[IdPartition] = set()
    for member in group.members.values():
        subscribed, owned = read_subscription(member.protocols, topics)
        held = _held(group, member, owned, topics) - taken
        taken |= held
        converted = ConsumerMember(
            member.member_id,
            member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=subscribed,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            epoch=group.generation,
            previous_epoch=group.generation,
            assigned=held,
            classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
        )
        yield AssignmentChanged(member.member_id, converted)
        yield TargetChanged(member.member_id, held)


def _held(group: Group, member: Member, owned: Owned, topics: Topics) -> Owned:
    """What the member may still read. `owned`: what it read when it joined: all that is known of it while it waits for its assignment."""
    if group.state is not GroupState.STABLE and not member.assignment:
        return owned
    return by_id(consumer_protocol.assigned(member.assignment), topics) if member.assignment else NOTHING


def to_classic(group: ConsumerGroup, topics: Topics, now_ms: int) -> GroupMetadata | None:
    """What the log has of the group afterwards: its members in a generation that ends at once. None: they have no assignor in common.

    `now_ms`: wall clock time.
    """
    members = list(group.members.values())
    names = [[protocol.name for protocol in member.classic.protocols] for member in members if member.classic]
    common = [name for name in names[0] if all(name in of_member for of_member in names)]
    if not common or len(names) < len(members):
        return None
    return GroupMetadata(
        CONSUMER_PROTOCOL_TYPE,
        group.epoch,
        common[0],
        members[0].member_id,
        now_ms,
        tuple(_stored(member, common[0], topics) for member in members),
    )


def _stored(member: ConsumerMember, protocol_name: str, topics: Topics) -> MemberMetadata:
    assert member.classic is not None
    return MemberMetadata(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        next(protocol.metadata for protocol in member.classic.protocols if protocol.name == protocol_name),
        consumer_protocol.assignment(by_name(member.held, topics)),
    )
