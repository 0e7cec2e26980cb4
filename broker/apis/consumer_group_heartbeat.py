"""ConsumerGroupHeartbeat (API 68), v0 and v1: the one request of members of the new consumer groups (KIP-848, INV-24).

It joins (epoch 0), leaves (-1; -2: a static member that comes back), says what the member subscribes to and reads, and is a sign of
life. In v0 the coordinator makes the id of a new member, if the client has none. It is the most frequent request of such groups, so its
codec is written by hand (`consumer_heartbeat_codec`). At level 3.9 it gets UNSUPPORTED_VERSION, as from Kafka 3.9's coordinator in
ZooKeeper mode.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from functools import partial

from broker.apis.join_group import client_host
from broker.groups.consumer_group.assignors.problem import IdPartition, Owned
from broker.groups.consumer_group.member import JOINING, LEAVING_FOR_A_WHILE
from broker.groups.consumer_group.messages import ConsumerHeartbeat, HeartbeatAnswer
from broker.groups.group.limits import CLIENT_ID_MAX, KEY_TEXT_BYTES_MAX
from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import JOINED_MAX, Further, StepsTo, in_steps
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import consumer_heartbeat_codec, messages
from protocol.kafka.api_keys import ApiLevel
from protocol.kafka.consumer_heartbeat_codec import NOT_SAID, HeartbeatRequest
from protocol.kafka.id_partitions import encoded_set
from protocol.kafka.wire import NO_UUID

MEMBER_HAS_ID_SINCE = 1
AT_ONCE_BYTES = 4 * 1024
"""A longer request is read in steps."""

NOT_SERVED = HeartbeatAnswer(
    ErrorCode.UNSUPPORTED_VERSION,
    "the consumer group protocol of KIP-848 is not served at broker.api.level=3.9: set group.protocol=classic",
)


def consumer_group_heartbeat(context: ApiContext, request: Request) -> Further:
    if len(request.frame) > AT_ONCE_BYTES:
        return in_steps(context, request, _long_beat(context, request))
    header = request.header
    beat = consumer_heartbeat_codec.decode_request(header.api_version, request.frame, header.body_offset)
    is_denied = bool(beat.topics) and any(
        not rights.on_topic(context, request, Operation.DESCRIBE, topic) for topic in beat.topics or ()
    )
    _take(context, request, beat, is_denied=is_denied)
    return None


def _long_beat(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    topics: list[str] | None = body.subscribed_topic_names
    owned: list[tuple[bytes, int]] | None = None
    if body.topic_partitions is not None:
        owned = []
        for row in body.topic_partitions:
            topic_id = (row.topic_id or NO_UUID).bytes
            owned += [(topic_id, number) for number in row.partitions]
            yield
    denied = yield from rights.denied(context, request, Operation.DESCRIBE, ResourceType.TOPIC, topics or ())
    beat = HeartbeatRequest(
        body.group_id,
        body.member_id,
        body.member_epoch,
        body.instance_id,
        body.rack_id,
        messages.milliseconds(body.rebalance_timeout),
        topics,
        getattr(body, "subscribed_topic_regex", None),
        body.server_assignor,
        owned,
    )
    _take(context, request, beat, is_denied=bool(denied))


def _take(context: ApiContext, request: Request, beat: HeartbeatRequest, *, is_denied: bool) -> None:
    """`is_denied`: a topic that it names is hidden from the client."""
    header = request.header
    if context.api_level is ApiLevel.KAFKA_3_9:
        _respond(request, NOT_SERVED)
        return
    if context.recorder.recording is not None:
        context.recorder.recording.member(request, beat.group_id, beat.topics or ())
    error, message = ErrorCode.NONE, ""
    if not rights.on_group(context, request, Operation.READ, beat.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif message := _complaint(beat, header.api_version):
        error = ErrorCode.INVALID_REQUEST
    elif is_denied:
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if error is not ErrorCode.NONE:
        _respond(request, HeartbeatAnswer(error, message))
        return
    client_id, host = (header.client_id or "")[:CLIENT_ID_MAX], client_host(request)
    if not beat.says_more and beat.member_epoch > 0:
        interval_ms = context.groups.keep_alive(beat.group_id, beat.member_id, beat.member_epoch, client_id, host)
        if interval_ms is not None:
            request.respond_small(
                consumer_heartbeat_codec.encode_unchanged(beat.member_id, beat.member_epoch, interval_ms)
            )
            return
    member = ConsumerHeartbeat(
        beat.member_id or _new_id(),
        beat.member_epoch,
        beat.instance_id,
        beat.rack_id,
        client_id,
        host,
        None if beat.rebalance_timeout_ms == NOT_SAID else beat.rebalance_timeout_ms,
        None if beat.topics is None else frozenset(beat.topics),
        beat.regex,
        beat.assignor,
        None if beat.owned is None else _partitions(beat.owned),
    )
    may_see = None if context.authorizer is None else partial(_may_see, context, request)
    context.groups.consumer_heartbeat(beat.group_id, member, lambda answer: _respond(request, answer), may_see)


def _may_see(context: ApiContext, request: Request, topic: str) -> bool:
    return rights.on_topic(context, request, Operation.DESCRIBE, topic, is_quiet=True)


def _complaint(beat: HeartbeatRequest, version: int) -> str:
    """What is wrong with it; "" if nothing is. The words are Kafka's, but for the lengths."""
    if beat.member_epoch > 0 and beat.member_id and not beat.says_more:
        return ""
    for name, value in (("GroupId", beat.group_id), ("InstanceId", beat.instance_id), ("RackId", beat.rack_id)):
        if value is not None and not value.strip():
            return f"{name} can't be empty."
    for name, value in (("MemberId", beat.member_id), ("SubscribedTopicRegex", beat.regex)):
        if value is not None and len(value) * 4 > KEY_TEXT_BYTES_MAX and len(value.encode()) > KEY_TEXT_BYTES_MAX:
            return f"{name} can have {KEY_TEXT_BYTES_MAX} bytes at most."
    epoch = beat.member_epoch
    if epoch < LEAVING_FOR_A_WHILE:
        return "MemberEpoch is invalid."
    if not beat.member_id.strip() and (epoch != JOINING or version >= MEMBER_HAS_ID_SINCE):
        return "MemberId can't be empty."
    if epoch == LEAVING_FOR_A_WHILE and beat.instance_id is None:
        return "InstanceId can't be null."
    if epoch == JOINING:
        return _complaint_of_joining(beat)
    return ""


def _complaint_of_joining(beat: HeartbeatRequest) -> str:
    if beat.rebalance_timeout_ms == NOT_SAID:
        return "RebalanceTimeoutMs must be provided in first request."
    if beat.owned is None or beat.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if beat.topics is None and beat.regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""


def _respond(request: Request, answer: HeartbeatAnswer) -> None:
    is_done = answer.error is ErrorCode.NONE
    body = consumer_heartbeat_codec.encode_response(
        int(answer.error),
        None if is_done else answer.message or None,
        answer.member_id if is_done else None,
        answer.epoch if is_done else 0,
        answer.heartbeat_interval_ms,
        None if answer.assignment is None else encoded_set(answer.assignment),
    )
    if len(body) <= JOINED_MAX:
        request.respond_small(body)
    else:
        request.respond((body,))


def _partitions(rows: Sequence[tuple[bytes, int]]) -> Owned:
    return frozenset(IdPartition(*row) for row in rows)


def _new_id() -> str:
    """As Kafka's `Uuid.toString`."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
