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

API_VERSIONS_HEADER = struct.pack(">hhih", ApiKey.API_VERSIONS, 3, 1, -1)
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
