"""ApiVersions (API 18), v0 to v4: lists exactly the APIs that are served, and their versions (`api_keys.ADVERTISED`).

An unknown version gets a v0 answer with UNSUPPORTED_VERSION (BAD-8), an illegal client name INVALID_REQUEST (BAD-9).
"""

from __future__ import annotations

import re
from functools import cache

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ADVERTISED, SUPPORTED, ApiKey
from protocol.kafka.framing import RequestHeader
from protocol.types import Buffer

CLIENT_NAME_SINCE = 3
CLIENT_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(context: ApiContext, request: Request) -> None:
    version = request.header.api_version
    request.respond_small(response_body(version, _error(request.header, request.frame)))


def answer_before_login(header: RequestHeader, frame: Buffer) -> tuple[bytes, bool]:
    """An `AnswerApiVersions`, for a listener with SASL."""
    if not SUPPORTED[ApiKey.API_VERSIONS].min <= header.api_version <= SUPPORTED[ApiKey.API_VERSIONS].max:
        header.api_version = 0
        return response_body(0, ErrorCode.UNSUPPORTED_VERSION), False
    error = _error(header, frame)
    return response_body(header.api_version, error), error is ErrorCode.NONE


def _error(header: RequestHeader, frame: Buffer) -> ErrorCode:
    version = header.api_version
    body = messages.decode_request(ApiKey.API_VERSIONS, version, frame, header.body_offset)
    if version >= CLIENT_NAME_SINCE and not (
        CLIENT_NAME.fullmatch(body.client_software_name) and CLIENT_NAME.fullmatch(body.client_software_version)
    ):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def refuse_version(request: Request) -> None:
    """Answers an unknown version of ApiVersions in v0, with the versions of ApiVersions that are served."""
    request.header.api_version = 0
    request.respond_small(response_body(0, ErrorCode.UNSUPPORTED_VERSION))


@cache
def response_body(version: int, error: ErrorCode) -> bytes:
    served = ADVERTISED.items()
    if error is ErrorCode.INVALID_REQUEST:
        served = {}.items()
    elif error is ErrorCode.UNSUPPORTED_VERSION:
        served = {ApiKey.API_VERSIONS: SUPPORTED[ApiKey.API_VERSIONS]}.items()
    rows = [{"api_key": key.value, "min_version": low, "max_version": high} for key, (low, high) in sorted(served)]
    return messages.encode_response(
        ApiKey.API_VERSIONS, version, {"error_code": int(error), "api_keys": rows, "throttle_time": 0}
    )
