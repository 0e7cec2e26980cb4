"""OffsetFetch (API 9), hand-written, v1 to v10, in steps: a request may name a hundred thousand partitions. Pure.

    request    v1 to v7: group id, topics: name, partitions; [v7: require stable]
               v8: groups: group id, [v9: member id, member epoch], topics; require stable
               v10: a topic's id in place of its name, here and below
    response   [v3: throttle time], v1 to v7: topics: name, partitions: partition, offset, [v5: leader epoch], metadata, error;
               [v2: group error]
               v8: groups: group id, topics, error

From v2 on, null topics mean all topics of the group. v6 flexible. `tests/unit/protocol/kafka` compares both directions with kio byte
for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from protocol.kafka.framing import MalformedRequest, read_unsigned_varint, skip_tagged_fields
from protocol.kafka.wire import (
    INT,
    REQUEST_ELEMENTS_MAX,
    SHORT,
    TopicKey,
    array_length,
    nullable_string,
    read_array_length,
    read_nullable_string,
    read_string,
    read_topic,
    string,
    topic_key,
)
from protocol.types import Buffer

GROUP_ERROR_SINCE = 2
THROTTLE_SINCE = 3
LEADER_EPOCH_SINCE = 5
FLEXIBLE_SINCE = 6
REQUIRE_STABLE_SINCE = 7
MANY_SINCE = 8
MEMBER_SINCE = 9
TOPIC_ID_SINCE = 10

TOPICS_IN_A_STEP = 200

_NUMBERS_V1 = struct.Struct(">iq")
_NUMBERS_V5 = struct.Struct(">iqi")
_ERROR_V6 = struct.Struct(">hx")  # and no tagged fields

AskedTopic = tuple[TopicKey, tuple[int, ...]]


class AskedGroup(NamedTuple):
    """`topics` None means everything that the group has committed. `member_id` None: it does not ask as a member."""

    group_id: str
    topics: list[AskedTopic] | None
    member_id: str | None = None
    member_epoch: int = -1


class OffsetFetchRequest(NamedTuple):
    groups: list[AskedGroup]
    require_stable: bool


class Position(NamedTuple):
    """The answer for one partition. `offset` -1 means that nothing is committed."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error: int


def decode_request(version: int, frame: Buffer, at: int) -> OffsetFetchRequest:
    """Raises MalformedRequest if the bytes from `at` are not a valid body (BAD-10, 11). Bytes after it are ignored, as in Kafka."""
    steps = decoding(version, frame, at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: OffsetFetchRequest = end.value
            return request


def decoding(version: int, frame: Buffer, at: int) -> Generator[None, None, OffsetFetchRequest]:
    """Like `decode_request`, with a pause after every TOPICS_IN_A_STEP topics."""
    groups: list[AskedGroup] = []
    left = REQUEST_ELEMENTS_MAX
    if version >= MANY_SINCE:
        count, at = read_array_length(frame, at, True, 3)
        left -= count
        for _ in range(count):
            group_id, at = read_string(frame, at, True)
            member_id, member_epoch = None, -1
            if version >= MEMBER_SINCE:
                member_id, at = read_nullable_string(frame, at, True)
                member_epoch, at = _read_int(frame, at)
            topics, at, left = yield from _decode_topics(version, frame, at, left)
            at = skip_tagged_fields(frame, at)
            groups.append(AskedGroup(group_id, topics, member_id, member_epoch))
            if len(groups) % TOPICS_IN_A_STEP == 0:
                yield
    else:
        group_id, at = read_string(frame, at, version >= FLEXIBLE_SINCE)
        topics, at, _ = yield from _decode_topics(version, frame, at, left)
        groups.append(AskedGroup(group_id, topics))
    is_stable = False
    if version >= REQUIRE_STABLE_SINCE:
        if at >= len(frame):
            raise MalformedRequest("the frame ends before require_stable")
        is_stable = frame[at] != 0
        at += 1
    if version >= FLEXIBLE_SINCE:
        at = skip_tagged_fields(frame, at)
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return OffsetFetchRequest(groups, is_stable)


def _decode_topics(
    version: int, frame: Buffer, at: int, left: int
) -> Generator[None, None, tuple[list[AskedTopic] | None, int, int]]:
    """(topics, offset after them, number of topics and partitions that may still follow)."""
    flexible = version >= FLEXIBLE_SINCE
    if version >= GROUP_ERROR_SINCE and (end := _end_of_null(frame, at, flexible)) is not None:
        return None, end, left
    count, at = read_array_length(frame, at, flexible, 3 if flexible else 6)
    topics: list[AskedTopic] = []
    left -= count
    for number in range(1, count + 1):
        name, at = read_topic(frame, at, flexible, by_id=version >= TOPIC_ID_SINCE)
        size, at = read_array_length(frame, at, flexible, INT.size)
        left -= size
        if left < 0:
            raise MalformedRequest(f"more than {REQUEST_ELEMENTS_MAX} groups, topics and partitions")
        try:
            partitions = struct.unpack_from(f">{size}i", frame, at)
        except struct.error:
            raise MalformedRequest("the frame ends inside the partitions") from None
        at += INT.size * size
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((name, partitions))
        if number % TOPICS_IN_A_STEP == 0:
            yield
    return topics, at, left


def _read_int(frame: Buffer, at: int) -> tuple[int, int]:
    try:
        (value,) = INT.unpack_from(frame, at)
    except struct.error:
        raise MalformedRequest("the frame ends inside a member's epoch") from None
    return value, at + INT.size


def _end_of_null(frame: Buffer, at: int, flexible: bool) -> int | None:
    """The offset after a null array; None if the array is not null. A varint may have more bytes than necessary."""
    if flexible:
        count, end = read_unsigned_varint(frame, at)
        return end if count == 0 else None
    end = at + INT.size
    return end if bytes(frame[at:end]) == b"\xff\xff\xff\xff" else None


def encode_positions(version: int, positions: Sequence[Position]) -> bytes:
    """The encoded positions of one topic."""
    flexible = version >= FLEXIBLE_SINCE
    if version < LEADER_EPOCH_SINCE:
        return b"".join(
            _NUMBERS_V1.pack(partition, offset) + nullable_string(metadata, flexible) + SHORT.pack(error)
            for partition, offset, _, metadata, error in positions
        )
    last = _ERROR_V6 if flexible else SHORT
    return b"".join(
        _NUMBERS_V5.pack(partition, offset, epoch) + nullable_string(metadata, flexible) + last.pack(error)
        for partition, offset, epoch, metadata, error in positions
    )


def encode_topic(version: int, name: TopicKey, count: int, rows: Sequence[bytes]) -> bytes:
    """A topic with `count` positions; `rows` are the encoded positions."""
    flexible = version >= FLEXIBLE_SINCE
    head = topic_key(name, flexible) + array_length(count, flexible)
    return b"".join((head, *rows, b"\x00" if flexible else b""))


def encode_group(version: int, group_id: str, error: int, topics: Sequence[bytes]) -> bytes:
    """A group with its topics; up to v7 this is the whole response except the throttle time."""
    flexible = version >= FLEXIBLE_SINCE
    head = string(group_id, True) if version >= MANY_SINCE else b""
    tail = SHORT.pack(error) if version >= GROUP_ERROR_SINCE else b""
    return b"".join((head, array_length(len(topics), flexible), *topics, tail, b"\x00" if flexible else b""))


def encode_response(version: int, groups: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body; up to v7 there is one group."""
    if version >= MANY_SINCE:
        return b"".join((INT.pack(throttle_ms), array_length(len(groups), True), *groups, b"\x00"))
    (group,) = groups
    return (INT.pack(throttle_ms) if version >= THROTTLE_SINCE else b"") + group
