"""EndTxn (API 26), v0 to v4: commits or aborts a transaction (TXN-1). Answered when the decision is replicated.

The markers are written afterwards. The next AddPartitionsToTxn waits for them; if that takes long, it gets CONCURRENT_TRANSACTIONS,
which clients retry.
PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v2.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.producer_errors import respond_with_error
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.recording import ABORT, COMMIT


def end_txn(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.END_TXN, header.api_version, request.frame, header.body_offset)
    producer = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    transactional_id, is_commit = str(body.transactional_id), bool(body.committed)

    def respond(error: ErrorCode) -> None:
        respond_with_error(request, ApiKey.END_TXN, error)
        if error is ErrorCode.NONE and context.recorder.recording is not None:
            context.recorder.recording.end(request, transactional_id, COMMIT if is_commit else ABORT)

    if not rights.on_transactional_id(context, request, Operation.WRITE, transactional_id):
        respond_with_error(request, ApiKey.END_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return
    context.transactions.end(transactional_id, producer, is_commit, respond)
