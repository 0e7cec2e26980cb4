"""Heartbeat (API 12), v0 to v4: keeps a member's session alive, and reports the start of a rebalance (CLI-2, INV-24, BAD-33).

Heartbeat is the most frequent request of groups, so its codec is written by hand (`heartbeat_codec`).
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import heartbeat_codec


def heartbeat(context: ApiContext, request: Request) -> None:
    header = request.header
    beat = heartbeat_codec.decode_request(header.api_version, request.frame, header.body_offset)
    if context.recorder.recording is not None:
        context.recorder.recording.member(request, beat.group_id)
    if not rights.on_group(context, request, Operation.READ, beat.group_id):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
        request.respond_small(heartbeat_codec.encode_response(header.api_version, refusal))
        return
    error = context.groups.heartbeat(beat.group_id, beat.member_id, beat.instance_id, beat.generation)
    request.respond_small(heartbeat_codec.encode_response(header.api_version, error))
