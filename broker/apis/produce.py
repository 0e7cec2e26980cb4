"""Produce (API 0), v3 to v13: REP-4, BAD-24, BAD-25. v0 to v2 are for older message formats, and refused with an answer.

Each partition has its own error. With acks=0 there is no answer, so an error closes the connection: the client must notice it.
A transactional batch needs a transactional id in the request, as in Kafka. Whether the partition is in the transaction is verified
before the first batch is appended; from v12 on it is added (`appending/transaction_verification.py`).

v13 names topics by their ids. An id that this broker does not know, or that the topic had before it was created again, gets
UNKNOWN_TOPIC_ID for its partitions.

A request that names a partition twice is refused as a whole, with INVALID_REQUEST. (Kafka appends only the last of the two batches,
and answers once.) No client sends such a request, but it could have thousands of 2 KB batches that take long to unpack.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Generator, Mapping, Sequence
from typing import Any, Final, cast

from broker.network.request_channel import NO_FRAME, Request
from broker.recording.record_keys import Keys, keys_at_once, keys_of_all
from broker.recording.recording import NO_KEYS, Recording
from broker.requests import rights, throttling
from broker.requests.context import ApiContext
from broker.requests.steps import StepsTo, at_once, finished, respond_later
from broker.storage.disk.disk_threads import UNPACKING, UNPACKING_PLACES
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import produce_codec
from protocol.kafka.compression import ZSTD
from protocol.kafka.produce_codec import NodeEndpoint, ProducePartitionResult, ProduceRequest
from protocol.kafka.record_batch import first_batch_compression, first_batch_is_transactional
from protocol.kafka.wire import TopicKey
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

BATCHES_SINCE: Final = 3
ZSTD_SINCE: Final = 7
LEADER_HINT_SINCE: Final = 10
TOPIC_IDS_SINCE: Final = produce_codec.TOPIC_IDS_SINCE
ABORTABLE_SINCE: Final = 11
"""The first version whose clients know TRANSACTION_ABORTABLE (KIP-890)."""
ADDING_SINCE: Final = 12
"""The first version that adds partitions to the transaction (transaction version 2)."""

MESSAGES_MAX: Final = 100
"""Limit of partitions with an error message when a request is refused as a whole. The others get only the error code."""
NO_RECORDS: Final = memoryview(b"")
UNKNOWN_TOPIC: Final = ""
"""Stands for the name of a topic whose id is unknown. No topic has it."""
UNKNOWN: Final[Mapping[str, ErrorCode]] = {UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_ID}
NOTHING_DENIED: Final[Mapping[str, ErrorCode]] = {}

Entries = Sequence[tuple[TopicPartition, memoryview]]
Shape = Sequence[tuple[TopicKey, int]]
"""The topics of a request, as it names them, each with its number of partitions."""


def produce(context: ApiContext, request: Request) -> Coroutine[Any, Any, None] | None:
    header = request.header
    frame = memoryview(request.frame)
    body = produce_codec.decode_at_once(header.api_version, frame, header.body_offset)
    if body is None:
        steps = produce_codec.decoding(header.api_version, frame, header.body_offset)
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
    """Decodes a request with thousands of partitions in steps."""
    pause = context.replica_manager.client_budget.pause
    while True:
        await pause()
        try:
            next(steps)
        except StopIteration as end:
            body: ProduceRequest = end.value
            break
    await pause()
    refusal = _refusal(context, body, request.header.api_version)
    await pause()
    if refusal is None:
        waiting = _append_accepted(context, request, body)
        if waiting is not None:
            await waiting
        return
    failed = _failed_all(body, *refusal)
    await pause()
    respond(context, request, body.acks, _shape(body), failed, body_size(request))


def _append(context: ApiContext, request: Request, body: ProduceRequest) -> Coroutine[Any, Any, None] | None:
    refusal = _refusal(context, body, request.header.api_version)
    if refusal is None:
        return _append_accepted(context, request, body)
    respond(context, request, body.acks, _shape(body), _failed_all(body, *refusal), body_size(request))
    return None


def body_size(request: Request) -> int:
    """Bytes of the request without its header: what counts for a quota."""
    return len(request.frame) - request.header.body_offset


def _shape(body: ProduceRequest) -> Shape:
    topics = body.topics
    if len(topics) == 1:
        return [(topics[0][0], len(topics[0][1]))]
    return [(topic, len(partitions)) for topic, partitions in topics]


def _failed_all(body: ProduceRequest, code: ErrorCode, message: str) -> list[ProducePartitionResult]:
    numbers = [partition for _, partitions in body.topics for partition, _ in partitions]
    return [_failed(p, code, message if at < MESSAGES_MAX else "") for at, p in enumerate(numbers)]


def _append_accepted(context: ApiContext, request: Request, body: ProduceRequest) -> Coroutine[Any, Any, None] | None:
    has_ids = request.header.api_version >= TOPIC_IDS_SINCE
    if has_ids:
        entries = _by_name(context, body)
    else:
        entries = [
            (TopicPartition(cast(str, topic), partition), NO_RECORDS if records is None else records)
            for topic, partitions in body.topics
            for partition, records in partitions
        ]
    if context.authorizer is None:
        denied = UNKNOWN if has_ids and any(tp.topic == UNKNOWN_TOPIC for tp, _ in entries) else NOTHING_DENIED
        return _append_checked(context, request, body, entries, denied)
    if len(body.topics) > rights.NAMES_IN_A_STEP:
        return _check_and_append(context, request, body, entries)
    return _append_checked(context, request, body, entries, at_once(_denied(context, request, body, entries)))


def _by_name(context: ApiContext, body: ProduceRequest) -> list[tuple[TopicPartition, memoryview]]:
    """The partitions of a request with topic ids: of UNKNOWN_TOPIC if the id is unknown, or that of an earlier topic of the same name."""
    resolve = context.replica_manager.partitions.resolve
    return [
        (
            resolve(cast(uuid.UUID, topic_id), partition) or TopicPartition(UNKNOWN_TOPIC, partition),
            NO_RECORDS if records is None else records,
        )
        for topic_id, partitions in body.topics
        for partition, records in partitions
    ]


async def _check_and_append(context: ApiContext, request: Request, body: ProduceRequest, entries: Entries) -> None:
    """Of a request that names many topics. Raises Unwanted."""
    denied = await finished(context, request, _denied(context, request, body, entries))
    waiting = _append_checked(context, request, body, entries, denied)
    if waiting is not None:
        await waiting


def _append_checked(
    context: ApiContext,
    request: Request,
    body: ProduceRequest,
    entries: Entries,
    denied: Mapping[str, ErrorCode],
) -> Coroutine[Any, Any, None] | None:
    if denied:
        return _append_allowed(context, request, body, entries, denied)
    return _append_permitted(context, request, body, entries)


def _append_permitted(
    context: ApiContext, request: Request, body: ProduceRequest, entries: Entries
) -> Coroutine[Any, Any, None] | None:
    recording = context.recorder.recording
    if recording is None:
        return _append_entries(context, request, body, entries)
    is_compacted = context.replica_manager.partitions.is_compacted
    batches = {at: batch for at, (tp, batch) in enumerate(entries) if recording.has(tp.topic) and is_compacted(tp)}
    keys = keys_at_once(batches, recording.key_secret) if batches else NO_KEYS
    if keys is None:
        return _read_keys_and_append(context, request, body, entries, recording, batches)
    return _append_entries(context, request, body, entries, recording, keys)


def _denied(
    context: ApiContext, request: Request, body: ProduceRequest, entries: Entries
) -> StepsTo[Mapping[str, ErrorCode]]:
    """The topics to which the client may not write, with their error."""
    topics = list(dict.fromkeys(tp.topic for tp, _ in entries))
    if body.transactional_id is not None and not rights.on_transactional_id(
        context, request, Operation.WRITE, body.transactional_id
    ):
        return dict.fromkeys(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    is_unknown = request.header.api_version >= TOPIC_IDS_SINCE and UNKNOWN_TOPIC in topics
    named = [topic for topic in topics if topic != UNKNOWN_TOPIC] if is_unknown else topics
    denied = yield from rights.denied(context, request, Operation.WRITE, ResourceType.TOPIC, named)
    refused = dict.fromkeys(denied, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return {**refused, **UNKNOWN} if is_unknown else refused


def _append_allowed(
    context: ApiContext,
    request: Request,
    body: ProduceRequest,
    entries: Entries,
    denied: Mapping[str, ErrorCode],
) -> Coroutine[Any, Any, None] | None:
    """Appends the batches of the other topics. It is not recorded: such requests are mistakes, and no load."""
    shape = _shape(body)
    acks = body.acks
    refused = [_failed(tp.partition, denied[tp.topic], "") if tp.topic in denied else None for tp, _ in entries]
    allowed = [entry for entry in entries if entry[0].topic not in denied]
    size = body_size(request)
    request.frame = NO_FRAME

    def respond_to_client(results: list[ProducePartitionResult]) -> None:
        left = iter(results)
        every = [next(left) if failed is None else failed for failed in refused]
        respond(context, request, acks, shape, every, size)

    if not allowed:
        respond_to_client([])
        return None
    appends = context.replica_manager.appends
    if body.transactional_id is None:
        return appends.append_in_slices(acks, body.timeout_ms, allowed, respond_to_client)
    if request.header.api_version < ABORTABLE_SINCE:
        return appends.append_transactional(
            body.transactional_id,
            acks,
            body.timeout_ms,
            allowed,
            lambda results: respond_to_client([_without_abortable(result) for result in results]),
        )
    return appends.append_transactional(
        body.transactional_id,
        acks,
        body.timeout_ms,
        allowed,
        respond_to_client,
        adds=request.header.api_version >= ADDING_SINCE,
    )


async def _read_keys_and_append(
    context: ApiContext,
    request: Request,
    body: ProduceRequest,
    entries: Entries,
    recording: Recording,
    batches: Mapping[int, memoryview],
) -> None:
    """Reads the keys of large batches in a thread."""
    async with UNPACKING_PLACES.place():
        loop = asyncio.get_running_loop()
        keys = await loop.run_in_executor(UNPACKING, keys_of_all, batches, recording.key_secret)
    waiting = _append_entries(context, request, body, entries, recording, keys)
    if waiting is not None:
        await waiting


def _append_entries(
    context: ApiContext,
    request: Request,
    body: ProduceRequest,
    entries: Entries,
    recording: Recording | None = None,
    keys: Mapping[int, Keys] = NO_KEYS,
) -> Coroutine[Any, Any, None] | None:
    shape = _shape(body)
    acks = body.acks
    size = body_size(request)
    # A produce that waits for replication must not keep the records in memory.
    request.frame = NO_FRAME
    entry = None if recording is None else recording.produce(request, acks, entries, body.transactional_id, keys)

    def respond_to_client(results: list[ProducePartitionResult]) -> None:
        respond(context, request, acks, shape, results, size)
        if recording is not None and entry is not None:
            recording.produced(entry, results)

    appends = context.replica_manager.appends
    if body.transactional_id is not None:
        version = request.header.api_version

        def respond_to_producer(results: list[ProducePartitionResult]) -> None:
            respond_to_client(
                results if version >= ABORTABLE_SINCE else [_without_abortable(result) for result in results]
            )

        return appends.append_transactional(
            body.transactional_id,
            acks,
            body.timeout_ms,
            entries,
            respond_to_producer,
            adds=version >= ADDING_SINCE,
        )
    return appends.append_in_slices(acks, body.timeout_ms, entries, respond_to_client)


def _without_abortable(result: ProducePartitionResult) -> ProducePartitionResult:
    if result.error != ErrorCode.TRANSACTION_ABORTABLE:
        return result
    message = result.error_message or "the partition is not in the transaction"
    return result._replace(error=ErrorCode.INVALID_TXN_STATE, error_message=message)


def _failed(partition: int, error: ErrorCode, message: str) -> ProducePartitionResult:
    return ProducePartitionResult(partition, error, error_message=message or None)


def _refusal(context: ApiContext, body: ProduceRequest, version: int) -> tuple[ErrorCode, str] | None:
    """The reason to refuse the whole request, if there is one."""
    if version < BATCHES_SINCE:
        return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "Produce before v3: only message format v2 is served"
    if not -1 <= body.acks <= 1:
        return ErrorCode.INVALID_REQUIRED_ACKS, f"acks {body.acks}: expected -1, 0 or 1"
    if len(body.topics) != 1 or len(body.topics[0][1]) > 1:
        partitions_named = [(topic, partition) for topic, rows in body.topics for partition, _ in rows]
        if len(set(partitions_named)) != len(partitions_named):
            return ErrorCode.INVALID_REQUEST, "a partition is named twice"
    for key, partitions in body.topics:
        topic = key if isinstance(key, str) else context.replica_manager.partitions.topic_name(key)
        if topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients must not write to {topic}"
        if version < ZSTD_SINCE and any(first_batch_compression(records) == ZSTD for _, records in partitions):
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7"
        for _, records in partitions if body.transactional_id is None else ():
            if first_batch_is_transactional(records):
                return (
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch without a transactional id",
                )
    return None


def respond(
    context: ApiContext,
    request: Request,
    acks: int,
    shape: Shape,
    results: list[ProducePartitionResult],
    size: int,
) -> None:
    """`results` are in the order of the request's partitions; `shape` has the number of partitions of each topic.

    `size`: bytes of the request's body, which count for a quota.
    """
    throttle_ms = throttling.of_produce(context, request, size, acks) if context.quotas.is_on else 0
    if acks == 0:
        failed = next((result for result in results if result.error), None)
        if failed is None:
            request.respond_nothing()
        else:
            request.close(f"an error that acks=0 cannot report: {ErrorCode(failed.error).name}")
        return
    version = request.header.api_version
    topics: list[tuple[TopicKey, list[ProducePartitionResult]]] = []
    if len(shape) == 1:
        topics.append((shape[0][0], results))
    else:
        at = 0
        for topic, count in shape:
            topics.append((topic, results[at : at + count]))
            at += count
    endpoints: Sequence[NodeEndpoint] = ()
    if version >= LEADER_HINT_SINCE:
        leaders = {result.leader_id for result in results if result.error and result.leader_id >= 0}
        endpoints = context.node_endpoints(leaders, request.connection.listener) if leaders else ()
    if len(results) > produce_codec.STEP:
        respond_later(context, request, produce_codec.encoding_response(version, topics, throttle_ms, endpoints))
        return
    request.respond_small(produce_codec.encode_response(version, topics, throttle_ms, endpoints))
