"""LeaveGroup (API 13), v0 to v5: members leave at once, instead of at the end of their session (CLI-2).

v3 adds many members in one request, each with its own error; static members may be named by their instance id. v5 adds the members'
reasons. Up to v2 the single member's error is the error of the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from broker.groups.group.messages import LeavingMember
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, StepsTo, in_steps, parts_of, respond_with
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

MANY_SINCE = 3
REASON_LENGTH_MAX = 255

MEMBERS_AT_ONCE = 50


def leave_group(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _leave(context, request))


def _leave(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.LEAVE_GROUP, version, request.frame, header.body_offset)
    members = (_member(row) for row in body.members) if version >= MANY_SINCE else [LeavingMember(body.member_id, None)]
    error = ErrorCode.NONE
    rows: list[tuple[LeavingMember, ErrorCode]] = []

    def take_results(group_error: ErrorCode, errors: Sequence[ErrorCode]) -> None:
        nonlocal error
        error = group_error
        rows.extend(zip(some, errors, strict=False))

    may_leave = rights.on_group(context, request, Operation.READ, body.group_id)
    if not may_leave:
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    for some in parts_of(members, MEMBERS_AT_ONCE) if may_leave else ():
        context.groups.leave(body.group_id, some, take_results)
        if error is not ErrorCode.NONE:
            rows.clear()
            break
        yield
    if version < MANY_SINCE and error is ErrorCode.NONE:
        error = rows[0][1]
    answer = {"throttle_time": 0, "error_code": int(error), "members": itertools.starmap(_row, rows)}
    respond_with(context, request, ApiKey.LEAVE_GROUP, answer)


def _member(row: Any) -> LeavingMember:
    return LeavingMember(row.member_id, row.group_instance_id, (getattr(row, "reason", None) or "")[:REASON_LENGTH_MAX])


def _row(member: LeavingMember, error: ErrorCode) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": int(error)}
