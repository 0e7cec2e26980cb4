"""WriteTxnMarkers (API 27), v1 to v2: a transaction coordinator ends transactions in the partitions that this broker leads (KIP-98).

Each marker is a control batch with the producer's id and epoch, appended with acks=all. Each partition has its own error:
UNKNOWN_TOPIC_OR_PARTITION without a replica here, INVALID_PRODUCER_EPOCH for an older epoch of the producer, and
TRANSACTION_COORDINATOR_FENCED for an older epoch of the coordinator; a coordinator repeats the request after all others. A producer id
or epoch below 0 gets INVALID_REQUEST. v2 says of which transaction version a marker is: from 2 on it is in the epoch after that of its
transaction, so a late one cannot end the producer's next transaction (KIP-1228). Brokers send v2, and ApiVersions does not list it, as
that of Kafka 4.1 does not. Markers in
`__consumer_offsets` also end the transactional commits of groups, when they are replicated.

Brokers send this request, and Kafka's tool that aborts a hanging transaction (`kafka-transactions abort`), to the listener for clients.
Every listener takes it. With an authorizer, it needs Alter or ClusterAction on the cluster. Without, a client that may write to a
partition can harm its transactions anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.network.request_channel import Request
from broker.replication.appending.appends import ACKS_ALL
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, StepsTo, by_topic, in_steps, parts_of, respond_later
from broker.storage.log_types import AppendOrigin
from broker.transactions.states import TransactionVersion
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.control_records import Marker, marker_batch
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

VERSIONS_SINCE = 2
MARKERS_AT_ONCE = 20
"""Markers that are appended between two pauses."""


class _Ending(NamedTuple):
    """One transaction that ends, and where. Each partition is named once."""

    producer_id: int
    producer_epoch: int
    marker: Marker
    origin: AppendOrigin
    partitions: tuple[TopicPartition, ...]


def write_txn_markers(context: ApiContext, request: Request) -> Further:
    return in_steps(context, request, _write(context, request))


def _write(context: ApiContext, request: Request) -> StepsTo[None]:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    endings: list[_Ending] = []
    for row in body.markers:
        endings.append((yield from _ending(row, header.api_version)))
        yield
    may_write = rights.on_cluster(context, request, Operation.ALTER, is_quiet=True) or rights.on_cluster(
        context, request, Operation.CLUSTER_ACTION
    )
    yield from _Writing(context, request).write(endings, may_write=may_write)


def _ending(row: Any, version: int) -> StepsTo[_Ending]:
    partitions: dict[TopicPartition, None] = {}
    for topic in row.topics:
        partitions.update(dict.fromkeys(TopicPartition(topic.name, number) for number in topic.partition_indexes))
        yield
    marker = Marker(row.transaction_result, row.coordinator_epoch)
    is_epoch_raised = version >= VERSIONS_SINCE and row.transaction_version >= TransactionVersion.TV_2
    origin = AppendOrigin.RAISED_EPOCH if is_epoch_raised else AppendOrigin.COORDINATOR
    return _Ending(row.producer_id, row.producer_epoch, marker, origin, tuple(partitions))


def _refusal(ending: _Ending) -> ErrorCode:
    is_valid = ending.producer_id >= 0 and ending.producer_epoch >= 0
    return ErrorCode.NONE if is_valid else ErrorCode.INVALID_REQUEST


_Errors = dict[int, dict[TopicPartition, ErrorCode]]
"""The errors of a producer's partitions. A producer may be named by several markers."""


def _note(errors: _Errors, ending: _Ending, found: dict[TopicPartition, ErrorCode]) -> None:
    errors.setdefault(ending.producer_id, {}).update(found)


class _Writing:
    """Appends the markers of a request. It is answered when all of them are replicated or have failed."""

    def __init__(self, context: ApiContext, request: Request) -> None:
        self._context = context
        self._request = request
        self._errors: _Errors = {}
        self._left = 1  # the steps, until they have come to the last marker

    def write(self, endings: Sequence[_Ending], *, may_write: bool) -> StepsTo[None]:
        for ending in endings:
            error = _refusal(ending) if may_write else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            for some in parts_of(ending.partitions, MARKERS_AT_ONCE):
                if error is ErrorCode.NONE:
                    self._append(ending, some)
                else:
                    _note(self._errors, ending, dict.fromkeys(some, error))
                yield
        self._one_is_done()

    def _append(self, ending: _Ending, partitions: Sequence[TopicPartition]) -> None:
        context = self._context
        here = [tp for tp in partitions if context.replica_manager.partitions.get(tp) is not None]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        _note(self._errors, ending, {tp: unknown for tp in partitions if tp not in here} if here != partitions else {})
        if not here:
            return
        batch = marker_batch(ending.producer_id, ending.producer_epoch, ending.marker, context.clock.wall_ms())
        self._left += 1
        context.replica_manager.appends.append(
            ACKS_ALL,
            context.config.request_timeout_ms,
            [(tp, memoryview(batch)) for tp in here],
            lambda results: self._appended(ending, here, results),
            origin=ending.origin,
        )

    def _appended(
        self, ending: _Ending, partitions: Sequence[TopicPartition], results: Sequence[ProducePartitionResult]
    ) -> None:
        errors = {tp: ErrorCode(result.error) for tp, result in zip(partitions, results, strict=True)}
        markers = {
            tp.partition: result.base_offset
            for tp, result in zip(partitions, results, strict=True)
            if tp.topic == OFFSETS_TOPIC and result.error == ErrorCode.NONE
        }
        if markers:
            try:
                self._context.groups.transaction_completed(ending.producer_id, markers, ending.marker.is_commit)
            except Exception:
                # The coordinator must repeat the marker; the markers of other partitions are written.
                log.exception("the transaction of producer %d cannot be ended in groups", ending.producer_id)
                failed = (TopicPartition(OFFSETS_TOPIC, number) for number in markers)
                errors.update(dict.fromkeys(failed, ErrorCode.UNKNOWN_SERVER_ERROR))
        _note(self._errors, ending, errors)
        self._one_is_done()

    def _one_is_done(self) -> None:
        self._left -= 1
        if self._left == 0:
            respond_later(self._context, self._request, _answer(self._request, self._errors))


def _answer(request: Request, errors: _Errors) -> Steps:
    markers = []
    for producer_id, found in errors.items():
        topics = yield from by_topic(found)
        markers.append(
            {
                "producer_id": producer_id,
                "topics": [
                    {"name": name, "partitions": [{"partition_index": p, "error_code": int(e)} for p, e in of_topic]}
                    for name, of_topic in topics.items()
                ],
            }
        )
        yield
    header = request.header
    return (yield from messages.encoding(header.api_key, header.api_version, {"markers": markers}))
