"""SaslHandshake (API 17), v0 and v1, and SaslAuthenticate (API 36), v0 to v2: no listener has SASL.

Both are answered with ILLEGAL_SASL_STATE, as on a listener of Kafka's without SASL: the client is told why it cannot log in.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages

ANSWER = {
    "error_code": int(ErrorCode.ILLEGAL_SASL_STATE),
    "error_message": "this listener has no SASL: connect to it with security.protocol=PLAINTEXT",
    "mechanisms": [],
    "auth_bytes": b"",
    "session_lifetime": 0,
}


def sasl(context: ApiContext, request: Request) -> None:
    header = request.header
    messages.decode_request(header.api_key, header.api_version, request.frame, header.body_offset)
    request.respond_small(messages.encode_response(header.api_key, header.api_version, ANSWER))
