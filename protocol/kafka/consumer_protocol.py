"""What consumers tell each other through JoinGroup and SyncGroup: a member's topics, and its partitions. Pure.

The version comes first, in 16 bits. Later versions only append fields, so version 0 reads them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import protocol.kafka.kio_without_hypothesis  # isort: skip  # noqa: F401
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.consumer_protocol_subscription.v1.data import (
    ConsumerProtocolSubscription as ConsumerProtocolSubscriptionV1,
)

from protocol.kafka import by_schema
from protocol.kafka.wire import ELEMENTS_MAX
from protocol.types import Buffer, TopicPartition

PROTOCOL_TYPE = "consumer"
VERSION = b"\0\0"
OWNED_SINCE = b"\0\1"
SIZE_MAX = 100 * 1024 * 1024


def subscription(topics: Iterable[str], user_data: bytes | None = None) -> bytes:
    """The metadata of a member that reads these topics."""
    return _written(ConsumerProtocolSubscription, {"topics": sorted(topics), "user_data": user_data})


def subscribed(metadata: Buffer) -> tuple[str, ...]:
    """The topics of a member. Raises MalformedRequest."""
    return tuple(_read(ConsumerProtocolSubscription, metadata).topics)


def owned(metadata: Buffer) -> list[TopicPartition]:
    """The partitions that a member reads while it joins again; none before v1, and of members that give up all first. Raises
    MalformedRequest."""
    if bytes(metadata[: len(VERSION)]) < OWNED_SINCE:
        return []
    topics = _read(ConsumerProtocolSubscriptionV1, metadata).owned_partitions
    return [TopicPartition(each.topic, number) for each in topics for number in each.partitions]


def assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What SyncGroup gives to a member."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    rows = [{"topic": topic, "partitions": of_topic} for topic, of_topic in by_topic.items()]
    return _written(ConsumerProtocolAssignment, {"assigned_partitions": rows, "user_data": None})


def assigned(data: Buffer) -> list[TopicPartition]:
    """The partitions of a member; none if it is given nothing. Raises MalformedRequest."""
    if not data:
        return []
    topics = _read(ConsumerProtocolAssignment, data).assigned_partitions
    return [TopicPartition(each.topic, number) for each in topics for number in each.partitions]


def _written(schema: Any, body: dict[str, Any]) -> bytes:
    return VERSION + b"".join(by_schema.at_once(by_schema.writing(schema, body, SIZE_MAX)))


def _read(schema: Any, data: Buffer) -> Any:
    return by_schema.at_once(by_schema.reading(schema, bytes(data), len(VERSION), ELEMENTS_MAX))
