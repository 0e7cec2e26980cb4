"""Metadata (API 3), v0 to v12: brokers, leaders and ISRs from this broker's cache; auto-creation.

The addresses are those of the request's listener. An unknown topic is created if `auto.create.topics.enable` and, from v4, the
request allow it. Its answer is usually LEADER_NOT_AVAILABLE, and the client retries. If the creation is refused, the topic gets the
error of the refusal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.metadata_topics import PARTITIONS_AT_ONCE
from broker.requests.steps import Further, StepsTo, after_steps, in_steps
from protocol.errors import ErrorCode
from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import MetadataBroker, MetadataTopic
from protocol.topic_names import INTERNAL_TOPICS, is_valid_topic_name

ALLOW_CREATION_SINCE = 4
NULL_MEANS_ALL_SINCE = 1

TOPICS_IN_A_STEP = 50
CREATED_MAX = 100
"""Limit of topics that one request creates. Further topics get UNKNOWN_TOPIC_OR_PARTITION, and the client asks again."""


def metadata(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[Further]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.METADATA, version, request.frame, header.body_offset)
    if body.topics is None or (not body.topics and version < NULL_MEANS_ALL_SINCE):
        _respond_when_settled(context, request, context.metadata.topics(), lambda: _all(context, request))
        return None
    allowed = version < ALLOW_CREATION_SINCE or body.allow_auto_topic_creation
    can_create = allowed and context.config.auto_create_topics_enable
    known: dict[str, None] = {}
    others: dict[str | uuid.UUID | None, bytes] = {}
    missing: list[str] = []
    for number, asked in enumerate(body.topics, 1):
        if number % TOPICS_IN_A_STEP == 0:
            yield
        topic = _one(context, asked)
        if isinstance(topic, str):
            known[topic] = None
            continue
        key = topic.topic_id or topic.name
        if key in others:
            continue
        others[key] = metadata_codec.encode_topic(version, topic, ())
        if can_create and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name is not None:
            missing.append(topic.name)
    if missing:
        return _create_and_respond(context, request, known, others, missing[:CREATED_MAX])
    _respond_to(context, request, known, others)
    return None


async def _create_and_respond(
    context: ApiContext,
    request: Request,
    known: dict[str, None],
    others: dict[str | uuid.UUID | None, bytes],
    missing: Sequence[str],
) -> None:
    errors = await context.topic_admin.create_automatically(missing)
    for name, error in errors.items():
        if context.metadata.partitions_of(name):
            known[name] = None
            del others[name]
        else:
            topic = MetadataTopic(error, name, None, name in INTERNAL_TOPICS, ())
            others[name] = metadata_codec.encode_topic(request.header.api_version, topic, ())
    _respond_to(context, request, known, others)


def _respond_to(
    context: ApiContext, request: Request, known: Collection[str], others: Mapping[str | uuid.UUID | None, bytes]
) -> None:
    _respond_when_settled(context, request, tuple(known), lambda: _topics(context, request, known, others))


def _topics(
    context: ApiContext, request: Request, known: Collection[str], others: Mapping[str | uuid.UUID | None, bytes]
) -> Sequence[bytes]:
    """The topics of the answer: `known` as they are now, then `others`, which are encoded already."""
    listener, version = request.connection.listener, request.header.api_version
    return [*(context.metadata_topics.encoded(listener, version, name) for name in known), *others.values()]


def _one(context: ApiContext, asked: Any) -> MetadataTopic | str:
    """The topic of a name, or of an id (v10): its name if the topic is known, else its row with the error."""
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


def _all(context: ApiContext, request: Request) -> Sequence[bytes]:
    return context.metadata_topics.all_encoded(request.connection.listener, request.header.api_version)


def _respond_when_settled(
    context: ApiContext, request: Request, names: Sequence[str], topics: Callable[[], Sequence[bytes]]
) -> None:
    """Responds when no leader of these topics is suspected, or after a short wait. A client that has just lost a leader should get
    the next leader, and not the old leader again (CTL-16).
    """
    listener, version = request.connection.listener, request.header.api_version

    def then() -> None:
        encoded = context.metadata_topics
        if encoded.partitions_to_encode(listener, version, names) <= PARTITIONS_AT_ONCE:
            _respond(context, request, topics)
        else:
            preparing = encoded.preparing(listener, version, names)
            after_steps(context, request, preparing, lambda: _respond(context, request, topics))

    context.suspected_leaders.when_settled(names, then)


def _respond(context: ApiContext, request: Request, topics: Callable[[], Sequence[bytes]]) -> None:
    """Builds the body when all earlier requests of the connection are answered: an earlier body could name a leader that died since."""
    listener = request.connection.listener

    def body() -> bytes:
        brokers = [
            MetadataBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in (*context.metadata.brokers(), *context.suspected_leaders.departed())
            if (endpoint := broker.endpoint(listener)) is not None
        ]
        return metadata_codec.encode_response(
            request.header.api_version, brokers, context.cluster_id, context.metadata.controller_id, topics()
        )

    request.respond_in_turn(body)
