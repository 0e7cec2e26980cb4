"""FindCoordinator (API 10), v0 to v6: the leader of a group's partition of `__consumer_offsets` (CLI-2).

v1 key type and message, v4 many keys in one request (KIP-699). The first question makes the topic. While the leader is not
known the answer is COORDINATOR_NOT_AVAILABLE, and the client asks again; while it may just have died (CTL-16) the answer waits a moment.
Transactions and share groups are not served: INVALID_REQUEST for the first, as for an unknown key type, which no client
retries; COORDINATOR_NOT_AVAILABLE for the second (v6), as in Kafka 3.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from broker.apis.context import ApiContext
from broker.apis.steps import Steps, respond_in_steps
from broker.groups.group_types import GROUP_ID_BYTES_MAX, OFFSETS_TOPIC
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import find_coordinator_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6
MANY_SINCE = 4
KEYS_AT_ONCE = 50
"""A request with more is answered in steps."""
NO_ERROR_TEXT = "NONE"
"""What Kafka's answers up to v3 say where there is no error."""


class _Coordinator(NamedTuple):
    error: ErrorCode
    message: str = ""
    node_id: int = -1
    host: str = ""
    port: int = -1


def find_coordinator(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.FIND_COORDINATOR, version, request.frame, header.body_offset)
    keys = [body.key] if version < MANY_SINCE else list(body.coordinator_keys)
    refusal = _refusal(getattr(body, "key_type", GROUP), version)
    if refusal is not None:
        _respond(request, keys, lambda key: refusal)
        return None
    if keys and not context.metadata.partitions_of(OFFSETS_TOPIC):
        return _make_topic_and_respond(context, request, keys)
    if len(keys) > KEYS_AT_ONCE:
        return _respond_to_many(context, request, keys)
    context.doubts.when_settled(
        (OFFSETS_TOPIC,), lambda: _respond(request, keys, lambda key: _find(context, request, key))
    )
    return None


async def _respond_to_many(context: ApiContext, request: Request, keys: list[str]) -> None:
    settled = asyncio.get_running_loop().create_future()
    context.doubts.when_settled((OFFSETS_TOPIC,), lambda: None if settled.done() else settled.set_result(None))
    await settled

    def answer() -> Steps:
        rows = []
        for key in keys:
            rows.append(find_coordinator_codec.encode_coordinator(key, *_find(context, request, key)))
            yield
        return find_coordinator_codec.encode_response(rows)

    going_on = respond_in_steps(context, request, answer())
    if going_on is not None:
        await going_on


async def _make_topic_and_respond(context: ApiContext, request: Request, keys: list[str]) -> None:
    errors = await context.topic_admin.create_automatically([OFFSETS_TOPIC])
    message = f"{OFFSETS_TOPIC} is being made"
    if errors[OFFSETS_TOPIC] is not ErrorCode.LEADER_NOT_AVAILABLE:
        message = f"{OFFSETS_TOPIC} cannot be made: {errors[OFFSETS_TOPIC].name}"
    _respond(request, keys, lambda key: _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))


def _refusal(key_type: int, version: int) -> _Coordinator | None:
    if key_type == GROUP:
        return None
    if key_type == SHARE and version >= SHARE_SINCE:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are not served")
    what = "transactions are not served" if key_type == TRANSACTION else f"no coordinators of type {key_type}"
    return _Coordinator(ErrorCode.INVALID_REQUEST, what)


def _find(context: ApiContext, request: Request, group_id: str) -> _Coordinator:
    if len(group_id) > GROUP_ID_BYTES_MAX:  # to hash one of megabytes takes seconds, and it is no group's
        return _Coordinator(ErrorCode.INVALID_GROUP_ID, "the group id is too long")
    state = context.metadata.partition(TopicPartition(OFFSETS_TOPIC, context.groups.partition_of(group_id)))
    if state is None or state.leader in context.doubts.suspected:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not known at the moment")
    node = context.node_endpoint(state.leader, request.connection.listener)
    if node is None:
        return _Coordinator(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not there at the moment")
    return _Coordinator(ErrorCode.NONE, "", node.node_id, node.host, node.port)


def _respond(request: Request, keys: list[str], find: Callable[[str], _Coordinator]) -> None:
    version = request.header.api_version
    found = [find(key) for key in keys]
    body: dict[str, Any] = {"throttle_time": 0}
    if version >= MANY_SINCE:
        body["coordinators"] = [
            _row(coordinator, coordinator.message) | {"key": key} for key, coordinator in zip(keys, found, strict=True)
        ]
    else:
        (coordinator,) = found
        body |= _row(coordinator, coordinator.message or NO_ERROR_TEXT)
    request.respond_small(messages.encode_response(ApiKey.FIND_COORDINATOR, version, body))


def _row(coordinator: _Coordinator, message: str) -> dict[str, Any]:
    return {
        "error_code": int(coordinator.error),
        "error_message": message,
        "node_id": coordinator.node_id,
        "host": coordinator.host,
        "port": coordinator.port,
    }
