"""Produce (API 0), v3 to v11: REP-4, BAD-24, BAD-25.

Errors are per partition. With acks=0 there is no answer, so an error closes the connection; otherwise the client would never know.
Transactions are not served yet: a transactional id is refused, and so is a transactional batch without one, as in Kafka. Nothing could
end such a transaction, and compaction would stop at it.

A request that names a partition twice is refused as a whole, with INVALID_REQUEST. (Kafka appends only the last of the two, and
answers once.) No client sends such a request, but it could hold thousands of 2 KB batches that take long to unpack.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import produce_codec
from protocol.kafka.compression import ZSTD
from protocol.kafka.produce_codec import ProducePartitionResult, ProduceRequest
from protocol.kafka.record_batch import first_batch_compression, first_batch_is_transactional
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

ZSTD_SINCE = 7
LEADER_HINT_SINCE = 10

MESSAGES_MAX = 100
"""Partitions in the answer to a request that is refused as a whole, between two pauses."""
NO_RECORDS = memoryview(b"")


def produce(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    body = produce_codec.decode_at_once(header.api_version, request.frame, header.body_offset)
    if body is None:
        steps = produce_codec.decoding(header.api_version, request.frame, header.body_offset)
        try:
            next(steps)
        except StopIteration as end:
            body = end.value
        else:
            return _decode_and_append(context, request, steps)
    return _append(context, request, body)


async def _decode_and_append(
    context: ApiContext, request: Request, steps: Generator[None, None, ProduceRequest]
) -> None:
    """Serves requests with thousands of partitions."""
    pause = context.replica_manager.client_budget.pause
    while True:
        await pause()
        try:
            next(steps)
        except StopIteration as end:
            body: ProduceRequest = end.value
            break
    await pause()
    waiting = _append(context, request, body)
    if waiting is not None:
        await waiting


def _append(context: ApiContext, request: Request, body: ProduceRequest) -> Coroutine[Any, Any, None] | None:
    error = _refusal(body, request.header.api_version)
    topics = body.topics
    if len(topics) == 1:
        shape = [(topics[0][0], len(topics[0][1]))]
    else:
        shape = [(topic, len(partitions)) for topic, partitions in topics]
    if error is not None:
        code, message = error
        numbers = [partition for _, partitions in body.topics for partition, _ in partitions]
        failed = [_failed(p, code, message if at < MESSAGES_MAX else "") for at, p in enumerate(numbers)]
        _respond(context, request, body.acks, shape, failed)
        return None
    entries = [
        (TopicPartition(topic, partition), NO_RECORDS if records is None else records)
        for topic, partitions in body.topics
        for partition, records in partitions
    ]
    acks = body.acks
    # A produce that waits for replication must not keep the records in memory.
    request.frame = NO_RECORDS
    return context.replica_manager.appends.append_in_slices(
        acks, body.timeout_ms, entries, lambda results: _respond(context, request, acks, shape, results)
    )


def _failed(partition: int, error: ErrorCode, message: str) -> ProducePartitionResult:
    return ProducePartitionResult(partition, error, error_message=message or None)


def _refusal(body: ProduceRequest, version: int) -> tuple[ErrorCode, str] | None:
    """The reason to refuse the whole request, if there is one."""
    if not -1 <= body.acks <= 1:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks {body.acks}: expected -1, 0 or 1"
    if body.transactional_id is not None:
        return ErrorCode.INVALID_REQUEST, "transactions are not served"
    if len(body.topics) != 1 or len(body.topics[0][1]) > 1:
        partitions_named = [(topic, partition) for topic, rows in body.topics for partition, _ in rows]
        if len(set(partitions_named)) != len(partitions_named):
            return ErrorCode.INVALID_REQUEST, "a partition is twice in one request"
    for topic, partitions in body.topics:
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients must not write to {topic}"
        if version < ZSTD_SINCE and any(first_batch_compression(records) == ZSTD for _, records in partitions):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7"
        for _, records in partitions:
            if first_batch_is_transactional(records):
                return (
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch without a transactional id",
                )
    return None


def _respond(
    context: ApiContext,
    request: Request,
    acks: int,
    shape: list[tuple[str, int]],
    results: list[ProducePartitionResult],
) -> None:
    """`results` are in the order of the request's partitions; `shape` has the number of partitions of each topic."""
    if acks == 0:
        failed = next((result for result in results if result.error), None)
        if failed is None:
            request.respond_nothing()
        else:
            request.close(f"an error that acks=0 cannot report: {ErrorCode(failed.error).name}")
        return
    version = request.header.api_version
    if len(shape) == 1:
        topics = [(shape[0][0], results)]
    else:
        topics, at = [], 0
        for topic, count in shape:
            topics.append((topic, results[at : at + count]))
            at += count
    if version < LEADER_HINT_SINCE:
        request.respond_small(produce_codec.encode_response(version, topics))
        return
    leaders = {result.leader_id for result in results if result.error and result.leader_id >= 0}
    endpoints = context.node_endpoints(leaders, request.connection.listener) if leaders else ()
    request.respond_small(produce_codec.encode_response(version, topics, 0, endpoints))
