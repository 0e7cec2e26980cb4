"""FindCoordinator responses for many keys by hand against kio, every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import find_coordinator_codec as codec
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from tests.support.kafka_values import error_codes, int32s, names

VERSIONS = range(4, SUPPORTED[ApiKey.FIND_COORDINATOR].max + 1)
KEYS = ("key", "error_code", "error_message", "node_id", "host", "port")


@pytest.mark.parametrize("version", VERSIONS)
@given(found=st.lists(st.tuples(names, error_codes, st.none() | names, int32s, names, int32s), max_size=3))
@settings(max_examples=40)
def test_responses(version: int, found: list[Any]) -> None:
    body = {"throttle_time": 0, "coordinators": [dict(zip(KEYS, row, strict=True)) for row in found]}
    encoded = codec.encode_response([codec.encode_coordinator(*row) for row in found])
    assert encoded == messages.encode_response(ApiKey.FIND_COORDINATOR, version, body)
