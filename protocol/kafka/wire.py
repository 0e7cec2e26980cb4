"""Reads and writes the primitive types of Kafka's protocol, for the hand-written codecs. Pure.

A reader takes (frame, offset) and returns (value, offset after it). It raises MalformedRequest if the value does not fit. An array's
announced length is checked against the remaining bytes before anything is allocated (BAD-11).
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import Final

from protocol.kafka.framing import MalformedRequest, read_unsigned_varint, unsigned_varint
from protocol.types import Buffer

SHORT: Final = struct.Struct(">h")
INT: Final = struct.Struct(">i")

ELEMENTS_MAX: Final = 1_000_000
"""Limit of array elements in one frame. Reading more would block the event loop for seconds, and no real message has as many."""
REQUEST_ELEMENTS_MAX: Final = 150_000
"""Limit of array elements in a request. An element may take a hundred times its bytes in memory, and the garbage collector visits all
elements in one turn of the loop. No cluster has as many partitions."""
STRING_BYTES_MAX: Final = 2**15 - 1
"""Kafka's limit in every version, although a compact string could announce a larger length."""

NO_UUID: Final = uuid.UUID(int=0)

TopicKey = str | uuid.UUID
"""How a message names a topic: by its name, or in newer versions by its id (KIP-516)."""


def read_string(frame: Buffer, at: int, flexible: bool) -> tuple[str, int]:
    value, at = read_nullable_string(frame, at, flexible)
    if value is None:
        raise MalformedRequest("null instead of a string")
    return value, at


def read_nullable_string(frame: Buffer, at: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        size, at = read_unsigned_varint(frame, at)
        size -= 1
    else:
        try:
            (size,) = SHORT.unpack_from(frame, at)
        except struct.error:
            raise MalformedRequest("the frame ends inside a string's length") from None
        at += 2
    if size < 0:
        if size == -1:
            return None, at
        raise MalformedRequest(f"a string of {size} bytes")
    if size > STRING_BYTES_MAX:
        raise MalformedRequest(f"a string of {size} bytes; the limit is {STRING_BYTES_MAX}")
    end = at + size
    if end > len(frame):
        raise MalformedRequest(f"a string of {size} bytes in {len(frame) - at} bytes")
    try:
        return str(frame[at:end], "utf-8"), end
    except UnicodeDecodeError:
        raise MalformedRequest("a string that is not UTF-8") from None


def read_array_length(frame: Buffer, at: int, flexible: bool, element_size_min: int) -> tuple[int, int]:
    """The number of elements; 0 for null. An element has at least `element_size_min` bytes, so impossible counts are refused."""
    if flexible:
        count, at = read_unsigned_varint(frame, at)
        count -= 1
    else:
        try:
            (count,) = INT.unpack_from(frame, at)
        except struct.error:
            raise MalformedRequest("the frame ends inside an array's length") from None
        at += 4
    if count * element_size_min > len(frame) - at:
        raise MalformedRequest(f"an array of {count} elements in {len(frame) - at} bytes")
    if count > ELEMENTS_MAX:
        raise MalformedRequest(f"an array of {count} elements; the limit is {ELEMENTS_MAX}")
    if count < -1:
        raise MalformedRequest(f"an array of {count} elements")
    return max(count, 0), at


def read_bytes(frame: memoryview, at: int, flexible: bool) -> tuple[memoryview | None, int]:
    """A slice of the frame, not a copy."""
    if flexible:
        size, at = read_unsigned_varint(frame, at)
        size -= 1
    else:
        try:
            (size,) = INT.unpack_from(frame, at)
        except struct.error:
            raise MalformedRequest("the frame ends inside a length") from None
        at += 4
    if size < 0:
        if size == -1:
            return None, at
        raise MalformedRequest(f"{size} bytes")
    end = at + size
    if end > len(frame):
        raise MalformedRequest(f"{size} bytes, but only {len(frame) - at} are left")
    return frame[at:end], end


def read_uuid(frame: Buffer, at: int) -> tuple[uuid.UUID, int]:
    end = at + 16
    if end > len(frame):
        raise MalformedRequest("the frame ends inside a uuid")
    return _uuid(bytes(frame[at:end])), end


def topic_key(key: TopicKey, flexible: bool) -> bytes:
    return key.bytes if isinstance(key, uuid.UUID) else string(key, flexible)


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> uuid.UUID:
    """Cached, because creating a UUID takes 1 us, and every fetch has the ids of the same few topics."""
    return uuid.UUID(bytes=data)


def string(value: str, flexible: bool) -> bytes:
    data = value.encode()
    return (unsigned_varint(len(data) + 1) if flexible else SHORT.pack(len(data))) + data


def nullable_string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    return string(value, flexible)


def read_topic(frame: Buffer, at: int, flexible: bool, *, by_id: bool) -> tuple[TopicKey, int]:
    """A topic's id, or its name, in the versions that have one or the other."""
    return read_uuid(frame, at) if by_id else read_string(frame, at, flexible)


def array_length(count: int, flexible: bool) -> bytes:
    return unsigned_varint(count + 1) if flexible else INT.pack(count)
