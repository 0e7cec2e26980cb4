"""Heartbeats by hand against kio, every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import heartbeat_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.heartbeat_codec import INSTANCE_ID_SINCE, HeartbeatRequest
from tests.support.kafka_values import durations_ms, error_codes, int32s, names

VERSIONS = range(SUPPORTED[ApiKey.HEARTBEAT].min, SUPPORTED[ApiKey.HEARTBEAT].max + 1)
requests = st.builds(HeartbeatRequest, names, int32s, names, st.none() | names)


def encoded(version: int, request: HeartbeatRequest) -> bytes:
    body = {
        "group_id": request.group_id,
        "generation_id": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
    }
    frame = messages.encode_request(ApiKey.HEARTBEAT, version, 1, None, body)
    return frame[parse_request_header(frame).body_offset :]


@pytest.mark.parametrize("version", VERSIONS)
@given(request_=requests)
@settings(max_examples=30, deadline=None)
def test_requests_are_read_as_kio_writes_them(version: int, request_: HeartbeatRequest) -> None:
    expected = request_ if version >= INSTANCE_ID_SINCE else request_._replace(instance_id=None)
    assert heartbeat_codec.decode_request(version, memoryview(encoded(version, request_)), 0) == expected


@pytest.mark.parametrize("version", VERSIONS)
@given(error=error_codes, throttle_ms=durations_ms)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(version: int, error: int, throttle_ms: int) -> None:
    body = {"throttle_time": throttle_ms, "error_code": error}
    expected = messages.encode_response(ApiKey.HEARTBEAT, version, body)
    assert heartbeat_codec.encode_response(version, error, throttle_ms) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_any_cut_and_any_byte_more_is_malformed(version: int) -> None:
    """BAD-10."""
    data = encoded(version, HeartbeatRequest("group", 7, "member", "instance"))
    for broken in (*(data[:end] for end in range(len(data))), data + b"\x00"):
        with pytest.raises(MalformedRequest):
            heartbeat_codec.decode_request(version, memoryview(broken), 0)
