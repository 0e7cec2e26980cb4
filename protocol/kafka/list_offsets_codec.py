"""ListOffsets (API 2), hand-written, v1 to v11, in steps: a request may name a hundred thousand partitions. Pure.

    request    replica id, [v2: isolation level], topics: name, partitions: partition, [v4: current leader epoch], timestamp,
               [v10: timeout]

v2 throttle time, v4 leader epoch (KIP-320), v6 flexible; v7 to v9, and v11, only add meanings of the requested timestamp. The
timeout is for reads from remote storage, and is skipped.
`tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from protocol.kafka.framing import MalformedRequest, skip_tagged_fields
from protocol.kafka.wire import INT, REQUEST_ELEMENTS_MAX, array_length, read_array_length, read_string, string
from protocol.types import Buffer

ISOLATION_SINCE = 2
THROTTLE_SINCE = 2
LEADER_EPOCH_SINCE = 4
FLEXIBLE_SINCE = 6
TIMEOUT_SINCE = 10
NO_EPOCH = -1
ROWS_IN_A_STEP = 200

_BYTE = struct.Struct(">b")
_ASKED_V1 = struct.Struct(">iq")
_ASKED_V4 = struct.Struct(">iiq")
_PARTITION_V1 = struct.Struct(">ihqq")
_PARTITION_V4 = struct.Struct(">ihqqi")
_PARTITION_V6 = struct.Struct(">ihqqix")  # and no tagged fields


class ListOffsetsPartitionResult(NamedTuple):
    """The answer for one partition. `timestamp` (ms) and `offset` are -1 if nothing was found."""

    partition: int
    error: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class AskedOffset(NamedTuple):
    """`current_leader_epoch` -1 means not given."""

    partition: int
    current_leader_epoch: int
    timestamp: int


class ListOffsetsRequest(NamedTuple):
    """`isolation_level` 1 means read_committed. `replica_id` -1 means a consumer."""

    replica_id: int
    isolation_level: int
    topics: list[tuple[str, list[AskedOffset]]]


def decoding(version: int, frame: Buffer, at: int) -> Generator[None, None, ListOffsetsRequest]:
    """The body that starts at `at`, with occasional pauses. Ignores bytes after it, as Kafka does. Raises MalformedRequest."""
    try:
        return (yield from _decoding(version, frame, at))
    except struct.error:
        raise MalformedRequest("the frame ends inside a number") from None


def _decoding(version: int, frame: Buffer, at: int) -> Generator[None, None, ListOffsetsRequest]:
    flexible = version >= FLEXIBLE_SINCE
    (replica_id,) = INT.unpack_from(frame, at)
    at += INT.size
    isolation_level = 0
    if version >= ISOLATION_SINCE:
        (isolation_level,) = _BYTE.unpack_from(frame, at)
        at += 1
    has_epoch = version >= LEADER_EPOCH_SINCE
    layout = _ASKED_V4 if has_epoch else _ASKED_V1
    count, at = read_array_length(frame, at, flexible, 3 if flexible else 6)
    topics = []
    left = REQUEST_ELEMENTS_MAX - count
    since_pause = 0
    for _ in range(count):
        name, at = read_string(frame, at, flexible)
        size, at = read_array_length(frame, at, flexible, layout.size)
        left -= size
        if left < 0:
            raise MalformedRequest(f"more than {REQUEST_ELEMENTS_MAX} topics and partitions")
        rows = []
        for _ in range(size):
            numbers = layout.unpack_from(frame, at)
            rows.append(AskedOffset(*numbers) if has_epoch else AskedOffset(numbers[0], NO_EPOCH, numbers[1]))
            at += layout.size
            if flexible:
                at = skip_tagged_fields(frame, at)
            since_pause += 1
            if since_pause == ROWS_IN_A_STEP:
                since_pause = 0
                yield
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((name, rows))
        since_pause += 1
        if since_pause >= ROWS_IN_A_STEP:
            since_pause = 0
            yield
    if version >= TIMEOUT_SINCE:
        at += INT.size
    if flexible:
        at = skip_tagged_fields(frame, at)
    if at > len(frame):
        raise MalformedRequest("the frame ends inside a field")
    return ListOffsetsRequest(replica_id, isolation_level, topics)


def encode_results(version: int, results: Sequence[ListOffsetsPartitionResult]) -> bytes:
    """The encoded results of one topic."""
    if version >= FLEXIBLE_SINCE:
        return b"".join([_PARTITION_V6.pack(*result) for result in results])
    if version >= LEADER_EPOCH_SINCE:
        return b"".join([_PARTITION_V4.pack(*result) for result in results])
    return b"".join([_PARTITION_V1.pack(*result[:4]) for result in results])


def encode_topic(version: int, name: str, count: int, rows: Sequence[bytes]) -> bytes:
    """A topic with `count` results; `rows` are the encoded results."""
    flexible = version >= FLEXIBLE_SINCE
    head = string(name, flexible) + array_length(count, flexible)
    return b"".join((head, *rows, b"\x00" if flexible else b""))


def encode_response(version: int, topics: Sequence[bytes], throttle_ms: int = 0) -> bytes:
    """The response body."""
    flexible = version >= FLEXIBLE_SINCE
    throttle = INT.pack(throttle_ms) if version >= THROTTLE_SINCE else b""
    return b"".join((throttle, array_length(len(topics), flexible), *topics, b"\x00" if flexible else b""))
