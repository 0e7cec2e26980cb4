"""DeleteRecords (API 21), v0 to v2: only on the leader; waits until all live replicas have moved their log start (LOG-1).

The request has the offset of the first record to keep; -1 means the high watermark. An offset below the log start succeeds without
a change. The answer's low watermark is the smallest log start of the live replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.network.request_channel import Request
from broker.replication.record_deletions import RecordDeletion
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, by_topic, in_steps, parts_of, respond_later
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

PARTITIONS_IN_A_STEP = 100
DELETIONS_AT_ONCE = 20
"""Partitions between two pauses. Each deletion may move a log start and remove files."""


def delete_records(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _delete(context, request))


def _delete(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    offsets: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, RecordDeletion] = {}
    names = (str(topic.name) for topic in body.topics)
    denied = yield from rights.denied(context, request, Operation.DELETE, ResourceType.TOPIC, names)
    for topic in body.topics:
        yield
        for number, row in enumerate(topic.partitions, 1):
            if number % PARTITIONS_IN_A_STEP == 0:
                yield
            tp = TopicPartition(topic.name, row.partition_index)
            if topic.name in denied:
                refused[tp] = RecordDeletion(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif context.metadata.partition(tp) is None:
                refused[tp] = RecordDeletion(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.name in INTERNAL_TOPICS:
                refused[tp] = RecordDeletion(ErrorCode.INVALID_TOPIC_EXCEPTION)
            else:
                offsets[tp] = row.offset
    timeout_s = messages.milliseconds(body.timeout) / 1000
    results: dict[TopicPartition, RecordDeletion] = {}
    left = len(offsets)

    def take_results(some: Mapping[TopicPartition, RecordDeletion]) -> None:
        nonlocal left
        results.update(some)
        left -= len(some)
        if left == 0:
            respond_later(context, request, _answer(request, results | refused))

    for some in parts_of(offsets.items(), DELETIONS_AT_ONCE):
        context.replica_manager.record_deletions.delete(dict(some), timeout_s, take_results)
        yield


def _answer(request: Request, results: Mapping[TopicPartition, RecordDeletion]) -> Steps:
    topics = yield from by_topic(results)
    rows = ({"name": topic, "partitions": map(_row, answers)} for topic, answers in topics.items())
    header = request.header
    return (yield from messages.encoding(header.api_key, header.api_version, {"throttle_time": 0, "topics": rows}))


def _row(answer: tuple[int, RecordDeletion]) -> dict[str, int]:
    partition, result = answer
    return {"partition_index": partition, "low_watermark": result.low_watermark, "error_code": int(result.error)}
