"""EndTxn (API 26), v0 to v5: commits or aborts a transaction (TXN-1). Answered when the decision is replicated.

The markers are written afterwards. The next AddPartitionsToTxn waits for them; if that takes long, it gets CONCURRENT_TRANSACTIONS,
which clients retry.
PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v2. v5 raises the producer's epoch, and answers with the producer's id and epoch for its
next transaction (transaction version 2, KIP-890).
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.producer_errors import for_version, respond_with_error
from broker.requests.steps import Further
from broker.transactions.coordinator import ProducerAnswer
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.recording import ABORT, COMMIT

EPOCH_RAISED_SINCE = 5


def end_txn(context: ApiContext, request: Request) -> Further:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.END_TXN, version, request.frame, header.body_offset)
    producer = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    transactional_id, is_commit = str(body.transactional_id), bool(body.committed)

    def respond(answer: ProducerAnswer) -> None:
        if version < EPOCH_RAISED_SINCE:
            respond_with_error(request, ApiKey.END_TXN, answer.error)
        else:
            _respond(request, answer)
        if answer.error is ErrorCode.NONE and context.recorder.recording is not None:
            context.recorder.recording.end(request, transactional_id, COMMIT if is_commit else ABORT)

    if not rights.on_transactional_id(context, request, Operation.WRITE, transactional_id):
        respond(ProducerAnswer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        return None
    if version >= EPOCH_RAISED_SINCE:
        return context.transactions.end_and_raise(transactional_id, producer, is_commit, respond)
    context.transactions.end(transactional_id, producer, is_commit, lambda error: respond(ProducerAnswer(error)))
    return None


def _respond(request: Request, answer: ProducerAnswer) -> None:
    version = request.header.api_version
    body = {
        "throttle_time": 0,
        "error_code": int(for_version(ApiKey.END_TXN, version, answer.error)),
        "producer_id": answer.producer.producer_id,
        "producer_epoch": answer.producer.epoch,
    }
    request.respond_small(messages.encode_response(ApiKey.END_TXN, version, body))
