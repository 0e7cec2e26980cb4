"""Errors of transactions for producers that are older than the error (KIP-588)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from broker.network.request_channel import Request
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

FENCED_SINCE: Mapping[ApiKey, int] = MappingProxyType(
    {ApiKey.INIT_PRODUCER_ID: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 2, ApiKey.ADD_OFFSETS_TO_TXN: 2, ApiKey.END_TXN: 2}
)
"""The first version of each API whose clients know PRODUCER_FENCED."""


def for_version(api_key: ApiKey, version: int, error: ErrorCode) -> ErrorCode:
    """INVALID_PRODUCER_EPOCH takes the place of PRODUCER_FENCED; other errors stay as they are."""
    is_unknown = error is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE[api_key]
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else error


def respond_with_error(request: Request, api_key: ApiKey, error: ErrorCode) -> None:
    """The answer of an API that has only an error."""
    version = request.header.api_version
    answer = {"throttle_time": 0, "error_code": int(for_version(api_key, version, error))}
    request.respond_small(messages.encode_response(api_key, version, answer))
