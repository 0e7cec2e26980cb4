"""LeaveGroup (API 13), v0 to v5: members leave at once, instead of at the end of their session (CLI-2).

v3 adds many members in one request, each with its own error; static members may be named by their instance id. v5 adds the members'
reasons. Up to v2 the single member's error is the error of the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
    version = request.header.api_version
    body = yield from messages.decoding(ApiKey.LEAVE_GROUP, version, request.frame, request.header.body_offset)
    members = (_member(row) for row in body.members) if version >= MANY_SINCE else [LeavingMember(body.member_id, None)]
    results = _Results(context, request)
    if rights.on_group(context, request, Operation.READ, body.group_id):
        for some in parts_of(members, MEMBERS_AT_ONCE):
            context.groups.leave(body.group_id, some, results.expect(some))
            if results.error is not ErrorCode.NONE:
                break
            yield
    else:
        results.error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    results.expect_no_more()


class _Results:
    """What came of the parts of a request. The answer goes out when the last one is known: a group of the new kind stores a leave first."""

    def __init__(self, context: ApiContext, request: Request) -> None:
        self.error = ErrorCode.NONE
        """Of the group."""
        self._context = context
        self._request = request
        self._parts: list[list[tuple[LeavingMember, ErrorCode]]] = []
        self._expected = 1
        """Parts whose result is not known, and `expect_no_more`."""

    def expect(self, some: Sequence[LeavingMember]) -> Callable[[ErrorCode, Sequence[ErrorCode]], None]:
        """The callback for the results of these members."""
        part: list[tuple[LeavingMember, ErrorCode]] = []
        self._parts.append(part)
        self._expected += 1

        def take(group_error: ErrorCode, errors: Sequence[ErrorCode]) -> None:
            if self.error is ErrorCode.NONE:
                self.error = group_error
            part.extend(zip(some, errors, strict=False))
            self._count_down()

        return take

    def expect_no_more(self) -> None:
        self._count_down()

    def _count_down(self) -> None:
        self._expected -= 1
        if self._expected == 0:
            self._respond()

    def _respond(self) -> None:
        error = self.error
        rows = [] if error is not ErrorCode.NONE else list(itertools.chain.from_iterable(self._parts))
        if self._request.header.api_version < MANY_SINCE and rows:
            error = rows[0][1]
        answer = {"throttle_time": 0, "error_code": int(error), "members": itertools.starmap(_row, rows)}
        respond_with(self._context, self._request, ApiKey.LEAVE_GROUP, answer)


def _member(row: Any) -> LeavingMember:
    return LeavingMember(row.member_id, row.group_instance_id, (getattr(row, "reason", None) or "")[:REASON_LENGTH_MAX])


def _row(member: LeavingMember, error: ErrorCode) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": int(error)}
