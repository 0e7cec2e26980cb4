"""Unknown tagged fields are skipped, up to a limit and only in ascending order (KIP-482)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import (
    TAGGED_FIELDS_MAX,
    MalformedRequest,
    parse_request_header,
    skip_tagged_fields,
    unsigned_varint,
)
from protocol.kafka.lengths import UNKNOWN_TAGS_MAX, checked

API_VERSIONS_HEADER = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 1, -1)
METADATA_VERSION = 12

Reader = Callable[[bytes], None]


def tagged(tags: Sequence[int], content: bytes = b"") -> bytes:
    rows = (unsigned_varint(tag) + unsigned_varint(len(content)) + content for tag in tags)
    return unsigned_varint(len(tags)) + b"".join(rows)


def read_header(tags: bytes) -> None:
    parse_request_header(API_VERSIONS_HEADER + tags)


def read_by_hand(tags: bytes) -> None:
    assert skip_tagged_fields(tags, 0) == len(tags)


def read_by_schema(tags: bytes) -> None:
    messages.decode_request(ApiKey.API_VERSIONS, 3, memoryview(b"\x02a\x02b" + tags), 0)


def read_fetch(tags: bytes) -> None:
    body = struct.pack(">iiibii", 0, 0, 0, 0, 0, -1) + b"\x01\x01\x01" + tags
    fetch_codec.decode_request(15, memoryview(body), 0)


READERS: list[Reader] = [read_header, read_by_hand, read_by_schema, read_fetch]


@pytest.mark.parametrize("read", READERS)
def test_unknown_tags_are_skipped(read: Reader) -> None:
    read(tagged(range(100, 100 + TAGGED_FIELDS_MAX), b"content"))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "tags",
    [
        tagged(range(100, 101 + TAGGED_FIELDS_MAX)),
        tagged(range(100_000)),
        tagged((101, 101)),
        tagged((101, 100)),
        tagged((100, 101), b"x")[:-1],
    ],
    ids=["one too many", "a hundred thousand", "one twice", "out of order", "cut short"],
)
def test_too_many_repeated_or_unordered_tags_are_malformed(read: Reader, tags: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read(tags)


@pytest.mark.parametrize(
    ("topics", "is_taken"),
    [(UNKNOWN_TAGS_MAX // TAGGED_FIELDS_MAX, True), (UNKNOWN_TAGS_MAX // TAGGED_FIELDS_MAX + 1, False)],
)
def test_unknown_tags_are_counted_over_a_whole_frame(topics: int, is_taken: bool) -> None:
    topic = bytes(16) + b"\x02t" + tagged(range(TAGGED_FIELDS_MAX))
    body = unsigned_varint(topics + 1) + topic * topics + b"\x01\x01\x00"
    schema = messages.request_schema(ApiKey.METADATA, METADATA_VERSION)
    if is_taken:
        assert len(checked(schema, body, 0)) == len(body) - topics * (len(tagged(range(TAGGED_FIELDS_MAX))) - 1)
    else:
        with pytest.raises(MalformedRequest):
            checked(schema, body, 0)
