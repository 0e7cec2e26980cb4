"""SaslHandshake (API 17), v0 and v1, and SaslAuthenticate (API 36), v0 to v2, where no login is expected.

`broker/network/login_gate.py` takes them on a listener with SASL. What comes here, on another listener or from a client that need not log
in again, is answered with ILLEGAL_SASL_STATE, as by Kafka: the client is told why it cannot log in.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages

ANSWER = {
    "error_code": int(ErrorCode.ILLEGAL_SASL_STATE),
    "error_message": "no login is expected here: this listener has no SASL, or the client has logged in and need not do so again",
    "mechanisms": [],
    "auth_bytes": b"",
    "session_lifetime": 0,
}


def sasl(context: ApiContext, request: Request) -> None:
    header = request.header
    messages.decode_request(header.api_key, header.api_version, request.frame, header.body_offset)
    request.respond_small(messages.encode_response(header.api_key, header.api_version, ANSWER))
