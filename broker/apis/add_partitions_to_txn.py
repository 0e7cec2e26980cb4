"""AddPartitionsToTxn (API 24), v0 to v5: adds partitions to a transaction, or asks whether they are in it (TXN-1, TXN-4).

v0 to v3 are of producers: one transaction. v4 and v5 are of brokers, with many transactions; each adds, or only verifies (KIP-890). They
are answered when all transactions are, and with CLUSTER_AUTHORIZATION_FAILED on a listener for clients, if the brokers have their own.

If a partition does not exist, or the client may not write to its topic, it gets the error, the others OPERATION_NOT_ATTEMPTED, and nothing
is added. A verification does not look: its partition exists at the broker that asks, and this broker may not have heard of it yet.
Brokers add in transaction version 2: a partition when it is written to, for producers that do not send this request any more.
PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v2. If the previous transaction is not complete yet, the request waits for that for a
moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from broker.network.request_channel import Request
from broker.requests import producer_errors, rights
from broker.requests.context import ApiContext
from broker.requests.followers import may_ask_as_replica
from broker.requests.steps import Further, StepsTo, in_steps, respond_with
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import TopicPartition

BROKERS_SINCE = 4
PARTITIONS_IN_A_STEP = 200

Errors = Mapping[TopicPartition, ErrorCode]


class _Asked(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    verify_only: bool
    topics: Collection[Any]
    version: TransactionVersion


def add_partitions_to_txn(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _begin(context, request))


def _begin(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    version = header.api_version
    body = yield from messages.decoding(header.api_key, version, request.frame, header.body_offset)
    if version < BROKERS_SINCE:
        producer = ProducerIdAndEpoch(int(body.v3_and_below_producer_id), int(body.v3_and_below_producer_epoch))
        transactional_id = str(body.v3_and_below_transactional_id)
        asked = _Asked(transactional_id, producer, False, body.v3_and_below_topics, TransactionVersion.TV_0)
        answers = _Answers(context, request, 1)
        if rights.on_transactional_id(context, request, Operation.WRITE, asked.transactional_id):
            topics = (str(topic.name) for topic in asked.topics)
            denied = yield from rights.denied(context, request, Operation.WRITE, ResourceType.TOPIC, topics)
            yield from _serve(
                context, asked, answers, denied | (INTERNAL_TOPICS if context.authorizer else frozenset())
            )
        else:
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            answers.add(asked.transactional_id, dict.fromkeys(_partitions(asked.topics), error))
    elif not may_ask_as_replica(context, request) or not rights.on_cluster(context, request, Operation.CLUSTER_ACTION):
        _respond(context, request, {}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    else:
        transactions = {str(row.transactional_id): row for row in body.transactions}
        answers = _Answers(context, request, len(transactions))
        for transactional_id, row in transactions.items():
            producer = ProducerIdAndEpoch(int(row.producer_id), int(row.producer_epoch))
            asked = _Asked(transactional_id, producer, bool(row.verify_only), row.topics, TransactionVersion.TV_2)
            yield from _serve(context, asked, answers)
            yield


class _Answers:
    """Answers the request when each of its transactions has an answer."""

    def __init__(self, context: ApiContext, request: Request, count: int) -> None:
        self._context = context
        self._request = request
        self._count = count
        self._found: dict[str, Errors] = {}
        if not count:
            _respond(context, request, {})

    def add(self, transactional_id: str, errors: Errors) -> None:
        self._found[transactional_id] = errors
        if len(self._found) == self._count:
            _respond(self._context, self._request, self._found)


def _serve(
    context: ApiContext, asked: _Asked, answers: _Answers, denied: frozenset[str] = frozenset()
) -> StepsTo[None]:
    """`denied`: topics to which the client may not write."""
    partitions: dict[TopicPartition, None] = {}
    wrong: dict[TopicPartition, ErrorCode] = {}
    for number, tp in enumerate(_partitions(asked.topics), 1):
        partitions[tp] = None
        if tp.topic in denied:
            wrong[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not asked.verify_only and context.metadata.partition(tp) is None:
            wrong[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if number % PARTITIONS_IN_A_STEP == 0:
            yield
    transactional_id = asked.transactional_id
    if wrong:
        answers.add(transactional_id, {tp: wrong.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED) for tp in partitions})
    elif asked.verify_only:
        answers.add(transactional_id, context.transactions.verify(transactional_id, asked.producer, partitions))
    else:
        context.transactions.add_partitions(
            transactional_id,
            asked.producer,
            partitions,
            lambda error: answers.add(transactional_id, dict.fromkeys(partitions, error)),
            asked.version,
        )


def _partitions(topics: Collection[Any]) -> Iterator[TopicPartition]:
    for topic in topics:
        for number in topic.partitions:
            yield TopicPartition(str(topic.name), int(number))


def _respond(
    context: ApiContext, request: Request, found: Mapping[str, Errors], whole: ErrorCode = ErrorCode.NONE
) -> None:
    version = request.header.api_version
    body: dict[str, Any] = {"throttle_time": 0, "error_code": int(whole)}
    if version < BROKERS_SINCE:
        body["results_by_topic_v3_and_below"] = [row for errors in found.values() for row in _rows(errors, version)]
    else:
        body["results_by_transaction"] = (
            {"transactional_id": transactional_id, "topic_results": _rows(errors, version)}
            for transactional_id, errors in found.items()
        )
    respond_with(context, request, ApiKey.ADD_PARTITIONS_TO_TXN, body)


def _rows(errors: Errors, version: int) -> Iterator[dict[str, Any]]:
    topics: dict[str, list[tuple[int, ErrorCode]]] = {}
    for tp, error in errors.items():
        known = producer_errors.for_version(ApiKey.ADD_PARTITIONS_TO_TXN, version, error)
        topics.setdefault(tp.topic, []).append((tp.partition, known))
    for name, rows in topics.items():
        yield {
            "name": name,
            "results_by_partition": (
                {"partition_index": number, "partition_error_code": int(error)} for number, error in rows
            ),
        }
