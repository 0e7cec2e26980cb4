"""DescribeGroups (API 15), v0 to v5: state, protocol and members of groups (CLI-2).

v3 the operations that the client may do, if it asks: without authorization all of them. v4 instance ids. A group that does
not exist is `Dead`, without an error.
"""

from __future__ import annotations

from typing import Any

from broker.apis.context import ApiContext
from broker.groups.group_types import GroupDescription
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

NOT_ASKED = -(2**31)
READ, DELETE, DESCRIBE = 3, 6, 8
ALL_OPERATIONS = sum(1 << operation for operation in (READ, DELETE, DESCRIBE))
"""Kafka's bit field of the ACL operations that groups have."""


def describe_groups(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.DESCRIBE_GROUPS, version, request.frame, header.body_offset)
    operations = ALL_OPERATIONS if getattr(body, "include_authorized_operations", False) else NOT_ASKED
    answer = {
        "throttle_time": 0,
        "groups": [_row(group_id, context.groups.describe(group_id), operations) for group_id in body.groups],
    }
    request.respond_small(messages.encode_response(ApiKey.DESCRIBE_GROUPS, version, answer))


def _row(group_id: str, group: GroupDescription, operations: int) -> dict[str, Any]:
    return {
        "error_code": int(group.error),
        "group_id": group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "authorized_operations": operations if group.error is ErrorCode.NONE else NOT_ASKED,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
