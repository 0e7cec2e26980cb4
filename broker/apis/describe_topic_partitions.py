"""DescribeTopicPartitions (API 75), v0: topics by name, page by page (KIP-966), as DescribeTopicPartitionsRequestHandler.

An answer has at most `response_partition_limit` partitions, and at most `max.request.partition.size.limit`, but one at least. The topics
come in the order of their names. A next cursor names the topic and the partition with which the next request continues; a request's
cursor must be one of the topics that it names. Partitions have no eligible leader replicas: only a KRaft controller knows some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, respond_in_steps
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.metadata_codec import OPERATIONS_NOT_ASKED, TOPIC_OPERATIONS, MetadataPartition
from protocol.topic_names import INTERNAL_TOPICS, is_valid_topic_name

PARTITIONS_IN_A_STEP = 100
TOPICS_IN_A_STEP = 50

Row = Mapping[str, Any]


def describe_topic_partitions(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    asked = dict.fromkeys(str(topic.name) for topic in body.topics)
    yield
    cursor = body.cursor
    next_cursor: Row | None = None
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        rows = [_topic(context, name, ErrorCode.INVALID_REQUEST) for name in asked]
    else:
        rows, next_cursor = yield from _page(context, request, asked, body)
    answer = {"throttle_time": 0, "topics": rows, "next_cursor": next_cursor}
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _page(
    context: ApiContext, request: Request, asked: Collection[str], body: Any
) -> StepsTo[tuple[list[Row], Row | None]]:
    """The topics' rows, and the next cursor. Nothing `asked`: all topics that the client may describe."""
    first, number = ("", 0) if body.cursor is None else (body.cursor.topic_name, body.cursor.partition_index)
    left = max(1, min(body.response_partition_limit, context.config.max_request_partition_size_limit))
    names = sorted(name for name in asked or context.metadata.topics() if name >= first)
    yield
    denied = yield from rights.denied(
        context, request, Operation.DESCRIBE, ResourceType.TOPIC, names, is_quiet=not asked
    )
    hidden = [_topic(context, name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied] if asked else []
    rows: list[Row] = []
    for count, name in enumerate((name for name in names if name not in denied), 1):
        if not left:
            return rows + hidden, {"topic_name": name, "partition_index": 0}
        operations = rights.operations(context, request, ResourceType.TOPIC, name, TOPIC_OPERATIONS)
        if not context.metadata.partitions_of(name):
            if asked:
                is_valid = is_valid_topic_name(name)
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
                rows.append(_topic(context, name, error, operations=operations))
        else:
            begin = number if name == first else 0
            partitions = yield from _partitions(context, request, name, begin, begin + left)
            rows.append(_topic(context, name, ErrorCode.NONE, partitions, operations))
            if begin + left < context.metadata.partition_count(name):
                return rows + hidden, {"topic_name": name, "partition_index": begin + left}
            left -= len(partitions)
        if count % TOPICS_IN_A_STEP == 0:
            yield
    return rows + hidden, None


def _partitions(context: ApiContext, request: Request, name: str, begin: int, end: int) -> StepsTo[list[Row]]:
    rows = []
    listener = request.connection.listener
    for number in range(begin, min(end, context.metadata.partition_count(name))):
        state = context.metadata.partitions_of(name).get(number)
        if state is not None:
            rows.append(_partition(context.metadata_topics.partition(state, listener)))
        if len(rows) % PARTITIONS_IN_A_STEP == 0:
            yield
    return rows


def _partition(found: MetadataPartition) -> Row:
    return {
        "error_code": int(ErrorCode.NONE),
        "partition_index": found.partition,
        "leader_id": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "replica_nodes": found.replicas,
        "isr_nodes": found.isr,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": found.offline_replicas,
    }


def _topic(
    context: ApiContext,
    name: str,
    error: ErrorCode,
    partitions: Collection[Row] = (),
    operations: int = OPERATIONS_NOT_ASKED,
) -> Row:
    return {
        "error_code": int(error),
        "name": name,
        "topic_id": context.metadata.topic_id(name) if error is ErrorCode.NONE else None,
        "is_internal": name in INTERNAL_TOPICS and error is not ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }
