"""SyncGroup (API 14), v0 to v5: the leader of the group sends the assignments, each member waits for its own (CLI-2).

v3 adds static members, v5 protocol type and name; unless both match, the answer is INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from broker.groups.group.messages import SyncAnswer, SyncRequest
from broker.network.request_channel import NO_FRAME, Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, StepsTo, in_steps, parts_of, respond_with
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

PROTOCOL_SINCE = 5

ASSIGNMENTS_IN_A_STEP = 500


def sync_group(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _sync(context, request))


def _sync(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.SYNC_GROUP, version, request.frame, header.body_offset)
    assignments: dict[str, bytes] = {}
    for some in parts_of(body.assignments, ASSIGNMENTS_IN_A_STEP):
        assignments.update((row.member_id, row.assignment) for row in some)
        yield
    sync = SyncRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        assignments=assignments,
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
    )
    if not rights.on_group(context, request, Operation.READ, sync.group_id):
        _respond(context, request, SyncAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    if version >= PROTOCOL_SINCE and (sync.protocol_type is None or sync.protocol_name is None):
        _respond(context, request, SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    request.frame = NO_FRAME  # frees the memory: the request may wait for a long time
    context.groups.sync(sync, lambda answer: _respond(context, request, answer))


def _respond(context: ApiContext, request: Request, answer: SyncAnswer) -> None:
    body = {
        "throttle_time": 0,
        "error_code": int(answer.error),
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }
    respond_with(context, request, ApiKey.SYNC_GROUP, body)
