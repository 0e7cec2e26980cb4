"""ListOffsets (API 2), v0 to v11: INV-16, REP-8.

Timestamps are in ms, or -1 latest, -2 earliest, -3 the record with the largest timestamp (v7), -4 earliest on local disk (v8). -5 (v9)
and -6 (v11) find nothing, because there is no remote storage. Other negative timestamps, and a timestamp that only a later version has, get
UNSUPPORTED_VERSION, as in Kafka. Clients below v5 do not know OFFSET_NOT_AVAILABLE: they get LEADER_NOT_AVAILABLE. A partition that
is named twice gets INVALID_REQUEST.

v0 asks for several offsets of each partition: those where segments start, by the times of their files. It is for clients that do not ask
for ApiVersions, such as Burrow, which wants the end of each log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

from broker.network.request_channel import Request
from broker.replication import offset_queries
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.followers import may_ask_as_replica
from broker.requests.steps import Further, Steps, ThreadedSteps, parts_of, respond_in_steps
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import list_offsets_codec, messages
from protocol.kafka.list_offsets_codec import AskedOffset, ListOffsetsPartitionResult, ListOffsetsRequest
from protocol.types import TopicPartition

ONE_OFFSET_SINCE = 1
OFFSET_NOT_AVAILABLE_SINCE = 5
SPECIAL_TIME_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
RESULTS_IN_A_STEP = 200
NO_OFFSETS: Sequence[int] = ()


def list_offsets(context: ApiContext, request: Request) -> Further:
    answer = _answer if request.header.api_version >= ONE_OFFSET_SINCE else _answer_v0
    return respond_in_steps(context, request, answer(context, request))


def _answer(context: ApiContext, request: Request) -> ThreadedSteps:
    version = request.header.api_version
    body = yield from list_offsets_codec.decoding(version, request.frame, request.header.body_offset)
    times: Counter[tuple[str, int]] = Counter()
    for topic, rows in body.topics:
        for some in parts_of(rows, RESULTS_IN_A_STEP):
            times.update((topic, row.partition) for row in some)
            yield None
    may_ask = body.replica_id < 0 or may_ask_as_replica(context, request)
    names = [topic for topic, _ in body.topics]
    denied = yield from rights.denied(context, request, Operation.DESCRIBE, ResourceType.TOPIC, names)
    topics = []
    for topic, rows in body.topics:
        encoded: list[bytes] = []
        results: list[ListOffsetsPartitionResult] = []
        for row in rows:
            if topic in denied:
                results.append(_failed(row.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif times[topic, row.partition] > 1:
                results.append(_failed(row.partition, ErrorCode.INVALID_REQUEST))
            elif not may_ask:
                results.append(_failed(row.partition, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            else:
                results.append((yield from _find(context, version, topic, row, body)))
            if len(results) == RESULTS_IN_A_STEP:
                encoded.append(list_offsets_codec.encode_results(version, results))
                results = []
            yield None
        encoded.append(list_offsets_codec.encode_results(version, results))
        topics.append(list_offsets_codec.encode_topic(version, topic, len(rows), encoded))
    return list_offsets_codec.encode_response(version, topics)


def _answer_v0(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    times: Counter[tuple[str, int]] = Counter()
    for topic in body.topics:
        for some in parts_of(topic.partitions, RESULTS_IN_A_STEP):
            times.update((topic.name, row.partition_index) for row in some)
            yield
    may_ask = body.replica_id < 0 or may_ask_as_replica(context, request)
    names = [topic.name for topic in body.topics]
    denied = yield from rights.denied(context, request, Operation.DESCRIBE, ResourceType.TOPIC, names)
    topics = []
    for topic in body.topics:
        rows = []
        for asked in topic.partitions:
            error, offsets = ErrorCode.INVALID_REQUEST, NO_OFFSETS
            if topic.name in denied:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not may_ask:
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            elif times[topic.name, asked.partition_index] == 1:
                error, offsets = yield from _find_v0(context, topic.name, asked, body.replica_id)
            rows.append(
                {"partition_index": asked.partition_index, "error_code": int(error), "old_style_offsets": offsets}
            )
            yield
        topics.append({"name": topic.name, "partitions": rows})
    return (yield from messages.encoding(header.api_key, header.api_version, {"topics": topics}))


def _find_v0(
    context: ApiContext, topic: str, asked: Any, replica_id: int
) -> Generator[None, None, tuple[ErrorCode, Sequence[int]]]:
    if asked.timestamp < offset_queries.EARLIEST:
        return ErrorCode.UNSUPPORTED_VERSION, NO_OFFSETS
    tp = TopicPartition(topic, asked.partition_index)
    count = min(max(asked.max_num_offsets, 0), offset_queries.OFFSETS_BEFORE_MAX)
    now_ms = context.clock.wall_ms()
    try:
        found = yield from context.replica_manager.offsets.offsets_before(
            tp, asked.timestamp, count, replica_id, now_ms
        )
    except KafkaError as error:
        is_new = error.code is ErrorCode.OFFSET_NOT_AVAILABLE
        return (ErrorCode.LEADER_NOT_AVAILABLE if is_new else error.code), NO_OFFSETS
    return (ErrorCode.NONE if asked.max_num_offsets >= 0 else ErrorCode.INVALID_REQUEST), found


def _failed(partition: int, error: ErrorCode) -> ListOffsetsPartitionResult:
    return ListOffsetsPartitionResult(partition, error)


def _find(
    context: ApiContext, version: int, topic: str, asked: AskedOffset, body: ListOffsetsRequest
) -> Generator[Callable[[], Any] | None, Any, ListOffsetsPartitionResult]:
    index, current_epoch, timestamp = asked
    if timestamp < 0 and version < SPECIAL_TIME_SINCE.get(timestamp, version + 1):
        return _failed(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        timestamp, offset, epoch = yield from context.replica_manager.offsets.listing_offset(
            TopicPartition(topic, index), timestamp, current_epoch, body.isolation_level, body.replica_id
        )
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
            return _failed(index, ErrorCode.LEADER_NOT_AVAILABLE)
        return _failed(index, error.code)
    return ListOffsetsPartitionResult(index, ErrorCode.NONE, timestamp, offset, epoch)
