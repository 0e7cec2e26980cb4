"""Fetch (API 1), hand-written, v4 to v18, for broker and follower. Record bytes are never copied. Pure.

v5 log start offset, v7 incremental sessions (KIP-227), v9 current leader epoch (KIP-320), v11 rack, v12 flexible with
last fetched epoch and diverging epoch (KIP-595), v13 topic ids instead of names (KIP-516), v15 the replica's id and
broker epoch as a tagged field (KIP-903), v16 node endpoints (KIP-951), v17 directory ids (KIP-853, skipped), v18 the
replica's high watermark (KIP-1166, skipped).
`tests/unit/protocol/kafka` compares both directions with kio byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import (
    MalformedRequest,
    Part,
    StoredBytes,
    in_memory,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)
from protocol.kafka.produce_codec import NodeEndpoint
from protocol.kafka.wire import (
    INT,
    TopicKey,
    array_length,
    nullable_string,
    read_array_length,
    read_bytes,
    read_string,
    read_uuid,
    string,
    topic_key,
)
from protocol.types import Buffer

PARTITIONS_IN_A_STEP: Final = 100

READ_COMMITTED: Final = 1
"""The isolation level of readers that want committed records, and those without a transaction, only. 0 is for all records."""

REQUEST_PARTITIONS_MAX: Final = 20_000
"""Limit of partitions in a request, and of forgotten partitions. A topic without partitions counts as one partition."""

_REQUEST_V4: Final = struct.Struct(">iiiib")
_REQUEST_V15: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_REPLICA_STATE: Final = struct.Struct(">iq")
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
_DATA_V4: Final = struct.Struct(">ihqq")
_DATA_V5: Final = struct.Struct(">ihqqq")
_DATA_V12: Final = struct.Struct(">ihqqqBi")  # no list of aborted transactions, or an empty one
_ABORTED: Final = struct.Struct(">qq")
_TOP_V7: Final = struct.Struct(">ihi")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_STATE_TAG: Final = b"\x01\x01\x0d"  # one tagged field, which has tag 1 and 13 bytes


class FetchRequestPartition(NamedTuple):
    """The request for one partition. An epoch is -1 if the version does not have it or the client does not know it."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchRequest(NamedTuple):
    """`replica_id` is -1 for a consumer; `replica_epoch` is its broker epoch (v15+). Session epoch -1 means no session."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[TopicKey, Sequence[FetchRequestPartition]]]
    forgotten: Sequence[tuple[TopicKey, Sequence[int]]]
    rack_id: str = ""


class FetchPartitionData(NamedTuple):
    """The answer for one partition. `records` are consecutive buffers; `diverging_epoch` is (epoch, end offset),
    `current_leader` (id, epoch), `aborted_transactions` [(producer id, first offset)]. An answer that is sent may have `stored`
    records instead."""

    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Buffer] = ()
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    stored: StoredBytes | None = None

    @property
    def has_records(self) -> bool:
        return bool(self.records) or self.stored is not None


class FetchResponse(NamedTuple):
    """A decoded response; each partition's `records` are slices of the frame."""

    throttle_ms: int
    error: int
    session_id: int
    topics: list[tuple[TopicKey, list[FetchPartitionData]]]


def decode_request(version: int, frame: Buffer, offset: int) -> FetchRequest:
    """The body that starts at `offset`; bytes after it are ignored. Raises MalformedRequest if the body is broken."""
    try:
        return _decode_request(version, frame, offset)
    except struct.error:
        raise MalformedRequest("the frame ends inside the fetch request") from None


def decoding(version: int, frame: Buffer, offset: int) -> Generator[None, None, FetchRequest]:
    """Like `decode_request`, with a pause after every PARTITIONS_IN_A_STEP partitions."""
    try:
        at = _topics_at(version, offset)
        topics, at = yield from _reading_topics(version, frame, at)
        forgotten, at = yield from _reading_forgotten(version, frame, at)
        return _request(version, frame, offset, topics, forgotten, at)
    except struct.error:
        raise MalformedRequest("the frame ends inside the fetch request") from None


def asker(version: int, frame: Buffer, offset: int) -> tuple[int, int]:
    """The replica id and its broker epoch, without reading the partitions. Raises MalformedRequest.

    From v15 on both are at the end of the frame. They are found only if the frame ends as `encode_request` writes it; otherwise the
    result is (-1, -1).
    """
    try:
        if version < 15:
            return INT.unpack_from(frame, offset)[0], -1
        begin = len(frame) - _REPLICA_STATE.size - len(_STATE_TAG) - 1
        if begin < offset or bytes(frame[begin : begin + len(_STATE_TAG)]) != _STATE_TAG or frame[-1] != 0:
            return -1, -1
        replica_id, epoch = _REPLICA_STATE.unpack_from(frame, begin + len(_STATE_TAG))
        return replica_id, epoch
    except struct.error:
        raise MalformedRequest("the frame ends inside the fetch request") from None


def _decode_request(version: int, frame: Buffer, offset: int) -> FetchRequest:
    topics, at = _read_topics(version, frame, _topics_at(version, offset))
    forgotten, at = _read_forgotten(version, frame, at)
    return _request(version, frame, offset, topics, forgotten, at)


def _topics_at(version: int, offset: int) -> int:
    """The position of the topics: everything before them has a fixed size."""
    return offset + (_REQUEST_V15.size if version >= 15 else _REQUEST_V4.size) + (_SESSION.size if version >= 7 else 0)


def _request(
    version: int,
    frame: Buffer,
    at: int,
    topics: list[tuple[TopicKey, Sequence[FetchRequestPartition]]],
    forgotten: list[tuple[TopicKey, Sequence[int]]],
    rest_at: int,
) -> FetchRequest:
    """The request with these topics. The bytes before the topics are at `at`, those after the forgotten topics at `rest_at`."""
    flexible = version >= 12
    replica_id = replica_epoch = -1
    if version >= 15:
        max_wait_ms, min_bytes, max_bytes, isolation_level = _REQUEST_V15.unpack_from(frame, at)
        at += _REQUEST_V15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _REQUEST_V4.unpack_from(frame, at)
        at += _REQUEST_V4.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(frame, at)
    at = rest_at
    rack_id = ""
    if version >= 11:
        rack_id, at = read_string(frame, at, flexible)
    if flexible:
        state, at = _read_request_tags(frame, at, version)
        if state is not None:
            replica_id, replica_epoch = state
    return FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
    )


def _read_topic_key(version: int, frame: Buffer, at: int) -> tuple[TopicKey, int]:
    if version >= 13:
        return read_uuid(frame, at)
    return read_string(frame, at, version >= 12)


def _read_topics(
    version: int, frame: Buffer, at: int
) -> tuple[list[tuple[TopicKey, Sequence[FetchRequestPartition]]], int]:
    flexible = version >= 12
    count, at = read_array_length(frame, at, flexible, 3)
    topics: list[tuple[TopicKey, Sequence[FetchRequestPartition]]] = []
    left = REQUEST_PARTITIONS_MAX
    for _ in range(count):
        key, at = _read_topic_key(version, frame, at)
        size, at, left = _read_size(frame, at, flexible, 16, left)
        partitions: list[FetchRequestPartition] = []
        at = _read_partitions(version, frame, at, size, partitions)
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((key, partitions))
    return topics, at


def _reading_topics(
    version: int, frame: Buffer, at: int
) -> Generator[None, None, tuple[list[tuple[TopicKey, Sequence[FetchRequestPartition]]], int]]:
    """Like `_read_topics`, with pauses."""
    flexible = version >= 12
    count, at = read_array_length(frame, at, flexible, 3)
    topics: list[tuple[TopicKey, Sequence[FetchRequestPartition]]] = []
    left = REQUEST_PARTITIONS_MAX
    for number in range(1, count + 1):
        key, at = _read_topic_key(version, frame, at)
        size, at, left = _read_size(frame, at, flexible, 16, left)
        partitions: list[FetchRequestPartition] = []
        while size:
            now = min(size, PARTITIONS_IN_A_STEP)
            at = _read_partitions(version, frame, at, now, partitions)
            size -= now
            yield
        if flexible:
            at = skip_tagged_fields(frame, at)
        topics.append((key, partitions))
        if number % PARTITIONS_IN_A_STEP == 0:
            yield
    return topics, at


def _read_size(frame: Buffer, at: int, flexible: bool, size_min: int, left: int) -> tuple[int, int, int]:
    """(number of partitions of a topic, offset after it, number of partitions that may still follow)."""
    size, at = read_array_length(frame, at, flexible, size_min)
    left -= max(size, 1)
    if left < 0:
        raise MalformedRequest(f"a fetch of more than {REQUEST_PARTITIONS_MAX} partitions")
    return size, at, left


def _read_partitions(version: int, frame: Buffer, at: int, size: int, partitions: list[FetchRequestPartition]) -> int:
    """Appends the next `size` partitions; returns the offset after them."""
    for _ in range(size):
        if version >= 12:
            partitions.append(FetchRequestPartition._make(_PARTITION_V12.unpack_from(frame, at)))
            at = skip_tagged_fields(frame, at + _PARTITION_V12.size)
        elif version >= 9:
            index, epoch, wanted, start, max_bytes = _PARTITION_V9.unpack_from(frame, at)
            partitions.append(FetchRequestPartition(index, epoch, wanted, -1, start, max_bytes))
            at += _PARTITION_V9.size
        elif version >= 5:
            index, wanted, start, max_bytes = _PARTITION_V5.unpack_from(frame, at)
            partitions.append(FetchRequestPartition(index, -1, wanted, -1, start, max_bytes))
            at += _PARTITION_V5.size
        else:
            index, wanted, max_bytes = _PARTITION_V4.unpack_from(frame, at)
            partitions.append(FetchRequestPartition(index, -1, wanted, -1, -1, max_bytes))
            at += _PARTITION_V4.size
    return at


def _read_forgotten(version: int, frame: Buffer, at: int) -> tuple[list[tuple[TopicKey, Sequence[int]]], int]:
    if version >= 12 and at < len(frame) and frame[at] == 1:
        return [], at + 1
    steps = _reading_forgotten(version, frame, at)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: tuple[list[tuple[TopicKey, Sequence[int]]], int] = end.value
            return found


def _reading_forgotten(
    version: int, frame: Buffer, at: int
) -> Generator[None, None, tuple[list[tuple[TopicKey, Sequence[int]]], int]]:
    forgotten: list[tuple[TopicKey, Sequence[int]]] = []
    if version < 7:
        return forgotten, at
    flexible = version >= 12
    count, at = read_array_length(frame, at, flexible, 3)
    left = REQUEST_PARTITIONS_MAX
    for number in range(1, count + 1):
        key, at = _read_topic_key(version, frame, at)
        size, at, left = _read_size(frame, at, flexible, 4, left)
        forgotten.append((key, struct.unpack_from(f">{size}i", frame, at)))
        at += 4 * size
        if flexible:
            at = skip_tagged_fields(frame, at)
        if number % PARTITIONS_IN_A_STEP == 0:
            yield
    return forgotten, at


def _read_request_tags(frame: Buffer, at: int, version: int) -> tuple[tuple[int, int] | None, int]:
    """The replica state (tag 1, v15+) among the request's tagged fields, and the offset after all of them."""
    end = skip_tagged_fields(frame, at)
    state = None
    count, at = read_unsigned_varint(frame, at)
    for _ in range(count):
        tag, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        if tag == 1 and version >= 15:
            if size < _REPLICA_STATE.size:
                raise MalformedRequest(f"a replica state of {size} bytes")
            state = _REPLICA_STATE.unpack_from(frame, at)
        at += size
    return state, end


def encode_request(version: int, correlation_id: int, client_id: str, request: FetchRequest) -> bytes:
    """Header and body, without the length, of a follower's request. Only v12 and newer."""
    assert version >= 12
    parts = [request_header(ApiKey.FETCH, version, correlation_id, client_id, flexible=True)]
    if version < 15:
        parts.append(INT.pack(request.replica_id))
    parts.append(_REQUEST_V15.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level))
    parts.append(_SESSION.pack(request.session_id, request.session_epoch))
    parts.append(array_length(len(request.topics), True))
    for key, partitions in request.topics:
        parts += [topic_key(key, True), array_length(len(partitions), True)]
        for partition in partitions:
            parts += [_PARTITION_V12.pack(*partition), b"\x00"]
        parts.append(b"\x00")
    parts.append(array_length(len(request.forgotten), True))
    for key, indexes in request.forgotten:
        parts += [
            topic_key(key, True),
            array_length(len(indexes), True),
            struct.pack(f">{len(indexes)}i", *indexes),
            b"\x00",
        ]
    parts.append(string(request.rack_id, True))
    if version >= 15:
        state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch)
        parts += [_STATE_TAG, state, b"\x00"]
    else:
        parts.append(b"\x00")
    return b"".join(parts)


def encode_response(
    version: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchPartitionData]]],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """`encode_parts`, all of it in memory."""
    return in_memory(encode_parts(version, throttle_ms, error, session_id, topics, node_endpoints))


def encode_parts(
    version: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchPartitionData]]],
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Part]:
    """The response body in parts: the bytes between records are joined, the records themselves are not copied."""
    flexible = version >= 12
    head = _TOP_V7.pack(throttle_ms, error, session_id) if version >= 7 else INT.pack(throttle_ms)
    pending = bytearray(head)
    pending += array_length(len(topics), flexible)
    out: list[Part] = []
    for key, partitions in topics:
        pending += topic_key(key, flexible)
        pending += array_length(len(partitions), flexible)
        for data in partitions:
            records: Sequence[Part] = data.records if data.stored is None else (data.stored,)
            size = len(records[0]) if len(records) == 1 else sum(map(len, records))
            pending += _partition_head(version, data)
            pending += unsigned_varint(size + 1) if flexible else INT.pack(size)
            if size:
                out.append(pending)
                out += records
                pending = bytearray()
            if flexible:
                pending += _partition_tags(data)
        if flexible:
            pending += b"\x00"
    if flexible:
        pending += _endpoint_tags(node_endpoints) if version >= 16 and node_endpoints else b"\x00"
    out.append(pending)
    return out


def _partition_head(version: int, data: FetchPartitionData) -> bytes:
    """A partition's bytes up to the length of its records."""
    aborted = data.aborted_transactions
    if not aborted and version >= 12:
        count = 0 if aborted is None else 1  # a compact array's length, plus one
        return _DATA_V12.pack(data[0], data[1], data[2], data[3], data[4], count, data.preferred_read_replica)
    flexible = version >= 12
    if version >= 5:
        head = _DATA_V5.pack(data[0], data[1], data[2], data[3], data[4])
    else:
        head = _DATA_V4.pack(data[0], data[1], data[2], data[3])
    if aborted is None:
        head += INT.pack(-1)
    else:
        head += array_length(len(aborted), flexible)
        for entry in aborted:
            head += _ABORTED.pack(*entry) + (b"\x00" if flexible else b"")
    if version >= 11:
        head += INT.pack(data.preferred_read_replica)
    return head


def _partition_tags(data: FetchPartitionData) -> bytes:
    """A partition's tagged fields: tag 0 diverging epoch, tag 1 current leader. Neither has tagged fields of its own."""
    if data.diverging_epoch is None and data.current_leader is None:
        return b"\x00"
    tags = []
    if data.diverging_epoch is not None:
        tags.append(b"\x00\x0d" + _EPOCH_END.pack(*data.diverging_epoch) + b"\x00")
    if data.current_leader is not None:
        tags.append(b"\x01\x09" + _LEADER.pack(*data.current_leader) + b"\x00")
    return bytes((len(tags),)) + b"".join(tags)


def _endpoint_tags(endpoints: Sequence[NodeEndpoint]) -> bytes:
    data = array_length(len(endpoints), True)
    for endpoint in endpoints:
        data += INT.pack(endpoint.node_id) + string(endpoint.host, True) + INT.pack(endpoint.port)
        data += nullable_string(endpoint.rack, True) + b"\x00"
    return b"\x01\x00" + unsigned_varint(len(data)) + data


def decode_response(version: int, frame: memoryview, offset: int) -> FetchResponse:
    """The body that starts at `offset` (after the response header), for a follower. Only v12 and newer.

    Raises MalformedRequest if the body is broken.
    """
    assert version >= 12
    try:
        throttle_ms, error, session_id = _TOP_V7.unpack_from(frame, offset)
        count, at = read_array_length(frame, offset + _TOP_V7.size, True, 3)
        topics: list[tuple[TopicKey, list[FetchPartitionData]]] = []
        for _ in range(count):
            key, at = _read_topic_key(version, frame, at)
            size, at = read_array_length(frame, at, True, _DATA_V5.size)
            partitions = []
            for _ in range(size):
                data, at = _read_partition_data(frame, at)
                partitions.append(data)
            at = skip_tagged_fields(frame, at)
            topics.append((key, partitions))
        at = skip_tagged_fields(frame, at)
    except struct.error:
        raise MalformedRequest("the frame ends inside the fetch response") from None
    return FetchResponse(throttle_ms, error, session_id, topics)


def _read_partition_data(frame: memoryview, at: int) -> tuple[FetchPartitionData, int]:
    index, error, high_watermark, stable, start = _DATA_V5.unpack_from(frame, at)
    count, at = read_array_length(frame, at + _DATA_V5.size, True, 17)
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(frame, at))
        at = skip_tagged_fields(frame, at + 16)
    (preferred,) = INT.unpack_from(frame, at)
    records, at = read_bytes(frame, at + 4, True)
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    if at < len(frame) and frame[at] == 0:
        at += 1
    else:
        end = skip_tagged_fields(frame, at)
        tags, at = read_unsigned_varint(frame, at)
        for _ in range(tags):
            tag, at = read_unsigned_varint(frame, at)
            size, at = read_unsigned_varint(frame, at)
            if tag == 0:
                diverging = _EPOCH_END.unpack_from(frame, at)
            elif tag == 1:
                leader = _LEADER.unpack_from(frame, at)
            at += size
        at = end
    data = FetchPartitionData(
        index,
        error,
        high_watermark,
        stable,
        start,
        () if records is None or not len(records) else (records,),
        diverging,
        leader,
        preferred,
        aborted or None,
    )
    return data, at
