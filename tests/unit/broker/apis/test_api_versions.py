"""ApiVersions (API 18): what it says of the other APIs."""

from __future__ import annotations

import struct

from broker.apis.api_versions import response_body
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey

CORRELATION_ID = struct.pack(">i", 1)


def advertised() -> dict[int, tuple[int, int]]:
    _, answer = messages.decode_response(ApiKey.API_VERSIONS, 0, CORRELATION_ID + response_body(0, ErrorCode.NONE))
    return {int(row.api_key): (row.min_version, row.max_version) for row in answer.api_keys}


def test_what_is_served_is_advertised_and_the_reverse() -> None:
    served = {int(key): tuple(versions) for key, versions in SUPPORTED.items()}
    found = advertised()
    del served[ApiKey.PRODUCE], found[ApiKey.PRODUCE]
    assert found == served


def test_produce_is_advertised_from_v0() -> None:
    """librdkafka 2.0.2 compresses by gzip, snappy or lz4 only then: its issue 4956."""
    assert advertised()[ApiKey.PRODUCE] == (0, SUPPORTED[ApiKey.PRODUCE].max)
