"""Heartbeat (API 12), hand-written, v0 to v4. Pure.

v1 throttle time, v3 instance id (KIP-345), v4 flexible. `tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.wire import INT, SHORT, read_nullable_string, read_string
from protocol.types import Buffer

THROTTLE_SINCE = 1
INSTANCE_ID_SINCE = 3
FLEXIBLE_SINCE = 4


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


def decode_request(version: int, frame: Buffer, at: int) -> HeartbeatRequest:
    """Raises MalformedRequest if the bytes from `at` are not a valid body. Bytes after it are ignored, as in Kafka."""
    flexible = version >= FLEXIBLE_SINCE
    group_id, at = read_string(frame, at, flexible)
    try:
        (generation,) = INT.unpack_from(frame, at)
    except struct.error:
        raise MalformedRequest("the frame ends inside a generation") from None
    member_id, at = read_string(frame, at + 4, flexible)
    instance_id: str | None = None
    if version >= INSTANCE_ID_SINCE:
        instance_id, at = read_nullable_string(frame, at, flexible)
    if flexible:
        at = skip_tagged_fields(frame, at)
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return HeartbeatRequest(group_id, generation, member_id, instance_id)


@lru_cache(maxsize=1024)
def encode_response(version: int, error: int, throttle_ms: int = 0) -> bytes:
    """The response body. Cached: there are only a few different bodies."""
    throttle = INT.pack(throttle_ms) if version >= THROTTLE_SINCE else b""
    return throttle + SHORT.pack(error) + (b"\x00" if version >= FLEXIBLE_SINCE else b"")
