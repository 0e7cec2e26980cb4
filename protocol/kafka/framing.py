"""Frames and headers of Kafka's protocol. Pure.

    request   int32 length | int16 api key | int16 version | int32 correlation id | nullable string client id | (tags) | body
    response  int32 length | int32 correlation id | (tags) | body

Tags exist only in flexible versions (KIP-482). The header of an ApiVersions response never has them, because a client must read this
response before it knows what the broker supports.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from librt.strings import read_i16_be, read_i32_be

from protocol.kafka.api_keys import FIRST_FLEXIBLE, ApiKey
from protocol.types import Buffer


class StoredBytes:
    """Bytes of an answer that are in a file, all of them in memory. The kernel can send them from there (sendfile).

    `position` is right only until the file may change: whoever gets them sends or reads them in the same turn of the loop.
    """

    __slots__ = ("position", "size")

    def __init__(self, position: int, size: int) -> None:
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def descriptor(self) -> int:
        """The open file. Not to be kept: the number may become that of another file. Raises KafkaError if the disk fails."""
        raise NotImplementedError

    def read(self, start: int = 0) -> Buffer:
        """The bytes from number `start` on. Raises KafkaError if the disk fails."""
        raise NotImplementedError


Part = Buffer | StoredBytes
"""A part of an answer."""


def in_memory(parts: Sequence[Part], start: int = 0) -> list[Buffer]:
    """The bytes of the parts from number `start` on, StoredBytes read. Raises KafkaError if the disk fails."""
    found: list[Buffer] = []
    for part in parts:
        size = len(part)
        if start and start >= size:
            start -= size
            continue
        if isinstance(part, StoredBytes):
            found.append(part.read(start))
        else:
            found.append(memoryview(part)[start:] if start else part)
        start = 0
    return found


TAGGED_FIELDS_MAX: Final = 16
"""Limit of tagged fields in one place. No message of Kafka has more than four; skipping a field takes a third of a microsecond."""

HEAD_SIZE: Final = 512
"""Bytes of a large frame in which its numbers are looked for."""

_HEADER: Final = struct.Struct(">hhih")
_FIXED_SIZE: Final = 10
"""Bytes of a request header before the client id."""
_FIRST_FLEXIBLE: Final = dict(FIRST_FLEXIBLE)
_LENGTH: Final = struct.Struct(">i")
_SMALL_VARINTS: Final = tuple(bytes((number,)) for number in range(0x80))


class MalformedRequest(ValueError):
    """Bytes that are not a valid message. A broker closes the connection of such a request (BAD-1, 3, 10, 11)."""


class RequestHeader:
    """The header of a request. `body_offset` is the position of the body in the frame, which starts after the frame's length."""

    __slots__ = ("_client_id", "api_key", "api_version", "body_offset", "correlation_id")

    def __init__(
        self, api_key: int, api_version: int, correlation_id: int, client_id: bytes | None, body_offset: int
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.body_offset = body_offset
        self._client_id = client_id

    @property
    def client_id(self) -> str | None:
        """Decoded when it is asked for. Bytes that are not UTF-8 are replaced, as in Kafka."""
        return None if self._client_id is None else self._client_id.decode("utf-8", "replace")


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether this version of the API has tagged fields. False for unknown API keys."""
    first = FIRST_FLEXIBLE.get(api_key)
    return first is not None and api_version >= first


def head_of(frame: Buffer, size: int = HEAD_SIZE) -> bytes:
    """The start of a frame, for readers of `librt`, which take bytes only: the frame itself, or a copy of its first `size` bytes."""
    return frame if isinstance(frame, bytes) else bytes(frame[:size])


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request frame. Raises MalformedRequest if it is cut off or contains an impossible length.

    The header of an unknown key is read up to the client id; the caller decides what to answer (BAD-6..8).
    """
    head = head_of(frame)
    if len(head) < _FIXED_SIZE:
        raise MalformedRequest(f"a request header in {len(frame)} bytes")
    api_key = read_i16_be(head, 0)
    api_version = read_i16_be(head, 2)
    size: int = read_i16_be(head, 8)
    end = _FIXED_SIZE
    client_id: bytes | None = None
    if size >= 0:
        end += size
        if end >= len(head):
            if end > len(frame):
                raise MalformedRequest(f"a client id of {size} bytes in a frame of {len(frame)}")
            head = head_of(frame, end + 1)
        client_id = head[_FIXED_SIZE:end]
    elif size != -1:
        raise MalformedRequest(f"a client id of {size} bytes")
    first_flexible = _FIRST_FLEXIBLE.get(api_key)
    if first_flexible is not None and api_version >= first_flexible:
        # The most common case is no tagged field.
        end = end + 1 if end < len(head) and head[end] == 0 else skip_tagged_fields(frame, end)
    return RequestHeader(api_key, api_version, read_i32_be(head, 4), client_id, end)


def read_unsigned_varint(frame: Buffer, at: int) -> tuple[int, int]:
    """(number, offset after it). Raises MalformedRequest if the number has more than 5 bytes or exceeds the frame."""
    value = shift = 0
    try:
        while True:
            byte = frame[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 28:
                raise MalformedRequest("a varint of more than 5 bytes")
    except IndexError:
        raise MalformedRequest("the frame ends inside a number") from None


def unsigned_varint(number: int) -> bytes:
    """`number` (>= 0) in base 128, low digits first."""
    if number < 0x80:
        return _SMALL_VARINTS[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_tag_count(frame: Buffer, at: int) -> tuple[int, int]:
    """(number of tagged fields at `at`, offset of the first). Raises MalformedRequest for more than TAGGED_FIELDS_MAX."""
    count, at = read_unsigned_varint(frame, at)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedRequest(f"{count} tagged fields in one place; the limit is {TAGGED_FIELDS_MAX}")
    return count, at


def read_tag(frame: Buffer, at: int, before: int) -> tuple[int, int, int]:
    """(tag, offset of its bytes, offset after them). `before` is the previous tag, -1 for the first; tags ascend (KIP-482).

    Raises MalformedRequest for a tag that is repeated, out of order, or longer than the frame.
    """
    tag, at = read_unsigned_varint(frame, at)
    if tag <= before:
        raise MalformedRequest(f"tagged field {tag} after {before}")
    size, at = read_unsigned_varint(frame, at)
    end = at + size
    if end > len(frame):
        raise MalformedRequest(f"a tagged field of {size} bytes beyond the frame")
    return tag, at, end


def skip_tagged_fields(frame: Buffer, at: int) -> int:
    """The offset after the tagged fields that start at `at`. Raises MalformedRequest if they do not fit into the frame."""
    if at < len(frame) and frame[at] == 0:
        return at + 1
    count, at = read_tag_count(frame, at)
    tag = -1
    for _ in range(count):
        tag, _, at = read_tag(frame, at, tag)
    return at


def request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, *, flexible: bool
) -> bytes:
    """The header of our own request: version 2 (with empty tags) for flexible versions, else version 1."""
    if client_id is None:
        head = _HEADER.pack(api_key, api_version, correlation_id, -1)
    else:
        name = client_id.encode()
        head = _HEADER.pack(api_key, api_version, correlation_id, len(name)) + name
    return head + b"\x00" if flexible else head


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header of a response: version 1 (with empty tags) for flexible versions, else version 0."""
    if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version):
        return _LENGTH.pack(correlation_id) + b"\x00"
    return _LENGTH.pack(correlation_id)


def frame(parts: Sequence[Buffer]) -> list[Buffer]:
    """The parts with their total length before them, ready for the socket."""
    return [_LENGTH.pack(sum(map(len, parts))), *parts]
