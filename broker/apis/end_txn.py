"""EndTxn (API 26), v0 to v4: commits or aborts a transaction (TXN-1). Answered when the decision is replicated.

The markers are written afterwards. The next AddPartitionsToTxn waits for them; if that takes long, it gets CONCURRENT_TRANSACTIONS,
which clients retry.
PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v2.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.producer_errors import respond_with_error
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey


def end_txn(context: ApiContext, request: Request) -> None:
    header = request.header
    body = messages.decode_request(ApiKey.END_TXN, header.api_version, request.frame, header.body_offset)
    producer = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    context.transactions.end(
        str(body.transactional_id),
        producer,
        bool(body.committed),
        lambda error: respond_with_error(request, ApiKey.END_TXN, error),
    )
