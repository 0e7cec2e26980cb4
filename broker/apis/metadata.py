"""Metadata (API 3), v0 to v12: brokers, leaders and ISRs as this broker's cache has them; auto-creation.

The addresses are those of the listener on which the request came. An unknown topic is made, when both the request (v4)
and `auto.create.topics.enable` allow it; the answer is LEADER_NOT_AVAILABLE then, and the client asks again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from broker.apis.context import ApiContext
from broker.apis.produce import INTERNAL_TOPICS
from broker.apis.topic_admin import is_valid_topic_name
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import MetadataBroker, MetadataPartition, MetadataTopic
from protocol.rpc.messages import PartitionState
from protocol.types import NO_LEADER

ALLOW_CREATION_SINCE = 4
NULL_MEANS_ALL_SINCE = 1
LISTENER_NOT_FOUND_SINCE = 6


def metadata(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.METADATA, version, request.frame, header.body_offset)
    if body.topics is None or (not body.topics and version < NULL_MEANS_ALL_SINCE):
        _respond_when_settled(
            context,
            request,
            context.metadata.topics(),
            lambda: [_describe(context, request, name) for name in context.metadata.topics()],
        )
        return None
    asked = body.topics
    allowed = version < ALLOW_CREATION_SINCE or body.allow_auto_topic_creation
    topics = [_one(context, request, topic) for topic in body.topics]
    missing = [t.name for t in topics if t.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and t.name is not None]
    if missing and allowed and context.config.auto_create_topics_enable:
        return _create_and_respond(context, request, topics, missing)
    names = [topic.name for topic in topics if topic.name is not None]
    _respond_when_settled(context, request, names, lambda: [_one(context, request, topic) for topic in asked])
    return None


async def _create_and_respond(
    context: ApiContext, request: Request, topics: list[MetadataTopic], missing: Sequence[str]
) -> None:
    errors = await context.topic_admin.create_automatically(missing)
    answers = []
    for topic in topics:
        if topic.name is not None and topic.name in errors:
            now = _describe(context, request, topic.name)
            topic = now if now.error == ErrorCode.NONE else topic._replace(error=errors[topic.name])
        answers.append(topic)
    _respond(context, request, lambda: answers)


def _one(context: ApiContext, request: Request, asked: Any) -> MetadataTopic:
    """A topic asked for by name, or by id (v10)."""
    topic_id: uuid.UUID | None = getattr(asked, "topic_id", None)
    if topic_id is not None:
        name = context.metadata.topic_name(topic_id)
        if name is None:
            return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id, False, ())
        return _describe(context, request, name)
    name = asked.name or ""
    if context.metadata.topic_id(name) is None and not context.metadata.partitions_of(name):
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataTopic(error, name, None, name in INTERNAL_TOPICS, ())
    return _describe(context, request, name)


def _describe(context: ApiContext, request: Request, name: str) -> MetadataTopic:
    states = context.metadata.partitions_of(name)
    if not states:
        return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, None, name in INTERNAL_TOPICS, ())
    partitions = [_partition(context, request, states[index]) for index in sorted(states)]
    return MetadataTopic(ErrorCode.NONE, name, context.metadata.topic_id(name), name in INTERNAL_TOPICS, partitions)


def _partition(context: ApiContext, request: Request, state: PartitionState) -> MetadataPartition:
    """A leader that is dead, or perhaps so, or does not serve this listener, is none."""
    error, leader = ErrorCode.NONE, state.leader
    broker = context.metadata.broker(leader)
    if broker is None or leader in context.doubts.suspected:
        error, leader = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    elif broker.endpoint(request.connection.listener) is None:
        known = request.header.api_version >= LISTENER_NOT_FOUND_SINCE
        error = ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    offline = [r for r in state.replicas if context.metadata.broker(r) is None or r in state.offline_replicas]
    return MetadataPartition(error, state.partition, leader, state.leader_epoch, state.replicas, state.isr, offline)


def _respond_when_settled(
    context: ApiContext, request: Request, names: Iterable[str], topics: Callable[[], Sequence[MetadataTopic]]
) -> None:
    """A client that has just lost a leader is told of the next one, not once more of the old one (CTL-16)."""
    context.doubts.when_settled(names, lambda: _respond(context, request, topics))


def _respond(context: ApiContext, request: Request, topics: Callable[[], Sequence[MetadataTopic]]) -> None:
    """In its turn: behind a producer's request that waits for its leader's failover, it would tell of the old leader."""
    listener = request.connection.listener

    def body() -> bytes:
        brokers = [
            MetadataBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in (*context.metadata.brokers(), *context.doubts.departed())
            if (endpoint := broker.endpoint(listener)) is not None
        ]
        return metadata_codec.encode_response(
            request.header.api_version, brokers, context.cluster_id, context.metadata.controller_id, topics()
        )

    request.respond_in_turn(body)
