"""Fetch (API 1), v4 to v18, of consumers and followers: REP-1, REP-2, REP-5, sessions (KIP-227), topic ids (KIP-516).

v0 to v3 cannot carry the records that are in the logs, and are not in the ApiVersions response. They get UNSUPPORTED_VERSION for each
partition, as from a Kafka with `message.downconversion.enable=false`; a client that does not ask for ApiVersions can tell its user.

Decodes the request, checks whether a replica id is allowed, and encodes the answer; `broker.replication.fetching` does the rest. Record
bytes are sent as they are in the log. Each connection reads one fetch at a time, and the room for unsent answers limits the answer
(`network/unsent_answers.py`). Consumers may read from a follower from v11 on (KIP-392). Not supported: remote storage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from broker.network.request_channel import NO_FRAME, OLD_CLIENTS, Request
from broker.network.unsent_answers import ANSWER_MAX
from broker.replication.fetching.fetch_reads import FetchParams, Throttle
from broker.replication.fetching.fetch_session import NO_SESSION_ID, FetchedTopics
from broker.requests import rights, throttling
from broker.requests.context import ApiContext
from broker.requests.followers import may_ask_as_replica
from broker.requests.steps import ROWS_IN_A_STEP, Further, Steps, StepsTo, in_steps, respond_in_steps
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import fetch_codec, messages, single_fetch
from protocol.kafka.fetch_codec import READ_COMMITTED, FetchPartitionData, FetchRequest
from protocol.kafka.produce_codec import NodeEndpoint
from protocol.kafka.single_fetch import SingleFetch
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

RECORD_BATCHES_SINCE: Final = 4
STORAGE_ERROR_SINCE: Final = 6
SESSION_ERRORS_SINCE: Final = 7
FOLLOWER_READS_SINCE: Final = 11
TOPIC_IDS_SINCE: Final = 13
LEADER_ENDPOINTS_SINCE: Final = 16
MIN_BYTES_MAX: Final = ANSWER_MAX // 2
"""Limit of `min_bytes`. An answer consists of whole batches, so it may have to be smaller than ANSWER_MAX."""

LARGE_REQUEST: Final = 8 * 1024
"""Bytes. A larger request, of about two hundred partitions or more, is decoded in steps."""


def fetch(context: ApiContext, request: Request) -> Further:
    if len(request.frame) > LARGE_REQUEST and request.header.api_version >= RECORD_BATCHES_SINCE:
        return in_steps(context, request, _fetch_many(context, request))
    header = request.header
    version = header.api_version
    if version < RECORD_BATCHES_SINCE:
        return respond_in_steps(context, request, _unreadable(context, request))
    found = single_fetch.find(version, request.frame, header.body_offset)
    if found is not None:
        single, offset = found
        _fetch(context, request, single.request, single, offset)
    else:
        _fetch(context, request, fetch_codec.decode_request(version, request.frame, header.body_offset))
    return None


def _unreadable(context: ApiContext, request: Request) -> Steps:
    """Answers a fetch of before v4. Errors that Kafka finds before it looks at records come first."""
    header = request.header
    if (earlier := context.old_fetches.happened()) is not None:
        others = f" (and {earlier} earlier fetches)" if earlier else ""
        log.info(
            "%s gets no records: they need Fetch v%d%s%s", request.named(), RECORD_BATCHES_SINCE, OLD_CLIENTS, others
        )
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    context.request_metrics.fetch_consumer.count(header.api_version, request.received_at)
    topics = []
    for topic in body.topics:
        rows = []
        for number, asked in enumerate(topic.partitions, 1):
            try:
                if not rights.on_topic(context, request, Operation.READ, topic.topic):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                context.replica_manager.partitions.find(TopicPartition(topic.topic, asked.partition)).leader_log()
                error = ErrorCode.UNSUPPORTED_VERSION
            except KafkaError as refused:
                error = refused.code
            if error is ErrorCode.KAFKA_STORAGE_ERROR:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # as in `_as_old_clients_know_it`
            # Empty records, where Kafka sends null: not every old client reads null, but each looks at the error.
            rows.append(
                {"partition_index": asked.partition, "error_code": int(error), "high_watermark": -1, "records": b""}
            )
            if number % ROWS_IN_A_STEP == 0:
                yield
        topics.append({"topic": topic.topic, "partitions": rows})
        yield
    answer = {"throttle_time": 0, "responses": topics}
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _fetch_many(context: ApiContext, request: Request) -> StepsTo[None]:
    body = yield from fetch_codec.decoding(request.header.api_version, request.frame, request.header.body_offset)
    _fetch(context, request, body)


def _fetch(
    context: ApiContext, request: Request, body: FetchRequest, single: SingleFetch | None = None, offset: int = 0
) -> None:
    """With `single`, the request is from `offset`, whatever offset the topics of `body` have."""
    version = request.header.api_version
    if body.replica_id >= 0 and not may_ask_as_replica(context, request):
        _refuse(request)
        return
    connection = request.connection
    # A follower's fetch needs no room: clients that do not read their answers never delay it.
    if not connection.begin_fetch(request, needs_room=body.replica_id < 0):
        return
    request.frame = NO_FRAME  # a parked fetch must not keep the frame in memory
    # Not earlier: a fetch that has to wait for the one before it is handled again.
    metrics = context.request_metrics.fetch_follower if body.replica_id >= 0 else context.request_metrics.fetch_consumer
    metrics.until_timed = left = metrics.until_timed - 1  # as ApiMetrics.count
    timing = None
    if left <= 0:
        timing = metrics.time(version, request.received_at)
        connection.when_answered(request.number, timing.answered)
    recording = context.recorder.recording if body.replica_id < 0 else None
    min_bytes = body.min_bytes if body.min_bytes < MIN_BYTES_MAX else MIN_BYTES_MAX
    max_bytes = body.max_bytes if body.max_bytes < ANSWER_MAX else ANSWER_MAX
    toll: throttling.OfConsumer | None = None
    throttle: Throttle | None = None
    if body.replica_id >= 0:
        request.toll = None
    elif context.quotas.is_on:
        toll = throttling.OfConsumer(context, request)
        throttle = toll.count
        max_bytes = min(max_bytes, toll.bytes_max)
        min_bytes = min(min_bytes, max_bytes)
    if single is not None:
        correlation_id, listener = request.header.correlation_id, connection.listener
        if (
            recording is None
            and (context.authorizer is None or _may_read(context, request, single))
            and (toll is None or single.max_bytes <= max_bytes)
            and (
                answer := context.fetches.answer_at_once(single, offset, correlation_id, connection, listener, throttle)
            )
            is not None
        ):
            if toll is not None and toll.throttle_ms:
                _respond(context, request, ErrorCode.NONE, NO_SESSION_ID, [], toll.throttle_ms)
            else:
                connection.answer_records(request.number, answer)
            if timing is not None:
                timing.handled()
            return
        body = single.request_at(offset)
    params = FetchParams(
        body.replica_id,
        body.replica_epoch,
        body.max_wait_ms,
        min_bytes,
        max_bytes,
        body.isolation_level,
        connection,
        None
        if recording is None
        else recording.fetch(
            request,
            body.min_bytes,
            body.max_wait_ms,
            body.max_bytes,
            is_committed=body.isolation_level == READ_COMMITTED,
        ),
        body.rack_id if version >= FOLLOWER_READS_SINCE else None,
        connection.listener,
        recording is None and body.replica_id < 0,
        None
        if context.authorizer is None
        else rights.reader_of_topics(context, request, is_follower=body.replica_id >= 0),
        throttle,
    )

    def respond(error: ErrorCode, session_id: int, topics: FetchedTopics) -> None:
        throttle_ms = toll.throttle_ms if toll is not None else 0
        _respond(context, request, error, session_id, topics, throttle_ms)

    parked = context.fetches.fetch(params, body, respond, uses_topic_ids=version >= TOPIC_IDS_SINCE)
    if timing is not None:
        timing.handled()
    if parked is not None and not parked.is_completed:
        connection.at_end(request.number, parked.complete_now)


def _may_read(context: ApiContext, request: Request, single: SingleFetch) -> bool:
    """Whether the consumer may read the topic. An unknown topic id is left to the other path."""
    key = single.key
    topic = key if isinstance(key, str) else context.replica_manager.partitions.topic_name(key)
    return topic is not None and rights.on_topic(context, request, Operation.READ, topic)


def _refuse(request: Request) -> None:
    """Refuses a fetch with a replica id on a listener where that is not allowed."""
    version = request.header.api_version
    if version < SESSION_ERRORS_SINCE:
        request.close("a fetch with a replica id on a listener that is not for brokers")
        return
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    request.respond(fetch_codec.encode_response(version, 0, error, NO_SESSION_ID, []))


def _respond(
    context: ApiContext,
    request: Request,
    error: ErrorCode,
    session_id: int,
    topics: FetchedTopics,
    throttle_ms: int,
) -> None:
    version = request.header.api_version
    endpoints: Sequence[NodeEndpoint] = ()
    if version < STORAGE_ERROR_SINCE:
        topics = [(topic, [_as_old_clients_know_it(data) for data in partitions]) for topic, partitions in topics]
    elif version >= LEADER_ENDPOINTS_SINCE:
        hints = (data.current_leader for _, partitions in topics for data in partitions)
        leaders = {hint[0] for hint in hints if hint is not None and hint[0] != -1}
        if leaders:
            endpoints = context.node_endpoints(leaders, request.connection.listener)
    request.respond_records(fetch_codec.encode_parts(version, throttle_ms, error, session_id, topics, endpoints))


def _as_old_clients_know_it(data: FetchPartitionData) -> FetchPartitionData:
    """Clients below v6 do not know KAFKA_STORAGE_ERROR and would not retry. As in Kafka, they get NOT_LEADER_OR_FOLLOWER."""
    if data.error != ErrorCode.KAFKA_STORAGE_ERROR:
        return data
    return data._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
