"""ConsumerGroupDescribe (API 69), v0 and v1: state, epochs and members of groups of the new kind (KIP-848).

v1 says of each member whether it uses the new protocol or the classic one. A classic group gets GROUP_ID_NOT_FOUND: admin clients describe
it by DescribeGroups. At level 3.9 each group gets UNSUPPORTED_VERSION, as from Kafka 3.9's coordinator in ZooKeeper mode.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from broker.apis.consumer_group_heartbeat import NOT_SERVED
from broker.apis.describe_groups import NOT_ASKED
from broker.groups.consumer_group.assignors.problem import Owned
from broker.groups.consumer_group.messages import ConsumerGroupDescription, DescribedConsumer
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiLevel
from protocol.kafka.id_partitions import by_topic

REPEATED_MEMBERS_MAX = 1_000
"""Limit of the members of repeated groups in an answer. Further repetitions are left out."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def consumer_group_describe(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    answer = {"throttle_time": 0, "groups": _rows(context, request, body)}
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _rows(context: ApiContext, request: Request, body: Any) -> Iterator[dict[str, Any]]:
    """A group that is named twice has two rows, as in Kafka, unless it would be too many."""
    seen: set[str] = set()
    left = REPEATED_MEMBERS_MAX
    for group_id in body.group_ids:
        group, operations = _described(context, request, group_id, is_asked=body.include_authorized_operations)
        if group_id in seen:
            left -= len(group.members)
        seen.add(group_id)
        if left >= 0:
            yield _row(context, group_id, group, operations)


def _described(
    context: ApiContext, request: Request, group_id: str, *, is_asked: bool
) -> tuple[ConsumerGroupDescription, int]:
    """The group, and what the client may do with it."""
    operations = NOT_ASKED
    if not rights.on_group(context, request, Operation.DESCRIBE, group_id):
        group = ConsumerGroupDescription(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif context.api_level is ApiLevel.KAFKA_3_9:
        group = ConsumerGroupDescription(NOT_SERVED.error, NOT_SERVED.message)
    else:
        group = context.groups.describe_consumer_group(group_id)
        if is_asked and group.error is ErrorCode.NONE:
            operations = rights.operations_on_group(context, request, group_id)
    return group, operations


def _row(context: ApiContext, group_id: str, group: ConsumerGroupDescription, operations: int) -> dict[str, Any]:
    return {
        "error_code": int(group.error),
        "error_message": group.message or None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": group.assignor,
        "members": (_member(context, each) for each in group.members),
        "authorized_operations": operations,
    }


def _member(context: ApiContext, described: DescribedConsumer) -> dict[str, Any]:
    member = described.member
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": {"topic_partitions": _partitions(context, member.assigned)},
        "target_assignment": {"topic_partitions": _partitions(context, described.target)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _partitions(context: ApiContext, owned: Owned) -> Iterator[dict[str, Any]]:
    """Without topics that are deleted."""
    for topic_id, partitions in by_topic(owned).items():
        name = context.metadata.topic_name(uuid.UUID(bytes=topic_id))
        if name is not None:
            yield {"topic_id": uuid.UUID(bytes=topic_id), "topic_name": name, "partitions": partitions}
