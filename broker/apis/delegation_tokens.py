"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (APIs 38 to 41).

Versions: v1 to v3, v1 and v2, v1 and v2, v1 to v3. Every answer is DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: as in Kafka, a client of a
listener without authentication gets no tokens (KIP-48, `KafkaApis.allowTokenRequests`).
"""

from __future__ import annotations

from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

NO_TIME = -1


def delegation_tokens(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(request))


def _answer(request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    answer: dict[str, Any] = {
        "throttle_time": 0,
        "error_code": int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        "tokens": [],
        "expiry_timestamp": NO_TIME,
    }
    if header.api_key == ApiKey.CREATE_DELEGATION_TOKEN:
        owner = getattr(body, "owner_principal_name", None)
        requester = request.connection.principal
        answer |= {
            "principal_type": body.owner_principal_type or "" if owner else requester.kind,
            "principal_name": owner or requester.name,
            "token_requester_principal_type": requester.kind,
            "token_requester_principal_name": requester.name,
            "issue_timestamp": NO_TIME,
            "max_timestamp": NO_TIME,
            "token_id": "",
            "hmac": b"",
        }
    return (yield from messages.encoding(header.api_key, header.api_version, answer))
