"""Metadata (API 3), v0 to v12: brokers, leaders and ISRs as this broker's cache has them; auto-creation.

The addresses are those of the listener on which the request came. An unknown topic is made, when both the request (v4)
and `auto.create.topics.enable` allow it; the answer is LEADER_NOT_AVAILABLE then, and the client asks again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from broker.apis.context import ApiContext
from broker.apis.produce import INTERNAL_TOPICS
from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import MetadataBroker, MetadataTopic
from protocol.topic_names import is_valid_topic_name

ALLOW_CREATION_SINCE = 4
NULL_MEANS_ALL_SINCE = 1


def metadata(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.METADATA, version, request.frame, header.body_offset)
    if body.topics is None or (not body.topics and version < NULL_MEANS_ALL_SINCE):
        _respond_when_settled(context, request, context.metadata.topics(), lambda: _all(context, request))
        return None
    asked = body.topics
    allowed = version < ALLOW_CREATION_SINCE or body.allow_auto_topic_creation
    topics = [_one(context, topic) for topic in asked]
    names = [topic if isinstance(topic, str) else topic.name for topic in topics]
    missing = [
        topic.name
        for topic in topics
        if not isinstance(topic, str) and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name is not None
    ]
    if missing and allowed and context.config.auto_create_topics_enable:
        return _create_and_respond(context, request, topics, missing)
    _respond_when_settled(
        context,
        request,
        [name for name in names if name is not None],
        lambda: [_encoded(context, request, _one(context, topic)) for topic in asked],
    )
    return None


async def _create_and_respond(
    context: ApiContext, request: Request, topics: list[MetadataTopic | str], missing: Sequence[str]
) -> None:
    errors = await context.topic_admin.create_automatically(missing)
    answers: list[MetadataTopic | bytes] = []
    for topic in topics:
        name = None if isinstance(topic, str) else topic.name
        if name is not None and name in errors and not isinstance(topic, str):
            topic = name if context.metadata.partitions_of(name) else topic._replace(error=errors[name])
        answers.append(_encoded(context, request, topic))
    _respond(context, request, lambda: answers)


def _one(context: ApiContext, asked: Any) -> MetadataTopic | str:
    """A topic asked for by name, or by id (v10): the name of one that is known, else what is answered for it."""
    topic_id: uuid.UUID | None = getattr(asked, "topic_id", None)
    if topic_id is not None:
        return context.metadata.topic_name(topic_id) or MetadataTopic(
            ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id, False, ()
        )
    name = asked.name or ""
    if context.metadata.partitions_of(name):
        return str(name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataTopic(error, name, None, name in INTERNAL_TOPICS, ())


def _encoded(context: ApiContext, request: Request, topic: MetadataTopic | str) -> MetadataTopic | bytes:
    if not isinstance(topic, str):
        return topic
    return context.metadata_topics.encoded(request.connection.listener, request.header.api_version, topic)


def _all(context: ApiContext, request: Request) -> Sequence[bytes]:
    return context.metadata_topics.all_encoded(request.connection.listener, request.header.api_version)


def _respond_when_settled(
    context: ApiContext, request: Request, names: Sequence[str], topics: Callable[[], Sequence[MetadataTopic | bytes]]
) -> None:
    """A client that has just lost a leader is told of the next one, not once more of the old one (CTL-16)."""
    listener, version = request.connection.listener, request.header.api_version

    def then() -> None:
        context.metadata_topics.when_encoded(listener, version, names, lambda: _respond(context, request, topics))

    context.doubts.when_settled(names, then)


def _respond(context: ApiContext, request: Request, topics: Callable[[], Sequence[MetadataTopic | bytes]]) -> None:
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
