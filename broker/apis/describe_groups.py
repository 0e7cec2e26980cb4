"""DescribeGroups (API 15), v0 to v6: state, protocol and members of groups (CLI-2).

v3 adds the operations that the client may do, if requested (all, if there is no authorization), v4 instance ids. A group that does not
exist, or is of the new kind, is `Dead`: without an error, since v6 with GROUP_ID_NOT_FOUND (KIP-1043). A repeated group is answered again,
as in Kafka, up to REPEATED_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Generator

from broker.groups.group.messages import GroupDescription
from broker.groups.group.states import GroupState
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import group_lists_codec, messages
from protocol.kafka.by_schema import AnswerTooLarge

NOT_FOUND_SINCE = 6
NOT_ASKED = -(2**31)
MEMBERS_IN_A_STEP = 100
REPEATED_BYTES_MAX = 64 * 1024
"""Limit of the rows of repeated groups in an answer. Further repetitions are left out."""


def describe_groups(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(header.api_key, version, request.frame, header.body_offset)
    is_asked = getattr(body, "include_authorized_operations", False)
    rows = []
    left, repeated_left = messages.ANSWER_BYTES_MAX, REPEATED_BYTES_MAX
    described: dict[str, bytes] = {}
    for group_id in body.groups:
        if group_id in described:
            row = described[group_id]
            repeated_left -= len(row)
            if repeated_left < 0:
                continue
        else:
            operations = NOT_ASKED
            if not rights.on_group(context, request, Operation.DESCRIBE, group_id):
                group = GroupDescription(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id, "")
            else:
                group = context.groups.describe(group_id)
                if is_asked:
                    operations = rights.operations_on_group(context, request, group_id)
            row = described[group_id] = yield from _row(version, group_id, group, operations)
        rows.append(row)
        left -= len(row)
        if left < 0:
            raise AnswerTooLarge
        yield
    return group_lists_codec.encode_describe_groups(version, rows)


def _row(version: int, group_id: str, group: GroupDescription, operations: int) -> Generator[None, None, bytes]:
    members: list[bytes] = []
    for member in group.members:
        members.append(group_lists_codec.encode_member(version, *member))
        if len(members) % MEMBERS_IN_A_STEP == 0:
            yield
    error, message = group.error, None
    if version >= NOT_FOUND_SINCE and group.state == GroupState.DEAD.value:
        error, message = ErrorCode.GROUP_ID_NOT_FOUND, group.message or None
    allowed = operations if error is ErrorCode.NONE else NOT_ASKED
    names = (group_id, group.state, group.protocol_type, group.protocol_name)
    return group_lists_codec.encode_described(version, error, names, members, allowed, message)
