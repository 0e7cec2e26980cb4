"""FindCoordinator (API 10), v0 to v6: the leader of a group's partition of `__consumer_offsets` (CLI-2), or of a transactional id's
partition of `__transaction_state` (TXN-1).

v1 adds key type and message, v4 many keys in one request (KIP-699). The first request creates the topic. While the leader is unknown,
the answer is COORDINATOR_NOT_AVAILABLE, and the client retries. While a leader of that topic may just have died
(CTL-16), the answer waits a moment. Share groups (v6) are not supported: they get COORDINATOR_NOT_AVAILABLE, as in Kafka 3.9. Unknown key
types get INVALID_REQUEST, which no client retries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, StepsTo, in_steps, respond_with
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from protocol.types import TopicPartition

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6
MANY_SINCE = 4
NO_ERROR_TEXT = "NONE"
"""The message in Kafka's answers without an error, up to v3."""

UNAUTHORIZED = {
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
}
"""Kafka's words."""


class _Coordinator(NamedTuple):
    error: ErrorCode
    message: str = ""
    node_id: int = -1
    host: str = ""
    port: int = -1


def find_coordinator(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _find_all(context, request))


def _find_all(context: ApiContext, request: Request) -> StepsTo[Further]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(header.api_key, version, request.frame, header.body_offset)
    keys = (body.key,) if version < MANY_SINCE else body.coordinator_keys
    key_type = getattr(body, "key_type", GROUP)
    refusal = _refusal(key_type, version)
    topic = TRANSACTION_STATE_TOPIC if key_type == TRANSACTION else OFFSETS_TOPIC
    if refusal is not None:
        _respond(context, request, keys, lambda key: refusal)
        return None
    keep = yield from _denied(context, request, key_type, keys)
    if keys and keep.keys() >= set(keys):
        _respond(context, request, keys, lambda key: keep[key])
    elif keys and not context.metadata.partitions_of(topic):
        return _make_topic_and_respond(context, request, topic, keys, keep)
    else:
        partition_of = (context.transactions if key_type == TRANSACTION else context.groups).partition_of
        context.suspected_leaders.when_settled(
            (topic,),
            lambda: _respond(
                context,
                request,
                keys,
                lambda key: keep.get(key) or _find(context, request, TopicPartition(topic, partition_of(key))),
            ),
        )
    return None


def _denied(
    context: ApiContext, request: Request, key_type: int, keys: Sequence[str]
) -> StepsTo[dict[str, _Coordinator]]:
    """The answers for keys that the client may not describe."""
    kind, error = ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION:
        kind, error = ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    denied = yield from rights.denied(context, request, Operation.DESCRIBE, kind, keys)
    return dict.fromkeys(denied, _Coordinator(error, UNAUTHORIZED[kind]))


async def _make_topic_and_respond(
    context: ApiContext, request: Request, topic: str, keys: Sequence[str], denied: Mapping[str, _Coordinator]
) -> None:
    errors = await context.topic_admin.create_automatically([topic])
    message = f"{topic} is being created"
    if errors[topic] is not ErrorCode.LEADER_NOT_AVAILABLE:
        message = f"{topic} cannot be created: {errors[topic].name}"
    _respond(
        context,
        request,
        keys,
        lambda key: denied.get(key) or _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, message),
    )


def _refusal(key_type: int, version: int) -> _Coordinator | None:
    if key_type in (GROUP, TRANSACTION):
        return None
    if key_type == SHARE and version >= SHARE_SINCE:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are not supported")
    return _Coordinator(ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}")


def _find(context: ApiContext, request: Request, tp: TopicPartition) -> _Coordinator:
    state = context.metadata.partition(tp)
    if state is None or state.leader in context.suspected_leaders.unreachable:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is unknown at the moment")
    node = context.node_endpoint(state.leader, request.connection.listener)
    if node is None:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not live at the moment")
    return _Coordinator(ErrorCode.NONE, "", node.node_id, node.host, node.port)


def _respond(context: ApiContext, request: Request, keys: Sequence[str], find: Callable[[str], _Coordinator]) -> None:
    version = request.header.api_version
    body: dict[str, Any] = {"throttle_time": 0}
    if version >= MANY_SINCE:
        body["coordinators"] = (_row(coordinator := find(key), coordinator.message) | {"key": key} for key in keys)
    else:
        (coordinator,) = map(find, keys)
        body |= _row(coordinator, coordinator.message or NO_ERROR_TEXT)
    respond_with(context, request, ApiKey.FIND_COORDINATOR, body)


def _row(coordinator: _Coordinator, message: str) -> dict[str, Any]:
    return {
        "error_code": int(coordinator.error),
        "error_message": message,
        "node_id": coordinator.node_id,
        "host": coordinator.host,
        "port": coordinator.port,
    }
