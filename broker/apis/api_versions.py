"""ApiVersions (API 18), v0 to v4: lists exactly the APIs that are served at the broker's level, and their versions (`api_keys.ADVERTISED`).

From v3 on, it also names the features of that level (KIP-584, `features.FEATURES`). One that may be off (version 0) is a supported one
from v4 on only: older clients take 0 for an error (KAFKA-17011). Their epoch is that of the settings that say the level: of all that it has
heard, a client believes the answer with the highest one.

An unknown version gets a v0 answer with UNSUPPORTED_VERSION (BAD-8), an illegal client name INVALID_REQUEST (BAD-9).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ADVERTISED, SERVED, ApiKey, ApiLevel
from protocol.kafka.features import FEATURES
from protocol.kafka.framing import RequestHeader
from protocol.types import Buffer, ClientSoftware

CLIENT_NAME_SINCE = 3
FEATURES_SINCE = 3
FEATURES_FROM_0_SINCE = 4
CLIENT_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(context: ApiContext, request: Request) -> None:
    version = request.header.api_version
    software = _software(request.header, request.frame)
    if software is not None:
        request.connection.software = software
    error = ErrorCode.INVALID_REQUEST if software is None else ErrorCode.NONE
    request.respond_small(response_body(context.api_level, version, error, context.configs.features_epoch))


def answer_before_login(
    level: ApiLevel, header: RequestHeader, frame: Buffer, features_epoch: int = 0
) -> tuple[bytes, ClientSoftware | None]:
    """With its first argument given, an `AnswerApiVersions`, for a listener with SASL."""
    served = SERVED[level][ApiKey.API_VERSIONS]
    if not served.min <= header.api_version <= served.max:
        header.api_version = 0
        return response_body(level, 0, ErrorCode.UNSUPPORTED_VERSION), None
    software = _software(header, frame)
    error = ErrorCode.INVALID_REQUEST if software is None else ErrorCode.NONE
    return response_body(level, header.api_version, error, features_epoch), software


def _software(header: RequestHeader, frame: Buffer) -> ClientSoftware | None:
    """None: it has an illegal name or version."""
    version = header.api_version
    body = messages.decode_request(ApiKey.API_VERSIONS, version, frame, header.body_offset)
    if version < CLIENT_NAME_SINCE:
        return ClientSoftware()
    found = ClientSoftware(body.client_software_name, body.client_software_version)
    return found if all(map(CLIENT_NAME.fullmatch, found)) else None


def refuse_version(level: ApiLevel, request: Request) -> None:
    """Answers an unknown version of ApiVersions in v0, with the versions of ApiVersions that are served."""
    request.header.api_version = 0
    request.respond_small(response_body(level, 0, ErrorCode.UNSUPPORTED_VERSION))


@lru_cache(32)
def response_body(level: ApiLevel, version: int, error: ErrorCode, features_epoch: int = 0) -> bytes:
    served = ADVERTISED[level].items()
    if error is ErrorCode.INVALID_REQUEST:
        served = {}.items()
    elif error is ErrorCode.UNSUPPORTED_VERSION:
        served = {ApiKey.API_VERSIONS: SERVED[level][ApiKey.API_VERSIONS]}.items()
    rows = [{"api_key": key.value, "min_version": low, "max_version": high} for key, (low, high) in sorted(served)]
    body: dict[str, Any] = {"error_code": int(error), "api_keys": rows, "throttle_time": 0}
    if version >= FEATURES_SINCE and error is ErrorCode.NONE:
        body |= _features(level, version, features_epoch)
    return messages.encode_response(ApiKey.API_VERSIONS, version, body)


def _features(level: ApiLevel, version: int, epoch: int) -> dict[str, Any]:
    features = FEATURES[level]
    return {
        "supported_features": [
            {"name": name, "min_version": feature.supported.min, "max_version": feature.supported.max}
            for name, feature in features.items()
            if feature.supported.min > 0 or version >= FEATURES_FROM_0_SINCE
        ],
        "finalized_features_epoch": epoch,
        "finalized_features": [
            {"name": name, "max_version_level": feature.finalized, "min_version_level": feature.finalized}
            for name, feature in features.items()
        ],
    }
