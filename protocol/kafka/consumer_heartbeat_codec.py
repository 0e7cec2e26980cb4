"""ConsumerGroupHeartbeat (API 68, KIP-848), hand-written, v0 and v1. Pure.

v1 adds the regular expression. `tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.wire import (
    INT,
    REQUEST_ELEMENTS_MAX,
    nullable_string,
    read_array_length,
    read_nullable_string,
    read_string,
)
from protocol.types import Buffer

REGEX_SINCE = 1
SAME_BYTES_MAX = 256
"""Longer requests are not remembered."""
NOT_SAID = -1
"""The rebalance time-out of a request that does not have one."""

_TOPIC_ID_BYTES = 16
_HEAD = struct.Struct(">ih")
_EPOCH_AND_INTERVAL = struct.Struct(">ii")
_NO_STRUCT, _STRUCT = b"\xff", b"\x01"
_NO_TAGS = b"\x00"


class HeartbeatRequest(NamedTuple):
    """None: not said. `owned`: (topic id, partition) of what the member reads."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topics: Sequence[str] | None
    regex: str | None
    assignor: str | None
    owned: Sequence[tuple[bytes, int]] | None

    @property
    def says_more(self) -> bool:
        """Whether it has more than a sign of life, the epoch, and what the member reads."""
        is_short = self.instance_id is self.rack_id is self.topics is self.regex is self.assignor is None
        return not is_short or self.rebalance_timeout_ms != NOT_SAID


def decode_request(version: int, frame: Buffer, at: int) -> HeartbeatRequest:
    """Raises MalformedRequest if the bytes from `at` are not a valid body. Bytes after it are ignored, as in Kafka."""
    if len(frame) - at <= SAME_BYTES_MAX:
        return _decoded_before(version, bytes(frame[at:]))
    return _decode(version, frame, at)


@lru_cache(maxsize=8192)
def _decoded_before(version: int, body: bytes) -> HeartbeatRequest:
    """A member sends the same bytes again and again, until something changes."""
    return _decode(version, body, 0)


def _decode(version: int, frame: Buffer, at: int) -> HeartbeatRequest:
    try:
        group_id, at = read_string(frame, at, True)
        member_id, at = read_string(frame, at, True)
        (epoch,) = INT.unpack_from(frame, at)
        instance_id, at = read_nullable_string(frame, at + 4, True)
        rack_id, at = read_nullable_string(frame, at, True)
        (rebalance_timeout_ms,) = INT.unpack_from(frame, at)
        topics, at = _read_topics(frame, at + 4)
        regex = None
        if version >= REGEX_SINCE:
            regex, at = read_nullable_string(frame, at, True)
        assignor, at = read_nullable_string(frame, at, True)
        owned, at = _read_partitions(frame, at)
        at = skip_tagged_fields(frame, at)
    except struct.error:
        raise MalformedRequest("the frame ends inside a number") from None
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return HeartbeatRequest(
        group_id, member_id, epoch, instance_id, rack_id, rebalance_timeout_ms, topics, regex, assignor, owned
    )


def _read_topics(frame: Buffer, at: int) -> tuple[list[str] | None, int]:
    if _is_null(frame, at):
        return None, at + 1
    count, at = read_array_length(frame, at, True, element_size_min=1)
    _check_count(count)
    topics = []
    for _ in range(count):
        topic, at = read_string(frame, at, True)
        topics.append(topic)
    return topics, at


def _read_partitions(frame: Buffer, at: int) -> tuple[list[tuple[bytes, int]] | None, int]:
    if _is_null(frame, at):
        return None, at + 1
    count, at = read_array_length(frame, at, True, element_size_min=_TOPIC_ID_BYTES + 2)
    found: list[tuple[bytes, int]] = []
    for _ in range(count):
        topic_id = bytes(frame[at : at + _TOPIC_ID_BYTES])
        numbers, at = read_array_length(frame, at + _TOPIC_ID_BYTES, True, element_size_min=4)
        _check_count(len(found) + numbers)
        found += [(topic_id, number) for number in struct.unpack_from(f">{numbers}i", frame, at)]
        at = skip_tagged_fields(frame, at + 4 * numbers)
    return found, at


def _is_null(frame: Buffer, at: int) -> bool:
    return at < len(frame) and frame[at] == 0


def _check_count(count: int) -> None:
    if count > REQUEST_ELEMENTS_MAX:
        raise MalformedRequest(f"an array of {count} elements; the limit is {REQUEST_ELEMENTS_MAX}")


@lru_cache(maxsize=8192)
def encode_unchanged(member_id: str, member_epoch: int, heartbeat_interval_ms: int) -> bytes:
    """The response body without an error and without an assignment."""
    return encode_response(0, None, member_id, member_epoch, heartbeat_interval_ms, None)


def encode_response(
    error: int,
    message: str | None,
    member_id: str | None,
    member_epoch: int,
    heartbeat_interval_ms: int,
    assignment: bytes | None,
    throttle_ms: int = 0,
) -> bytes:
    """The response body, of both versions. `assignment`: by `id_partitions`; None: as before."""
    return b"".join(
        (
            _HEAD.pack(throttle_ms, error),
            nullable_string(message, True),
            nullable_string(member_id, True),
            _EPOCH_AND_INTERVAL.pack(member_epoch, heartbeat_interval_ms),
            _NO_STRUCT if assignment is None else _STRUCT + assignment + _NO_TAGS,
            _NO_TAGS,
        )
    )
