"""DeleteGroups (API 42), v0 to v2: deletes groups without members, with their offsets (CLI-2).

A group with members gets NON_EMPTY_GROUP, an unknown group GROUP_ID_NOT_FOUND. A group that is named twice is answered once.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, StepsTo, in_steps, parts_of, respond_with
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages

GROUPS_AT_ONCE = 20


def delete_groups(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _delete(context, request))


def _delete(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    denied = yield from rights.denied(context, request, Operation.DELETE, ResourceType.GROUP, body.groups_names)
    group_ids = dict.fromkeys(group_id for group_id in body.groups_names if group_id not in denied)
    left = len(group_ids)
    errors: dict[str, ErrorCode] = dict.fromkeys(denied, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def take_results(some: Mapping[str, ErrorCode]) -> None:
        nonlocal left
        errors.update(some)
        left -= len(some)
        if left == 0:
            rows = ({"group_id": group_id, "error_code": int(error)} for group_id, error in errors.items())
            respond_with(context, request, header.api_key, {"throttle_time": 0, "results": rows})

    if not group_ids:
        take_results({})
        return
    for some in parts_of(group_ids, GROUPS_AT_ONCE):
        context.groups.delete_groups(some, take_results)
        yield
