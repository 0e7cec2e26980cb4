"""ListTransactions (API 66), v0 to v2: the transactional ids whose coordinator is this broker (KIP-664).

Filters by state and producer id, v1 also by how long the transaction has run (KIP-994), v2 by a regular expression that the whole id must
match (KIP-1152). Names of states that do not exist are listed in the answer. An expression that is none gets
INVALID_REGULAR_EXPRESSION. While ids are being loaded, the answer is COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from broker.transactions.coordinator import TransactionFilter
from broker.transactions.states import TransactionState
from protocol.acls import Operation
from protocol.errors import KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.regular_expressions import compiled

DURATION_SINCE = 1
PATTERN_SINCE = 2
ROWS_IN_A_STEP = 200

_STATES = {state.value: state for state in TransactionState}


def list_transactions(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    names = dict.fromkeys(map(str, body.state_filters))
    wanted = TransactionFilter(
        frozenset(_STATES[name] for name in names if name in _STATES),
        bool(names),
        frozenset(map(int, body.producer_id_filters)),
        int(body.duration_filter) if header.api_version >= DURATION_SINCE else -1,
    )
    expression = body.transactional_id_pattern if header.api_version >= PATTERN_SINCE else None
    pattern = None
    error, listings = context.transactions.list_transactions(wanted)
    try:
        pattern = compiled(expression) if expression else None
    except KafkaError as refused:
        error, listings = refused.code, ()
    rows = []
    for number, listing in enumerate(listings, 1):
        if (
            listing is not None
            and (pattern is None or pattern.fullmatch(listing.transactional_id))
            and rights.on_transactional_id(
                context, request, Operation.DESCRIBE, listing.transactional_id, is_quiet=True
            )
        ):
            rows.append(
                {
                    "transactional_id": listing.transactional_id,
                    "producer_id": listing.producer_id,
                    "transaction_state": listing.state,
                }
            )
        if number % ROWS_IN_A_STEP == 0:
            yield
    answer = {
        "throttle_time": 0,
        "error_code": int(error),
        "unknown_state_filters": [name for name in names if name not in _STATES],
        "transaction_states": rows,
    }
    return (yield from messages.encoding(ApiKey.LIST_TRANSACTIONS, header.api_version, answer))
