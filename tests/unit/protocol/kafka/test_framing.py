"""Frames and headers (BAD-3, BAD-6..8, BAD-10), the headers against kio's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import framing, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header, response_header
from tests.support.mutations import mutated

SERVED = [(key, version) for key, served in SUPPORTED.items() for version in range(served.min, served.max + 1)]


@pytest.mark.parametrize(("key", "version"), SERVED)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "käse", "x" * 501, "x" * 502, "x" * 503, "y" * 32_767])
def test_a_header_is_read_as_it_was_written(key: ApiKey, version: int, client_id: str | None) -> None:
    flexible = framing.is_flexible(key, version)
    data = framing.request_header(key, version, 77, client_id, flexible=flexible) + b"body"
    for frame in data, memoryview(data):
        header = parse_request_header(frame)
        found = header.api_key, header.api_version, header.correlation_id, header.client_id, header.body_offset
        assert found == (key, version, 77, client_id, len(data) - 4)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_flexible_versions_are_kios(key: ApiKey, version: int) -> None:
    schema = messages.request_schema(key, version)
    assert framing.is_flexible(key, version) == schema.__flexible__
    response = messages.response_schema(key, version)
    has_tags = response.__header_schema__.__version__ == 1
    assert response_header(key, version, -2) == b"\xff\xff\xff\xfe" + (b"\x00" if has_tags else b"")


@pytest.mark.parametrize(("key", "version"), [(999, 3), (-1, 0), (ApiKey.API_VERSIONS, 99), (ApiKey.PRODUCE, -1)])
def test_an_unknown_key_or_version_is_read_as_far_as_it_goes(key: int, version: int) -> None:
    data = framing.request_header(key, version, 5, "c", flexible=False) + b"\x00"
    header = parse_request_header(data)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (key, version, 5, "c")


def test_unknown_tagged_fields_are_skipped() -> None:
    data = framing.request_header(ApiKey.METADATA, 12, 1, None, flexible=False) + b"\x02\x05\x01x\x81\x01\x00" + b"body"
    assert data[parse_request_header(data).body_offset :] == b"body"


V1, V12 = b"\x00\x03\x00\x01\x00\x00\x00\x01", b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff"
BROKEN = {
    "empty": b"",
    "cut": V1,
    "long client id": V1 + b"\x7f\xffabc",
    "size -2": V1 + b"\xff\xfe",
    "no tags": V12,
    "many tags": V12 + b"\xff\xff\xff\xff\x0f",
    "long tag": V12 + b"\x01\x00\xff\xff\xff\xff\x0f",
    "long varint": V12 + b"\xff\xff\xff\xff\xff\xff",
}


def test_bytes_of_a_client_id_that_are_not_utf_8_are_replaced() -> None:
    assert parse_request_header(V1 + b"\x00\x02a\xff").client_id == "a\ufffd"


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_header_is_malformed(data: bytes) -> None:
    for frame in data, memoryview(data):
        with pytest.raises(MalformedRequest):
            parse_request_header(frame)


@given(st.data())
@settings(max_examples=150)
def test_nothing_but_malformed_comes_out_of_a_broken_header(data: st.DataObject) -> None:
    good = framing.request_header(ApiKey.METADATA, 12, 1, "client", flexible=False) + b"\x01\x05\x03abc"
    try:
        header = parse_request_header(memoryview(data.draw(mutated(good))))
    except MalformedRequest:
        return
    assert header.body_offset >= 10


@given(st.integers(0, 2**32 - 1))
def test_a_varint_is_read_as_it_was_written(number: int) -> None:
    data = framing.unsigned_varint(number)
    assert framing.read_unsigned_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))


@given(st.lists(st.binary(max_size=20)))
def test_a_frame_begins_with_its_length(parts: list[bytes]) -> None:
    whole = b"".join(framing.frame(parts))
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    assert whole[4:] == b"".join(parts)
