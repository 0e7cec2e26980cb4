"""Members that use the classic protocol in a group of the new kind, while a group is converted (KIP-848; Kafka's
classicGroup...ToConsumerGroup). Pure.

Such a member has its target from the broker, as the others. It learns by REBALANCE_IN_PROGRESS that it must join again; the generation in
the answer to its JoinGroup is its epoch, and the answer to its SyncGroup has the partitions that it may read. Nobody leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker.groups.consumer_group.assignors.problem import IdPartition, Owned
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.member import ClassicProtocols, ConsumerMember, MemberState
from broker.groups.consumer_group.messages import Change, Topics, Waiting
from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker.groups.group.messages import (
    NO_MEMBER,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import consumer_protocol
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition


def join(
    group: ConsumerGroup, request: JoinRequest, topics: Topics, now_s: float
) -> tuple[JoinAnswer | Waiting, Sequence[Change]]:
    group.begin()
    try:
        answer = _join(group, request, topics, now_s)
    except KafkaError as refusal:
        group.undo(now_s)
        member_id = request.member_id or NO_MEMBER
        if refusal.code is ErrorCode.MEMBER_ID_REQUIRED:
            member_id = request.new_member_id
        return JoinAnswer(refusal.code, member_id), ()
    return answer, group.taken()


def answer_join(group: ConsumerGroup, waiting: Waiting, now_s: float) -> tuple[JoinAnswer, Sequence[Change]]:
    """To a JoinGroup that has waited."""
    group.begin()
    try:
        return _answer(group, waiting, now_s), group.taken()
    except KafkaError as refusal:
        return JoinAnswer(refusal.code, waiting.member.member_id), ()


def _join(group: ConsumerGroup, request: JoinRequest, topics: Topics, now_s: float) -> JoinAnswer | Waiting:
    """Raises KafkaError."""
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports(names):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.member_id == NO_MEMBER and request.needs_member_id and request.instance_id is None:
        raise KafkaError(ErrorCode.MEMBER_ID_REQUIRED)
    before = _member_of(group, request)
    subscribed, owned = read_subscription(request.protocols, topics)
    member = replace(
        before,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=subscribed,
        regex=None,
        assignor=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicProtocols(request.session_timeout_ms, request.protocols),
    )
    group.subscribe(before, member, topics, now_s)
    group.has_come(member.member_id)
    waiting = Waiting(group.epoch, before, group.members[member.member_id], owned)
    if group.epoch > group.target_epoch:
        group.touch(member, now_s)
        return waiting
    return _answer(group, waiting, now_s)


def _answer(group: ConsumerGroup, waiting: Waiting, now_s: float) -> JoinAnswer:
    """Raises KafkaError."""
    member = group.members.get(waiting.member.member_id)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    protocol = member.classic.protocols[0].name
    member = group.step(waiting, now_s)
    group.await_request(member, now_s)  # its SyncGroup
    return JoinAnswer(ErrorCode.NONE, member.member_id, member.epoch, CONSUMER_PROTOCOL_TYPE, protocol)


def _member_of(group: ConsumerGroup, request: JoinRequest) -> ConsumerMember:
    """The member as it was before. Raises KafkaError."""
    member_id = request.member_id or request.new_member_id
    if request.instance_id is not None:
        holder = group.instance(request.instance_id)
        if holder is not None and holder.member_id != request.member_id:
            if request.member_id != NO_MEMBER:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            return group.replace_static(holder, member_id)
        if holder is None and request.member_id != NO_MEMBER and request.member_id not in group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.members.get(member_id)
    return member if member is not None else group.new_member(member_id, request.instance_id)


def sync(group: ConsumerGroup, request: SyncRequest, topics: Topics, now_s: float) -> SyncAnswer:
    member, error = _classic_member(group, request.member_id, request.instance_id, request.generation)
    if member is None or member.classic is None:
        return SyncAnswer(error)
    names = {protocol.name for protocol in member.classic.protocols}
    is_other_type = request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
    if is_other_type or (request.protocol_name is not None and request.protocol_name not in names):
        return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group.has_come(member.member_id)
    if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        group.await_request(member, now_s)
        return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
    group.touch(member, now_s)
    data = consumer_protocol.assignment(by_name(member.assigned, topics))
    return SyncAnswer(ErrorCode.NONE, data, CONSUMER_PROTOCOL_TYPE, member.classic.protocols[0].name)


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_s: float
) -> ErrorCode:
    member, error = _classic_member(group, member_id, instance_id, generation)
    if member is None:
        return error
    group.touch(member, now_s)
    must_join = (
        member.epoch < group.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting(member))
    )
    if must_join:
        group.await_request(member, now_s)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(group: ConsumerGroup, members: Sequence[LeavingMember]) -> tuple[list[ErrorCode], Sequence[Change]]:
    """One error for each member."""
    group.begin()
    errors = [_leave(group, leaving) for leaving in members]
    if ErrorCode.NONE in errors:
        group.raise_epoch()
    return errors, group.taken()


def _leave(group: ConsumerGroup, leaving: LeavingMember) -> ErrorCode:
    holder = None if leaving.instance_id is None else group.instance(leaving.instance_id)
    member = holder if leaving.member_id == NO_MEMBER else group.members.get(leaving.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if leaving.instance_id is not None and member is not holder:
        return ErrorCode.UNKNOWN_MEMBER_ID if holder is None else ErrorCode.FENCED_INSTANCE_ID
    group.remove(member)
    return ErrorCode.NONE


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember | None, ErrorCode]:
    """The member, or why there is none."""
    if instance_id is not None:
        holder = group.instance(instance_id)
        if holder is not None and holder.member_id != member_id:
            return None, ErrorCode.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if generation != member.epoch:
        return None, ErrorCode.ILLEGAL_GENERATION
    return member, ErrorCode.NONE


def read_subscription(protocols: Sequence[Protocol], topics: Topics) -> tuple[frozenset[str], Owned]:
    """(topics, what the member still reads) in the metadata of a consumer. Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL)."""
    try:
        metadata = protocols[0].metadata
        return frozenset(consumer_protocol.subscribed(metadata)), by_id(consumer_protocol.owned(metadata), topics)
    except (MalformedRequest, IndexError):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the metadata is not that of a consumer") from None


def by_name(owned: Owned, topics: Topics) -> list[TopicPartition]:
    """Those of topics that still exist."""
    names = {topic_id: topics.name_of(topic_id) for topic_id in {each.topic_id for each in owned}}
    pairs = ((names[topic_id], number) for topic_id, number in sorted(owned))
    return [TopicPartition(name, number) for name, number in pairs if name is not None]


def by_id(partitions: Sequence[TopicPartition], topics: Topics) -> Owned:
    """Those of topics that exist."""
    found = {name: topics.find(name) for name in {tp.topic for tp in partitions}}
    pairs = ((found[tp.topic], tp.partition) for tp in partitions)
    return frozenset(IdPartition(topic[0], number) for topic, number in pairs if topic is not None)
