"""InitProducerId (API 22), v0 to v6: an id and an epoch for an idempotent (LOG-5) or transactional producer (TXN-1, TXN-2).

Without a transactional id the answer is always a new id and epoch 0, even for a producer that sends its old id and epoch (KIP-360, v3), as
in Kafka 3.9: such a producer raises its epoch itself. With a transactional id the coordinator of the id answers: the next epoch, which
fences every earlier producer. PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v4. An id without an epoch, or an epoch without an id, gets
INVALID_REQUEST.

v6 may ask for a two-phase commit (KIP-939). As by a Kafka 4.1 with its default settings, that gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
and the wish to keep a prepared transaction UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import logging
from typing import Any

from broker.network.request_channel import Request
from broker.requests import producer_errors, rights
from broker.requests.context import ApiContext
from broker.transactions.coordinator import ProducerAnswer
from broker.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.recording import INIT

log = logging.getLogger(__name__)

OLD_ID_SINCE = 3
TWO_PHASES_SINCE = 6
FIRST_EPOCH = 0


async def init_producer_id(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.INIT_PRODUCER_ID, header.api_version, request.frame, header.body_offset)
    if body.transactional_id is not None:
        if not rights.on_transactional_id(context, request, Operation.WRITE, str(body.transactional_id)):
            _respond(request, ProducerAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            return
    elif not (
        rights.on_some_topic(context, request, Operation.WRITE)
        or rights.on_cluster(context, request, Operation.IDEMPOTENT_WRITE)
    ):
        _respond(request, ProducerAnswer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return
    expected: ProducerIdAndEpoch | None = None
    if header.api_version >= OLD_ID_SINCE and (body.producer_id, body.producer_epoch) != (-1, -1):
        expected = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
        if expected.producer_id == NO_PRODUCER_ID or expected.epoch == NO_PRODUCER_EPOCH:
            log.info("%s refused: a producer id and a producer epoch must be sent together", request)
            _respond(request, ProducerAnswer(ErrorCode.INVALID_REQUEST))
            return
    if body.transactional_id is None:
        _respond(request, await _idempotent(context, request))
    elif body.transactional_id and (refusal := _refusal_of_two_phases(header.api_version, body)) is not None:
        _respond(request, ProducerAnswer(refusal))
    else:
        transactional_id, timeout_ms = str(body.transactional_id), messages.milliseconds(body.transaction_timeout)

        def respond(answer: ProducerAnswer) -> None:
            _respond(request, answer)
            if answer.error is ErrorCode.NONE and context.recorder.recording is not None:
                context.recorder.recording.end(request, transactional_id, INIT)

        await context.transactions.init_producer_id(transactional_id, timeout_ms, expected, respond)


def _refusal_of_two_phases(version: int, body: Any) -> ErrorCode | None:
    """As Kafka's TransactionCoordinator, if `transaction.two.phase.commit.enable` is false."""
    if version >= TWO_PHASES_SINCE and body.enable2_pc:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if version >= TWO_PHASES_SINCE and body.keep_prepared_txn:
        return ErrorCode.UNSUPPORTED_VERSION
    return None


async def _idempotent(context: ApiContext, request: Request) -> ProducerAnswer:
    try:
        producer_id = await context.producer_ids.next_id()
    except KafkaError as error:
        log.info("%s refused: %s", request, error)
        return ProducerAnswer(error.code)
    return ProducerAnswer(ErrorCode.NONE, ProducerIdAndEpoch(producer_id, FIRST_EPOCH))


def _respond(request: Request, answer: ProducerAnswer) -> None:
    version = request.header.api_version
    error, producer = answer
    body = {
        "throttle_time": 0,
        "error_code": int(producer_errors.for_version(ApiKey.INIT_PRODUCER_ID, version, error)),
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }
    request.respond_small(messages.encode_response(ApiKey.INIT_PRODUCER_ID, version, body))
