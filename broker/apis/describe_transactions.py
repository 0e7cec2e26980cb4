"""DescribeTransactions (API 65), v0: the state of transactional ids whose coordinator is this broker (KIP-664).

While markers are being written, only the partitions without a marker are listed. An id that is named twice is answered once.
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from broker.transactions.coordinator import TransactionDescription
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey


def describe_transactions(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    ids = dict.fromkeys(map(str, body.transactional_ids))
    rows = (_row(context, request, transactional_id) for transactional_id in ids)
    answer = {"throttle_time": 0, "transaction_states": rows}
    return (yield from messages.encoding(ApiKey.DESCRIBE_TRANSACTIONS, header.api_version, answer))


def _row(context: ApiContext, request: Request, transactional_id: str) -> dict[str, Any]:
    """Topics that the client may not describe are left out."""
    if rights.on_transactional_id(context, request, Operation.DESCRIBE, transactional_id):
        described = context.transactions.describe(transactional_id)
    else:
        described = TransactionDescription(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    row: dict[str, Any] = {
        "error_code": int(described.error),
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": (),
    }
    metadata = described.metadata
    if described.error is ErrorCode.NONE and metadata is not None:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(described.partitions):
            if rights.on_topic(context, request, Operation.DESCRIBE, topic, is_quiet=True):
                topics.setdefault(topic, []).append(partition)
        row |= {
            "transaction_state": metadata.state.value,
            "transaction_timeout": metadata.timeout_ms,
            "transaction_start_time": metadata.start_ms,
            "producer_id": metadata.producer_id,
            "producer_epoch": metadata.producer_epoch,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }
    return row
