"""JoinGroup (API 11), v0 to v9: a member joins its group, or joins again for the next generation (CLI-2, BAD-32).

v1 adds the rebalance timeout (v0 uses the session timeout), v4 a first answer that only gives a new member its id (KIP-394), v5 static
members (KIP-345), v7 the protocol type in the answer, v8 the reason; from v9 a static leader that rejoins may skip the assignment
(KIP-814). A JoinGroup that takes part in a rebalance is answered when all members have joined, or at the rebalance timeout. If a
static member returns to a Stable group, the answer waits until its new id is stored. All other requests are answered at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from broker.groups.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from broker.groups.group.limits import CLIENT_ID_MAX
from broker.groups.group.messages import JoinAnswer, JoinRequest, Protocol
from broker.network.request_channel import NO_FRAME, Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, StepsTo, in_steps, respond_with
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_FIRST_SINCE = 4
NO_PROTOCOL_IS_NULL_SINCE = 7
SKIPPED_ASSIGNMENT_SINCE = 9
REASON_LENGTH_MAX = 255
PROTOCOLS_MAX = 32
"""Limit for one member; clients have one to four. More get INVALID_REQUEST: each is compared with the protocols of all members."""


def join_group(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _join(context, request))


def _join(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.JOIN_GROUP, version, request.frame, header.body_offset)
    if not rights.on_group(context, request, Operation.READ, body.group_id):
        _respond(context, request, JoinAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED, body.member_id))
        return
    if len(body.protocols) > PROTOCOLS_MAX:
        _respond(context, request, JoinAnswer(ErrorCode.INVALID_REQUEST, body.member_id))
        return
    if context.recorder.recording is not None:
        context.recorder.recording.member(request, body.group_id, _subscribed(body))
    instance_id: str | None = getattr(body, "group_instance_id", None)
    session_ms = messages.milliseconds(body.session_timeout)
    client_id = (header.client_id or "")[:CLIENT_ID_MAX]
    join = JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        new_member_id=f"{client_id if instance_id is None else instance_id}-{uuid.uuid4()}",
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host(request),
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(protocol.name, protocol.metadata) for protocol in body.protocols),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=(
            messages.milliseconds(body.rebalance_timeout) if version >= REBALANCE_TIMEOUT_SINCE else session_ms
        ),
        needs_member_id=version >= MEMBER_ID_FIRST_SINCE and instance_id is None,
        can_skip_assignment=version >= SKIPPED_ASSIGNMENT_SINCE,
        reason=(getattr(body, "reason", None) or "")[:REASON_LENGTH_MAX],
    )
    request.frame = NO_FRAME  # frees the memory: the request may wait for a long time
    context.groups.join(join, lambda answer: _respond(context, request, answer))


def _subscribed(body: Any) -> Collection[str]:
    """The topics that the member asks for; none if they are not known."""
    if body.protocol_type != CONSUMER_PROTOCOL_TYPE or not body.protocols:
        return ()
    return subscribed_topics(bytes(body.protocols[0].metadata)) or ()


def client_host(request: Request) -> str:
    """The client's address in Kafka's form: `/127.0.0.1`."""
    return "/" + request.connection.remote_address


def _respond(context: ApiContext, request: Request, answer: JoinAnswer) -> None:
    version = request.header.api_version
    no_name = None if version >= NO_PROTOCOL_IS_NULL_SINCE else ""
    body = {
        "throttle_time": 0,
        "error_code": int(answer.error),
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": no_name if answer.protocol_name is None else answer.protocol_name,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": (
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in answer.members
        ),
    }
    respond_with(context, request, ApiKey.JOIN_GROUP, body)
