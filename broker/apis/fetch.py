"""Fetch (API 1), v4 to v17, of consumers and followers: REP-1, REP-2, REP-5, sessions (KIP-227), topic ids (KIP-516).

The API resolves the session and the topic ids; the replica manager reads and waits; record bytes pass through as the log returned
them. A partition that is named twice is answered once, with its last row. A connection has one fetch in progress, and the size of
an answer depends on the available room (`network/unsent_answers.py`). Not done: reading from the closest replica (KIP-392), remote
storage.
"""

from __future__ import annotations

from broker.network.request_channel import NO_FRAME, Request
from broker.network.unsent_answers import ANSWER_MAX
from broker.replication.fetching.fetch_sessions import NO_SESSION_ID, FetchContext, FetchedPartition
from broker.replication.replica_manager import FetchParams
from broker.requests.context import ApiContext
from broker.requests.followers import may_ask_as_replica
from broker.requests.steps import Further, StepsTo, in_steps
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import fetch_codec
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.types import TopicPartition

STORAGE_ERROR_SINCE = 6
TOPIC_IDS_SINCE = 13
SESSION_ERRORS_SINCE = 7
LEADER_ENDPOINTS_SINCE = 16
MIN_BYTES_MAX = ANSWER_MAX // 2
"""An answer consists of whole batches and may therefore have less than the available room."""


LARGE_REQUEST = 8 * 1024
"""Bytes: a larger request names some two hundred partitions, and is decoded in steps."""


def fetch(context: ApiContext, request: Request) -> Further:
    if len(request.frame) > LARGE_REQUEST:
        return in_steps(context, request, _fetch_many(context, request))
    version = request.header.api_version
    _fetch(context, request, fetch_codec.decode_request(version, request.frame, request.header.body_offset))
    return None


def _fetch_many(context: ApiContext, request: Request) -> StepsTo[None]:
    body = yield from fetch_codec.decoding(request.header.api_version, request.frame, request.header.body_offset)
    _fetch(context, request, body)


def _fetch(context: ApiContext, request: Request, body: FetchRequest) -> None:
    version = request.header.api_version
    if body.replica_id >= 0 and not may_ask_as_replica(context, request):
        _refuse(request)
        return
    connection = request.connection
    if not connection.is_open:
        return
    # Followers are never blocked by clients that do not read.
    if not connection.begin_fetch(request, needs_room=body.replica_id < 0):
        return
    request.frame = NO_FRAME  # a waiting fetch must not keep it in memory
    try:
        fetched = context.fetch_sessions.open(
            body, uses_topic_ids=version >= TOPIC_IDS_SINCE, connection=request.connection
        )
    except KafkaError as error:
        request.respond(fetch_codec.encode_response(version, 0, error.code, NO_SESSION_ID, []))
        return
    known: list[FetchedPartition] = []
    entries: list[tuple[TopicPartition, FetchRequestPartition]] = []
    partitions = fetched.partitions
    if fetched.session is None and len(partitions) > 1:
        partitions = list({(partition.key, partition.wanted.partition): partition for partition in partitions}.values())
    for partition in partitions:
        if partition.tp is not None:
            known.append(partition)
            entries.append((partition.tp, partition.wanted))
    all_known = len(known) == len(partitions)
    params = FetchParams(
        body.replica_id,
        body.replica_epoch,
        body.max_wait_ms if all_known else 0,  # An error is answered at once.
        body.min_bytes if body.min_bytes < MIN_BYTES_MAX else MIN_BYTES_MAX,
        body.max_bytes if body.max_bytes < ANSWER_MAX else ANSWER_MAX,
        body.isolation_level,
        connection,
    )

    session = fetched.session

    def respond(results: list[tuple[TopicPartition, FetchPartitionData]]) -> None:
        pairs = [(partition, data) for partition, (_, data) in zip(known, results, strict=False)]
        if session is not None:
            pairs += session.woken_with(results[len(known) :])
        if not all_known:
            pairs += [
                (p, FetchPartitionData(p.wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID))
                for p in partitions
                if p.tp is None
            ]
        _respond(context, request, fetched, pairs)

    parked = context.replica_manager.fetch(params, entries, respond, session.quiet if session is not None else None)
    if parked is not None and not parked.is_completed:
        connection.at_end(request.number, parked.complete_now)


def _refuse(request: Request) -> None:
    """Refuses a fetch with a replica id on a listener where that is not allowed."""
    version = request.header.api_version
    if version < SESSION_ERRORS_SINCE:
        request.close("a fetch with a replica id, on a listener that is not for brokers")
        return
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    request.respond(fetch_codec.encode_response(version, 0, error, NO_SESSION_ID, []))


def _respond(
    context: ApiContext,
    request: Request,
    fetched: FetchContext,
    pairs: list[tuple[FetchedPartition, FetchPartitionData]],
) -> None:
    version = request.header.api_version
    if not request.connection.is_open:
        return
    if version >= TOPIC_IDS_SINCE:
        for partition, data in pairs:
            if data.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and partition.tp is not None:
                # The topic was deleted since then: the client must look up its id again.
                partition.tp = None
    if version < STORAGE_ERROR_SINCE:
        pairs = [(partition, _as_old_clients_know_it(data)) for partition, data in pairs]
    topics = fetched.select(pairs)
    if fetched.session is not None:
        fetched.session.rest_idle(partition for partition, _ in pairs)
    endpoints = ()
    if version >= LEADER_ENDPOINTS_SINCE:
        leaders = {data.current_leader[0] for _, data in pairs if data.current_leader is not None}
        leaders.discard(-1)
        if leaders:
            found = context.node_endpoints(leaders, request.connection.listener)
            request.respond(fetch_codec.encode_response(version, 0, 0, fetched.session_id, topics, found))
            return
    request.respond(fetch_codec.encode_response(version, 0, 0, fetched.session_id, topics, endpoints))


def _as_old_clients_know_it(data: FetchPartitionData) -> FetchPartitionData:
    """Old clients do not know KAFKA_STORAGE_ERROR and would not retry. As in Kafka, their error makes them look for the leader."""
    if data.error != ErrorCode.KAFKA_STORAGE_ERROR:
        return data
    return data._replace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
