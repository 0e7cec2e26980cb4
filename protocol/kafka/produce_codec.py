"""Produce (API 0), hand-written, v0 to v13: records are slices of the frame, never copied. Pure.

v1 adds the throttle time, v2 the time of the append, v3 the transactional id. The API refuses these three versions.

v8 adds record errors and messages, v9 is flexible, v10 sends the current leader with NOT_LEADER_OR_FOLLOWER (KIP-951), v13 names
topics by their ids (KIP-516). v11 and v12 only differ in what is served (KIP-890).
`tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple

from librt.strings import read_i16_be, read_i32_be

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, head_of, response_header, skip_tagged_fields, unsigned_varint
from protocol.kafka.wire import (
    INT,
    TopicKey,
    array_length,
    nullable_string,
    read_array_length,
    read_bytes,
    read_nullable_string,
    read_string,
    read_uuid,
    string,
    topic_key,
)
from protocol.types import Buffer

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_RESULT_V0: Final = struct.Struct(">ihq")
_RESULT_V3: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_NO_ERROR_V8: Final = INT.pack(0) + b"\xff\xff"  # no record errors, no message
_NO_ERROR_V9: Final = b"\x01\x00\x00"  # the same with compact lengths, and no tagged fields
_CURRENT_LEADER: Final = struct.Struct(">ii")
_END_V9: Final = b"\x00\x00\x00"
"""No tagged fields: of the partition, of its topic, of the request."""
TRANSACTIONS_SINCE: Final = 3
LOG_START_SINCE: Final = 5
RECORD_ERRORS_SINCE: Final = 8
FLEXIBLE_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13
_ID_SIZE: Final = 16

STEP: Final = 1000
"""Topics and partitions between two pauses: about a millisecond."""
NOT_ONE_PARTITION: Final = (0, 0, b"", 0, 0)
"""What `one_partition` returns for other requests."""
PARTITIONS_MAX: Final = 20_000
"""A request with this many topics and partitions, or more, is refused. A broker is designed for half as many."""


class ProduceRequest(NamedTuple):
    """`topics` are (name or id, [(partition, records or None)]). `acks` is as the client sent it; the API checks it (BAD-24)."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]


class ProducePartitionResult(NamedTuple):
    """The answer for one partition. `log_append_time_ms` is -1 for CreateTime; `base_offset` is -1 with an error.

    `record_errors` are (index in the batch, reason). They require an `error_message`.
    """

    partition: int
    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    record_errors: Sequence[tuple[int, str]] = ()


class NodeEndpoint(NamedTuple):
    """The address of a leader that is named in the response and that the client may not know yet."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def decode_request(version: int, frame: memoryview, offset: int) -> ProduceRequest:
    """The body that starts at `offset`; bytes after it are ignored. Raises MalformedRequest if the body is broken."""
    return decode_at_once(version, frame, offset) or _to_its_end(decoding(version, frame, offset))


def decode_at_once(version: int, frame: memoryview, offset: int) -> ProduceRequest | None:
    """Decodes the most common form of request without pauses. None means that `decoding` must read the request, or report the error."""
    acks, timeout_ms, key, begin, end = one_partition(version, frame, offset)
    if not end:
        return None
    try:
        topic, partition = partition_of(version, key)
    except UnicodeDecodeError:
        return None
    return ProduceRequest(None, acks, timeout_ms, [(topic, [(partition, frame[begin:end])])])


def decoding(version: int, frame: memoryview, offset: int) -> Generator[None, None, ProduceRequest]:
    """Like `decode_request`, with a pause after every `STEP` topics and partitions."""
    flexible = version >= 9
    transactional_id, at = read_nullable_string(frame, offset, flexible) if version >= 3 else (None, offset)
    try:
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, at)
    except struct.error:
        raise MalformedRequest("the frame ends before the topics") from None
    count, at = read_array_length(frame, at + 6, flexible, 2)
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    read = 0
    for _ in range(count):
        key: TopicKey
        key, at = read_uuid(frame, at) if version >= TOPIC_IDS_SINCE else read_string(frame, at, flexible)
        partition_count, at = read_array_length(frame, at, flexible, 5)
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            try:
                (index,) = INT.unpack_from(frame, at)
            except struct.error:
                raise MalformedRequest("the frame ends inside a partition") from None
            records, at = read_bytes(frame, at + 4, flexible)
            if flexible:
                at = skip_tagged_fields(frame, at)
            partitions.append((index, records))
            read += 1
            if read % STEP == 0:
                if read >= PARTITIONS_MAX:
                    raise MalformedRequest(f"{PARTITIONS_MAX} topics and partitions or more")
                yield
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((key, partitions))
        read += 1
        if read % STEP == 0:
            if read >= PARTITIONS_MAX:
                raise MalformedRequest(f"{PARTITIONS_MAX} topics and partitions or more")
            yield
    if flexible:
        at = skip_tagged_fields(frame, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _to_its_end(steps: Generator[None, None, ProduceRequest]) -> ProduceRequest:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ProduceRequest = end.value
            return request


def one_partition(version: int, frame: Buffer, at: int) -> tuple[int, int, bytes, int, int]:
    """The most common request: no transaction, one topic, one partition, no tagged fields. Of v3 or newer.

    Returns (acks, timeout in ms, the bytes that name the partition, where the records begin and end). The bytes are the same in all
    such requests for the partition; `partition_of` decodes them. The end is 0 for every other and every broken request, which the
    general decoder handles; also if a frame that is not bytes begins with very long names.

        v3   ff ff | acks, timeout | 00 00 00 01 | size, name     | 00 00 00 01 | partition | size, records
        v9   00    | acks, timeout | 02          | size + 1, name | 02          | partition | varint size + 1, records | 00 00 00
        v13  00    | acks, timeout | 02          | id             | 02          | partition | varint size + 1, records | 00 00 00

    A size is one of 2 bytes for the name and of 4 for the records; from v9 on a varint, here of one byte for the name.
    """
    head = head_of(frame)
    try:
        if version < FLEXIBLE_SINCE:
            size: int = read_i16_be(head, at + 12)
            begin = at + 14
            end = begin + size
            if version < TRANSACTIONS_SINCE or size < 0 or read_i16_be(head, at) != -1:
                return NOT_ONE_PARTITION
            if read_i32_be(head, at + 8) != 1 or read_i32_be(head, end) != 1:
                return NOT_ONE_PARTITION
            key = head[begin : end + 8]
            size = read_i32_be(head, end + 8)
            begin = end + 12
            end = begin + size
            if size < 0 or end != len(frame):
                return NOT_ONE_PARTITION
            return read_i16_be(head, at + 2), read_i32_be(head, at + 4), key, begin, end
        if head[at] != 0 or head[at + 7] != 2:
            return NOT_ONE_PARTITION
        begin = at + 8
        if version >= TOPIC_IDS_SINCE:
            end = begin + _ID_SIZE
        else:
            size = head[begin]
            if size > 0x7F or size < 1:
                return NOT_ONE_PARTITION
            end = begin + size
            begin += 1
        if head[end] != 2:
            return NOT_ONE_PARTITION
        key = head[begin : end + 5]
        begin = end + 5
        byte = head[begin]
        size = byte & 0x7F
        shift = 7
        while byte > 0x7F:
            begin += 1
            byte = head[begin]
            size |= (byte & 0x7F) << shift
            shift += 7
            if shift > 28:
                return NOT_ONE_PARTITION
        begin += 1
        end = begin + size - 1
        if size < 1 or end + 3 != len(frame):
            return NOT_ONE_PARTITION
        after = head[end:] if len(head) == len(frame) else bytes(frame[end:])
        if after != _END_V9:
            return NOT_ONE_PARTITION
        return read_i16_be(head, at + 1), read_i32_be(head, at + 3), key, begin, end
    except IndexError:
        return NOT_ONE_PARTITION


def partition_of(version: int, key: bytes) -> tuple[TopicKey, int]:
    """(topic, partition) of the bytes that name a partition. Raises UnicodeDecodeError."""
    number = INT.unpack_from(key, len(key) - INT.size)[0]
    if version >= TOPIC_IDS_SINCE:
        return read_uuid(key, 0)[0], number
    return str(key[: -5 if version >= FLEXIBLE_SINCE else -8], "utf-8"), number


class AppendedAnswer:
    """The answers, complete frames, to requests for one partition whose batch was appended. They differ in a few numbers only."""

    __slots__ = ("_end", "_has_log_start", "_layout", "_size", "_start")

    def __init__(self, version: int, topic: TopicKey, partition: int) -> None:
        """`version`: at least TRANSACTIONS_SINCE."""
        body = encode_response(version, [(topic, [ProducePartitionResult(partition, 0)])])
        whole = response_header(ApiKey.PRODUCE, version, 0) + body
        self._has_log_start = version >= LOG_START_SINCE
        numbers = "qqq" if self._has_log_start else "qq"
        self._end = _after_numbers(version)
        self._size = len(whole)
        self._start = whole[INT.size : len(whole) - struct.calcsize(">" + numbers) - len(self._end)]
        self._layout = struct.Struct(f">ii{len(self._start)}s{numbers}{len(self._end)}s")

    def frame(self, correlation_id: int, base_offset: int, log_start_offset: int) -> bytes:
        """With CreateTime."""
        pack = self._layout.pack
        if self._has_log_start:
            return pack(self._size, correlation_id, self._start, base_offset, -1, log_start_offset, self._end)
        return pack(self._size, correlation_id, self._start, base_offset, -1, self._end)


def with_throttle_time(version: int, frame: bytes, throttle_ms: int) -> bytes:
    """An answer of `AppendedAnswer.frame` with this throttle time."""
    end = len(frame) - (1 if version >= FLEXIBLE_SINCE else 0)
    return frame[: end - INT.size] + INT.pack(throttle_ms) + frame[end:]


def _after_numbers(version: int) -> bytes:
    """What follows the offsets in an answer for one partition: the end of the partition and the topic, no throttle time."""
    if version >= FLEXIBLE_SINCE:
        return _NO_ERROR_V9 + b"\x00" + INT.pack(0) + b"\x00"
    return (_NO_ERROR_V8 if version >= RECORD_ERRORS_SINCE else b"") + INT.pack(0)


def encode_response(
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The response body. `node_endpoints` are sent from v10 on."""
    flexible = version >= 9
    parts = [array_length(len(topics), flexible)]
    for key, partitions in topics:
        parts.append(topic_key(key, flexible))
        parts.append(array_length(len(partitions), flexible))
        parts += [_encode_result(version, result) for result in partitions]
        if flexible:
            parts.append(b"\x00")
    return b"".join([*parts, *_after_topics(version, throttle_ms, node_endpoints)])


def encoding_response(
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> Generator[None, None, bytes]:
    """`encode_response` in steps of STEP partitions, for an answer of thousands of them."""
    flexible = version >= 9
    parts, rows = [array_length(len(topics), flexible)], 0
    for key, partitions in topics:
        parts += (topic_key(key, flexible), array_length(len(partitions), flexible))
        for begin in range(0, len(partitions), STEP):
            some = partitions[begin : begin + STEP]
            parts += [_encode_result(version, result) for result in some]
            rows += len(some)
            if rows >= STEP:
                rows = 0
                yield
        if flexible:
            parts.append(b"\x00")
    return b"".join([*parts, *_after_topics(version, throttle_ms, node_endpoints)])


def _after_topics(version: int, throttle_ms: int, node_endpoints: Sequence[NodeEndpoint]) -> Iterator[bytes]:
    if version >= 1:
        yield INT.pack(throttle_ms)
    if version >= 9:
        yield _encode_endpoints(node_endpoints) if version >= 10 else b"\x00"


def _encode_result(version: int, result: ProducePartitionResult) -> bytes:
    if version < 2:
        return _RESULT_V0.pack(result[0], result[1], result[2])
    if version < 5:
        return _RESULT_V3.pack(result[0], result[1], result[2], result[3])
    data = _RESULT_V5.pack(result[0], result[1], result[2], result[3], result[4])
    if version < 8:
        return data
    if result.error_message is None and (version < 10 or (result.leader_id, result.leader_epoch) == (-1, -1)):
        return data + (_NO_ERROR_V9 if version >= 9 else _NO_ERROR_V8)
    flexible = version >= 9
    data += array_length(len(result.record_errors), flexible)
    for index, why in result.record_errors:
        data += INT.pack(index) + nullable_string(why, flexible) + (b"\x00" if flexible else b"")
    data += nullable_string(result.error_message, flexible)
    if not flexible:
        return data
    if version >= 10 and (result.leader_id, result.leader_epoch) != (-1, -1):
        # one tagged field: tag 0, nine bytes: leader id, leader epoch, no tags of its own
        return data + b"\x01\x00\x09" + _CURRENT_LEADER.pack(result.leader_id, result.leader_epoch) + b"\x00"
    return data + b"\x00"


def _encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The response's tagged fields: tag 0 with the endpoints, or none."""
    if not endpoints:
        return b"\x00"
    data = array_length(len(endpoints), True)
    for endpoint in endpoints:
        data += (
            INT.pack(endpoint.node_id)
            + string(endpoint.host, True)
            + INT.pack(endpoint.port)
            + nullable_string(endpoint.rack, True)
            + b"\x00"
        )
    return b"\x01\x00" + unsigned_varint(len(data)) + data
