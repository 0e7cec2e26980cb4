"""SyncGroup (API 14), v0 to v5: the leader brings the assignments, every member waits for its own (CLI-2).

v3 static members, v5 protocol type and name, which must both be there then: INCONSISTENT_GROUP_PROTOCOL.
"""

from __future__ import annotations

from broker.apis.context import ApiContext
from broker.groups.group_types import SyncAnswer, SyncRequest
from broker.network.request_channel import NO_FRAME, Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

PROTOCOL_SINCE = 5


def sync_group(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.SYNC_GROUP, version, request.frame, header.body_offset)
    sync = SyncRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        assignments={row.member_id: row.assignment for row in body.assignments},
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
    )
    if version >= PROTOCOL_SINCE and (sync.protocol_type is None or sync.protocol_name is None):
        _respond(request, SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    request.frame = NO_FRAME  # it may wait for long
    context.groups.sync(sync, lambda answer: _respond(request, answer))


def _respond(request: Request, answer: SyncAnswer) -> None:
    body = {
        "throttle_time": 0,
        "error_code": int(answer.error),
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }
    request.respond_small(messages.encode_response(ApiKey.SYNC_GROUP, request.header.api_version, body))
