"""LeaveGroup (API 13), v0 to v5: members leave at once, instead of with the end of their session (CLI-2).

v3 many members in one request, also static ones by their instance id, with an error for each; v5 their reasons.
Up to v2 the one member's error is the answer's.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.apis.context import ApiContext
from broker.groups.group_types import LeavingMember
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

MANY_SINCE = 3
REASON_LENGTH_MAX = 255


def leave_group(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.LEAVE_GROUP, version, request.frame, header.body_offset)
    if version < MANY_SINCE:
        members = [LeavingMember(body.member_id, None)]
    else:
        members = [
            LeavingMember(
                row.member_id, row.group_instance_id, (getattr(row, "reason", None) or "")[:REASON_LENGTH_MAX]
            )
            for row in body.members
        ]
    context.groups.leave(body.group_id, members, lambda error, errors: _respond(request, members, error, errors))


def _respond(request: Request, members: Sequence[LeavingMember], error: ErrorCode, errors: Sequence[ErrorCode]) -> None:
    """`errors` are those of the members, none of them when `error` is one of the whole group."""
    version = request.header.api_version
    if version < MANY_SINCE and error is ErrorCode.NONE:
        error = errors[0]
    rows = (
        [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": int(member_error)}
            for member, member_error in zip(members, errors, strict=True)
        ]
        if error is ErrorCode.NONE
        else []
    )
    body = {"throttle_time": 0, "error_code": int(error), "members": rows}
    request.respond_small(messages.encode_response(ApiKey.LEAVE_GROUP, version, body))
