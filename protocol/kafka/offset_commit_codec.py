"""OffsetCommit (API 8), hand-written, v1 to v10. Pure.

    group id, generation, member id, [v7: instance id], [v2 to v4: retention ms],
    topics: name (v10: id), partitions: partition, offset, [v6: leader epoch], [v1: commit time], metadata

v3 throttle time, v8 flexible. `tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.wire import (
    INT,
    REQUEST_ELEMENTS_MAX,
    TopicKey,
    array_length,
    read_array_length,
    read_nullable_string,
    read_string,
    read_topic,
    topic_key,
)
from protocol.types import Buffer

THROTTLE_SINCE = 3
COMMIT_TIME_UNTIL = 1
RETENTIONS = range(2, 5)
"""The versions with a retention time."""
LEADER_EPOCH_SINCE = 6
INSTANCE_ID_SINCE = 7
FLEXIBLE_SINCE = 8
TOPIC_ID_SINCE = 10

ROWS_IN_A_STEP = 100

NO_EPOCH = -1
BROKERS_RETENTION = -1
NOW = -1
"""As a commit time."""

_LONG = struct.Struct(">q")
_POSITION_V1 = struct.Struct(">iqq")
_POSITION_V2 = struct.Struct(">iq")
_POSITION_V6 = struct.Struct(">iqi")
_RESULT_V2 = struct.Struct(">ih")
_RESULT_V8 = struct.Struct(">ihx")  # and no tagged fields


class CommittedPartition(NamedTuple):
    """`leader_epoch` -1 means not given. `metadata` is any text of the client. `commit_time_ms` -1 means now."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    commit_time_ms: int = NOW


class OffsetCommitRequest(NamedTuple):
    """`retention_ms` -1 means the broker's setting. `generation`: or the member's epoch, in a group of the new kind."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    retention_ms: int
    topics: list[tuple[TopicKey, list[CommittedPartition]]]


def decode_request(version: int, frame: Buffer, at: int) -> OffsetCommitRequest:
    """Like `decoding`, without pauses."""
    steps = decoding(version, frame, at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: OffsetCommitRequest = end.value
            return request


def decoding(version: int, frame: Buffer, at: int) -> Generator[None, None, OffsetCommitRequest]:
    """The body that starts at `at`, with occasional pauses. Ignores bytes after it, as Kafka does. Raises MalformedRequest."""
    try:
        return (yield from _decoding(version, frame, at))
    except struct.error:
        raise MalformedRequest("the frame ends inside a number") from None


def _decoding(version: int, frame: Buffer, at: int) -> Generator[None, None, OffsetCommitRequest]:
    flexible = version >= FLEXIBLE_SINCE
    group_id, at = read_string(frame, at, flexible)
    (generation,) = INT.unpack_from(frame, at)
    member_id, at = read_string(frame, at + 4, flexible)
    instance_id: str | None = None
    if version >= INSTANCE_ID_SINCE:
        instance_id, at = read_nullable_string(frame, at, flexible)
    retention_ms = BROKERS_RETENTION
    if version in RETENTIONS:
        (retention_ms,) = _LONG.unpack_from(frame, at)
        at += _LONG.size
    count, at = read_array_length(frame, at, flexible, 3 if flexible else 6)
    topics = []
    left = REQUEST_ELEMENTS_MAX - count
    for number in range(1, count + 1):
        name, at = read_topic(frame, at, flexible, by_id=version >= TOPIC_ID_SINCE)
        rows, at = yield from _decode_partitions(version, frame, at, left)
        left -= len(rows)
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((name, rows))
        if number % ROWS_IN_A_STEP == 0:
            yield
    if flexible:
        at = skip_tagged_fields(frame, at)
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return OffsetCommitRequest(group_id, generation, member_id, instance_id, retention_ms, topics)


def _decode_partitions(
    version: int, frame: Buffer, at: int, left: int
) -> Generator[None, None, tuple[list[CommittedPartition], int]]:
    """(partitions of a topic, offset after them). Raises MalformedRequest for more than `left` partitions."""
    flexible = version >= FLEXIBLE_SINCE
    has_epoch = version >= LEADER_EPOCH_SINCE
    has_time = version <= COMMIT_TIME_UNTIL
    position = _POSITION_V6 if has_epoch else _POSITION_V1 if has_time else _POSITION_V2
    size = position.size
    count, at = read_array_length(frame, at, flexible, size + (2 if not flexible else 1))
    if count > left:
        raise MalformedRequest(f"more than {REQUEST_ELEMENTS_MAX} topics and partitions")
    rows = []
    epoch, commit_time_ms = NO_EPOCH, NOW
    for number in range(1, count + 1):
        if has_epoch:
            partition, offset, epoch = position.unpack_from(frame, at)
        elif has_time:
            partition, offset, commit_time_ms = position.unpack_from(frame, at)
        else:
            partition, offset = position.unpack_from(frame, at)
        metadata, at = read_nullable_string(frame, at + size, flexible)
        if flexible:
            at = skip_tagged_fields(frame, at)
        rows.append(CommittedPartition(partition, offset, epoch, metadata, commit_time_ms))
        if number % ROWS_IN_A_STEP == 0:
            yield
    return rows, at


def encode_response(
    version: int, topics: Sequence[tuple[TopicKey, Sequence[tuple[int, int]]]], throttle_ms: int = 0
) -> bytes:
    """The response body; `topics` are (name or id, [(partition, error code)])."""
    flexible = version >= FLEXIBLE_SINCE
    result = _RESULT_V8 if flexible else _RESULT_V2
    parts = [INT.pack(throttle_ms)] if version >= THROTTLE_SINCE else []
    parts.append(array_length(len(topics), flexible))
    for name, rows in topics:
        parts.append(topic_key(name, flexible))
        parts.append(array_length(len(rows), flexible))
        parts += [result.pack(*row) for row in rows]
        if flexible:
            parts.append(b"\x00")
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)
