"""Metadata (API 3), v0 to v13: brokers, leaders and ISRs from this broker's cache; auto-creation.

The addresses are those of the request's listener. As in Kafka, a request that has topic ids is answered by its ids alone (v12), ids and
null names in v10 and v11 get INVALID_REQUEST, and authorized operations are all operations without an authorizer (KIP-430). Topics that
the client may not describe are left out if all are asked for, and get TOPIC_AUTHORIZATION_FAILED otherwise.

The error of the whole answer (v13, KIP-1102) is always 0.

An unknown topic is created if `auto.create.topics.enable` and, from v4, the request allow it, and the client may create it. Its answer is
usually LEADER_NOT_AVAILABLE, and the client retries. If the creation is refused, the topic gets the error of the refusal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.metadata_topics import PARTITIONS_AT_ONCE
from broker.requests.steps import Further, StepsTo, after_steps, in_steps
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages, metadata_codec
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    MetadataBroker,
    MetadataTopic,
)
from protocol.topic_names import INTERNAL_TOPICS, is_valid_topic_name

ALLOW_CREATION_SINCE = 4
NULL_MEANS_ALL_SINCE = 1
IDS_SINCE = 10
IDS_ALLOWED_SINCE = 12
NO_CONTROLLER = -1

TOPICS_IN_A_STEP = 50
CREATED_MAX = 100
"""Limit of topics that one request creates. Further topics get UNKNOWN_TOPIC_OR_PARTITION, and the client asks again."""


class _Operations(NamedTuple):
    """Authorized operations of a topic by its name, and of the cluster; None and OPERATIONS_NOT_ASKED if they are not asked for."""

    of_topic: Callable[[str], int] | None
    of_cluster: int

    def of(self, topic: str | None) -> int:
        return OPERATIONS_NOT_ASKED if self.of_topic is None or topic is None else self.of_topic(topic)


def metadata(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[Further]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(ApiKey.METADATA, version, request.frame, header.body_offset)

    def of_topic(name: str) -> int:
        return rights.operations(context, request, ResourceType.TOPIC, name, TOPIC_OPERATIONS)

    operations = _Operations(
        of_topic if getattr(body, "include_topic_authorized_operations", False) else None,
        rights.operations_on_cluster(context, request, CLUSTER_OPERATIONS)
        if getattr(body, "include_cluster_authorized_operations", False)
        else OPERATIONS_NOT_ASKED,
    )
    if body.topics is None or (not body.topics and version < NULL_MEANS_ALL_SINCE):
        names = context.metadata.topics()
        hidden = yield from rights.denied(
            context, request, Operation.DESCRIBE, ResourceType.TOPIC, names, is_quiet=True
        )
        if (
            context.authorizer is not None
        ):  # topics that are created until the answer are not in it: nobody has checked them
            _respond_to(context, request, [name for name in names if name not in hidden], {}, operations)
            return None
        _respond_when_settled(context, request, names, lambda: _all(context, request, operations), operations)
        return None
    has_ids = version >= IDS_SINCE and any(asked.topic_id is not None for asked in body.topics)
    if IDS_SINCE <= version < IDS_ALLOWED_SINCE and (has_ids or any(asked.name is None for asked in body.topics)):
        _refuse(request, body.topics)
        return None
    allowed = version < ALLOW_CREATION_SINCE or body.allow_auto_topic_creation
    can_create = allowed and context.config.auto_create_topics_enable
    known: dict[str, None] = {}
    others: dict[str | uuid.UUID | None, bytes] = {}
    missing: list[str] = []
    may_create_all = rights.on_cluster(context, request, Operation.CREATE, is_quiet=True) if can_create else False
    for number, asked in enumerate(body.topics, 1):
        if number % TOPICS_IN_A_STEP == 0:
            yield
        if has_ids and asked.topic_id is None:
            continue
        topic = _one(context, request, asked)
        if isinstance(topic, str):
            known[topic] = None
            continue
        key = topic.topic_id or topic.name
        if key in others:
            continue
        is_missing = can_create and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name is not None
        if is_missing and not (may_create_all or rights.on_topic(context, request, Operation.CREATE, str(topic.name))):
            topic = topic._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic.error not in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
            topic = topic._replace(authorized_operations=operations.of(topic.name))
        others[key] = metadata_codec.encode_topic(version, topic, ())
        if is_missing and topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            missing.append(str(topic.name))
    if missing:
        return _create_and_respond(context, request, known, others, missing[:CREATED_MAX], operations)
    _respond_to(context, request, known, others, operations)
    return None


def _refuse(request: Request, asked: Sequence[Any]) -> None:
    """Clients of v10 and v11 read topic ids, but must not ask by them."""
    topics = [MetadataTopic(ErrorCode.INVALID_REQUEST, row.name, row.topic_id, False, ()) for row in asked]
    version = request.header.api_version
    request.respond_in_turn(lambda: metadata_codec.encode_response(version, (), None, NO_CONTROLLER, topics))


async def _create_and_respond(
    context: ApiContext,
    request: Request,
    known: dict[str, None],
    others: dict[str | uuid.UUID | None, bytes],
    missing: Sequence[str],
    operations: _Operations,
) -> None:
    errors = await context.topic_admin.create_automatically(missing)
    for name, error in errors.items():
        if context.metadata.partitions_of(name):
            known[name] = None
            del others[name]
        else:
            topic = MetadataTopic(error, name, None, name in INTERNAL_TOPICS, (), operations.of(name))
            others[name] = metadata_codec.encode_topic(request.header.api_version, topic, ())
    _respond_to(context, request, known, others, operations)


def _respond_to(
    context: ApiContext,
    request: Request,
    known: Collection[str],
    others: Mapping[str | uuid.UUID | None, bytes],
    operations: _Operations,
) -> None:
    def topics() -> Sequence[bytes]:
        """`known` as they are now, then `others`, which are encoded already."""
        listener, version = request.connection.listener, request.header.api_version
        encoded = [context.metadata_topics.encoded(listener, version, name) for name in known]
        return [*_with_operations(version, known, encoded, operations), *others.values()]

    _respond_when_settled(context, request, tuple(known), topics, operations)


def _with_operations(
    version: int, names: Iterable[str], topics: Sequence[bytes], operations: _Operations
) -> Sequence[bytes]:
    """The cached topics do not have them: hardly any client asks for them."""
    if operations.of_topic is None:
        return topics
    return [
        metadata_codec.with_operations(version, topic, operations.of_topic(name))
        for name, topic in zip(names, topics, strict=True)
    ]


def _one(context: ApiContext, request: Request, asked: Any) -> MetadataTopic | str:
    """The topic of a name, or of an id (v10): its name if the topic is known, else its row with the error.

    Whoever may not describe a topic does not learn whether it exists, nor the name of an id.
    """
    topic_id: uuid.UUID | None = getattr(asked, "topic_id", None)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic_id is not None:
        found = context.metadata.topic_name(topic_id)
        if found is None:
            return MetadataTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id, False, ())
        if not rights.on_topic(context, request, Operation.DESCRIBE, found):
            return MetadataTopic(denied, None, topic_id, False, ())
        return found
    name = asked.name or ""
    if not rights.on_topic(context, request, Operation.DESCRIBE, name):
        return MetadataTopic(denied, name, None, False, ())
    if context.metadata.partitions_of(name):
        return str(name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(name) else ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataTopic(error, name, None, name in INTERNAL_TOPICS, ())


def _all(context: ApiContext, request: Request, operations: _Operations) -> Sequence[bytes]:
    version = request.header.api_version
    topics = context.metadata_topics.all_encoded(request.connection.listener, version)
    return _with_operations(version, context.metadata.topics(), topics, operations)


def _respond_when_settled(
    context: ApiContext,
    request: Request,
    names: Sequence[str],
    topics: Callable[[], Sequence[bytes]],
    operations: _Operations,
) -> None:
    """Responds when no leader of these topics is suspected, or after a short wait. A client that has just lost a leader should get
    the next leader, and not the old leader again (CTL-16).
    """
    listener, version = request.connection.listener, request.header.api_version

    def then() -> None:
        encoded = context.metadata_topics
        if encoded.partitions_to_encode(listener, version, names) <= PARTITIONS_AT_ONCE:
            _respond(context, request, topics, operations)
        else:
            preparing = encoded.preparing(listener, version, names)
            after_steps(context, request, preparing, lambda: _respond(context, request, topics, operations))

    context.suspected_leaders.when_settled(names, then)


def _respond(
    context: ApiContext, request: Request, topics: Callable[[], Sequence[bytes]], operations: _Operations
) -> None:
    """Builds the body when all earlier requests of the connection are answered: an earlier body could name a leader that died since."""
    listener = request.connection.listener

    def body() -> bytes:
        brokers = [
            MetadataBroker(broker.id, endpoint.host, endpoint.port, broker.rack)
            for broker in (*context.metadata.brokers(), *context.suspected_leaders.departed())
            if (endpoint := broker.endpoint(listener)) is not None
        ]
        return metadata_codec.encode_response(
            request.header.api_version,
            brokers,
            context.cluster_id,
            context.metadata.controller_id,
            topics(),
            cluster_authorized_operations=operations.of_cluster,
        )

    request.respond_in_turn(body)
