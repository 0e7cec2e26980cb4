"""DescribeGroups (API 15), v0 to v5: state, protocol and members of groups (CLI-2).

v3 the operations that the client may do, if it asks: without authorization all of them. v4 instance ids. A group that does
not exist is `Dead`, without an error.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from broker.apis.context import ApiContext
from broker.apis.steps import Steps, respond_in_steps
from broker.groups.group_types import GroupDescription
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import group_lists_codec, messages
from protocol.kafka.api_keys import ApiKey

NOT_ASKED = -(2**31)
READ, DELETE, DESCRIBE = 3, 6, 8
ALL_OPERATIONS = sum(1 << operation for operation in (READ, DELETE, DESCRIBE))
"""Kafka's bit field of the ACL operations that groups have."""
MEMBERS_IN_A_STEP = 100
GROUPS_IN_A_STEP = 20


def describe_groups(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.DESCRIBE_GROUPS, version, request.frame, header.body_offset)
    operations = ALL_OPERATIONS if getattr(body, "include_authorized_operations", False) else NOT_ASKED
    rows = []
    for number, group_id in enumerate(body.groups, 1):
        rows.append((yield from _row(version, group_id, context.groups.describe(group_id), operations)))
        if number % GROUPS_IN_A_STEP == 0:
            yield
    return group_lists_codec.encode_describe_groups(version, rows)


def _row(version: int, group_id: str, group: GroupDescription, operations: int) -> Generator[None, None, bytes]:
    members: list[bytes] = []
    for member in group.members:
        members.append(group_lists_codec.encode_member(version, *member))
        if len(members) % MEMBERS_IN_A_STEP == 0:
            yield
    allowed = operations if group.error is ErrorCode.NONE else NOT_ASKED
    names = (group_id, group.state, group.protocol_type, group.protocol_name)
    return group_lists_codec.encode_described(version, group.error, names, members, allowed)
