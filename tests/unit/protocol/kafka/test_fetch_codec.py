"""The hand-written Fetch codec against kio, both sides, every version, and against broken frames (BAD-10, 11)."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.fetch_codec import REQUEST_PARTITIONS_MAX, FetchPartitionData, FetchRequest, FetchRequestPartition
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.produce_codec import NodeEndpoint
from protocol.kafka.wire import array_length, string
from tests.support.kafka_values import durations_ms, error_codes, int32s, int64s, names, uuids
from tests.support.mutations import mutated

VERSIONS = range(SUPPORTED[ApiKey.FETCH].min, SUPPORTED[ApiKey.FETCH].max + 1)
FLEXIBLE = range(12, SUPPORTED[ApiKey.FETCH].max + 1)

partitions_asked = st.builds(FetchRequestPartition, int32s, int32s, int64s, int32s, int64s, int32s)
epochs = st.tuples(st.integers(0, 5), st.integers(0, 5)) | st.none()
partitions_answered = st.builds(
    FetchPartitionData,
    partition=int32s,
    error=error_codes,
    high_watermark=int64s,
    last_stable_offset=int64s,
    log_start_offset=int64s,
    records=st.lists(st.binary(max_size=200), max_size=3),
    diverging_epoch=epochs,
    current_leader=epochs,
    preferred_read_replica=int32s,
    aborted_transactions=st.none() | st.lists(st.tuples(int64s, int64s), max_size=2),
)
endpoints = st.lists(st.builds(NodeEndpoint, int32s, names, int32s, st.none() | names), max_size=2)


def keys(version: int) -> st.SearchStrategy[str | uuid.UUID]:
    return uuids if version >= 13 else names


def requests(version: int) -> st.SearchStrategy[FetchRequest]:
    return st.builds(
        FetchRequest,
        replica_id=int32s,
        replica_epoch=int64s,
        max_wait_ms=durations_ms,
        min_bytes=int32s,
        max_bytes=int32s,
        isolation_level=st.integers(-128, 127),
        session_id=int32s,
        session_epoch=int32s,
        topics=st.lists(st.tuples(keys(version), st.lists(partitions_asked, max_size=3)), max_size=3),
        forgotten=st.lists(st.tuples(keys(version), st.lists(int32s, max_size=3).map(tuple)), max_size=2),
        rack_id=names,
    )


def key_fields(key: str | uuid.UUID) -> dict[str, str | uuid.UUID]:
    return {"topic": key, "topic_id": key}


def request_body(request: FetchRequest) -> dict[str, object]:
    """For kio: what the version does not have is left out by `messages`."""
    return {
        "replica_id": request.replica_id,
        "replica_state": {"replica_id": request.replica_id, "replica_epoch": request.replica_epoch},
        "max_wait": request.max_wait_ms,
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "topics": [
            key_fields(key) | {"partitions": [partition._asdict() for partition in partitions]}
            for key, partitions in request.topics
        ],
        "forgotten_topics_data": [
            key_fields(key) | {"partitions": partitions} for key, partitions in request.forgotten
        ],
        "rack_id": request.rack_id,
    }


def as_version(version: int, request: FetchRequest) -> FetchRequest:
    """What remains of a request in that version."""

    def partition(asked: FetchRequestPartition) -> FetchRequestPartition:
        return asked._replace(
            current_leader_epoch=asked.current_leader_epoch if version >= 9 else -1,
            last_fetched_epoch=asked.last_fetched_epoch if version >= 12 else -1,
            log_start_offset=asked.log_start_offset if version >= 5 else -1,
        )

    return request._replace(
        replica_epoch=request.replica_epoch if version >= 15 else -1,
        session_id=request.session_id if version >= 7 else 0,
        session_epoch=request.session_epoch if version >= 7 else -1,
        topics=[(key, [partition(asked) for asked in partitions]) for key, partitions in request.topics],
        forgotten=request.forgotten if version >= 7 else [],
        rack_id=request.rack_id if version >= 11 else "",
    )


def response_body(
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: list[tuple[str | uuid.UUID, list[FetchPartitionData]]],
    nodes: list[NodeEndpoint],
) -> dict[str, object]:
    def partition(data: FetchPartitionData) -> dict[str, object]:
        epoch, end_offset = data.diverging_epoch or (-1, -1)
        leader_id, leader_epoch = data.current_leader or (-1, -1)
        aborted = data.aborted_transactions
        return {
            "partition_index": data.partition,
            "error_code": data.error,
            "high_watermark": data.high_watermark,
            "last_stable_offset": data.last_stable_offset,
            "log_start_offset": data.log_start_offset,
            "diverging_epoch": {"epoch": epoch, "end_offset": end_offset},
            "current_leader": {"leader_id": leader_id, "leader_epoch": leader_epoch},
            "aborted_transactions": None
            if aborted is None
            else [{"producer_id": producer, "first_offset": first} for producer, first in aborted],
            "preferred_read_replica": data.preferred_read_replica,
            "records": b"".join(data.records),
        }

    return {
        "throttle_time": throttle_ms,
        "error_code": error,
        "session_id": session_id,
        "responses": [
            key_fields(key) | {"partitions": [partition(data) for data in partitions]} for key, partitions in topics
        ],
        "node_endpoints": [node._asdict() for node in nodes],
    }


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_requests_are_read_as_kio_writes_them(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    frame = messages.encode_request(ApiKey.FETCH, version, 1, "c", request_body(request))
    offset = parse_request_header(frame).body_offset
    found = fetch_codec.decode_request(version, memoryview(frame), offset)
    if version >= 15 and (request.replica_id, request.replica_epoch) == (-1, -1):
        assert (found.replica_id, found.replica_epoch) == (-1, -1)
    assert found == as_version(version, request)


@pytest.mark.parametrize("version", FLEXIBLE)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_own_requests_are_read_back_by_kio(version: int, data: st.DataObject) -> None:
    request = data.draw(requests(version))
    frame = fetch_codec.encode_request(version, 7, "ottla", request)
    header = parse_request_header(frame)
    assert header[:4] == (ApiKey.FETCH, version, 7, "ottla")
    expected = messages.encode_request(ApiKey.FETCH, version, 7, "ottla", request_body(request))
    entity = messages.decode_request(ApiKey.FETCH, version, frame, header.body_offset)
    assert entity == messages.decode_request(ApiKey.FETCH, version, expected, header.body_offset)


def test_a_request_with_directory_ids_is_read_past_them() -> None:
    """Fetch v17 of a Kafka follower with several log directories: tag 0 of each partition."""
    partition = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 9, "replica_directory_id": uuid.UUID(int=7)}
    body = {
        "max_wait": 1,
        "min_bytes": 1,
        "topics": [{"topic_id": uuid.UUID(int=8), "partitions": [partition, partition]}],
        "forgotten_topics_data": [],
    }
    frame = messages.encode_request(ApiKey.FETCH, 17, 1, "c", body)
    request = fetch_codec.decode_request(17, frame, parse_request_header(frame).body_offset)
    assert request.topics == [(uuid.UUID(int=8), [FetchRequestPartition(1, -1, 5, -1, -1, 9)] * 2)]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data(), throttle_ms=durations_ms, error=error_codes, session_id=int32s, nodes=endpoints)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte_and_read_back(
    version: int, data: st.DataObject, throttle_ms: int, error: int, session_id: int, nodes: list[NodeEndpoint]
) -> None:
    topics = data.draw(st.lists(st.tuples(keys(version), st.lists(partitions_answered, max_size=3)), max_size=3))
    parts = fetch_codec.encode_response(version, throttle_ms, error, session_id, topics, nodes)
    written = b"".join(parts)
    body = response_body(throttle_ms, error, session_id, topics, nodes)
    assert written == messages.encode_response(ApiKey.FETCH, version, body)
    if version < 12:
        return
    answer = fetch_codec.decode_response(version, memoryview(b"head" + written), 4)
    assert answer[:3] == (throttle_ms, error, session_id)
    assert [
        (key, [found._replace(records=b"".join(found.records)) for found in partitions])
        for key, partitions in answer.topics
    ] == [
        (
            key,
            [
                sent._replace(records=b"".join(sent.records), aborted_transactions=sent.aborted_transactions or None)
                for sent in partitions
            ],
        )
        for key, partitions in topics
    ]


def test_records_are_neither_copied_when_written_nor_when_read() -> None:
    records = memoryview(bytearray(100_000))
    partition = FetchPartitionData(0, 0, 5, 5, 0, [records[:60_000], records[60_000:]])
    parts = fetch_codec.encode_response(17, 0, 0, 0, [(uuid.UUID(int=1), [partition])])
    assert [part.obj for part in parts if isinstance(part, memoryview)] == [records.obj, records.obj]
    assert sum(len(part) for part in parts if not isinstance(part, memoryview)) < 200
    whole = b"".join(parts)
    ((_, (found,)),) = fetch_codec.decode_response(17, memoryview(whole), 0).topics
    (view,) = found.records
    assert isinstance(view, memoryview)
    assert view.obj is whole


def sample_request(version: int) -> FetchRequest:
    key: str | uuid.UUID = uuid.UUID(int=9) if version >= 13 else "departures"
    asked = FetchRequestPartition(0, 1, 2, 3, 4, 5)
    return FetchRequest(1, 2, 3, 4, 5, 0, 6, 7, [(key, [asked, asked])], [(key, (1, 2))], "rack")


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_but_malformed_comes_out_of_a_broken_request(version: int, data: st.DataObject) -> None:
    frame = messages.encode_request(ApiKey.FETCH, version, 1, "c", request_body(sample_request(version)))
    offset = parse_request_header(frame).body_offset
    broken = frame[:offset] + data.draw(mutated(frame[offset:]))
    with contextlib.suppress(MalformedRequest):
        fetch_codec.decode_request(version, memoryview(broken), offset)


@pytest.mark.parametrize("version", FLEXIBLE)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_but_malformed_comes_out_of_a_broken_response(version: int, data: st.DataObject) -> None:
    key: str | uuid.UUID = uuid.UUID(int=9) if version >= 13 else "departures"
    partition = FetchPartitionData(0, 0, 1, 2, 3, [bytes(10)], (1, 2), (3, 4), 5, [(6, 7)])
    good = b"".join(fetch_codec.encode_response(version, 0, 0, 1, [(key, [partition, partition])]))
    broken = data.draw(mutated(good))
    with contextlib.suppress(MalformedRequest):
        fetch_codec.decode_response(version, memoryview(broken), 0)


HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x07"
V4_HEAD = bytes(17)
V12_HEAD = bytes(25)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (4, V4_HEAD + HUGE),
        (4, V4_HEAD + b"\x00\x00\x00\x01\x00\x01t" + HUGE),
        (7, V4_HEAD + bytes(8) + bytes(4) + HUGE),
        (12, V12_HEAD + HUGE_VARINT),
        (12, V12_HEAD + b"\x02\x02t" + HUGE_VARINT),
        (12, V12_HEAD + b"\x01" + HUGE_VARINT),
        (12, V12_HEAD + b"\x01\x02\x02t" + HUGE_VARINT),
        (12, V12_HEAD + b"\x01\x01\x01" + HUGE_VARINT),
        (4, V4_HEAD + struct.pack(">ihi", 1, 0, 1_000_001) + bytes(16) * 1_000_001),
    ],
)
def test_absurd_counts_allocate_nothing(version: int, body: bytes) -> None:
    view = memoryview(body)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            fetch_codec.decode_request(version, view, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("version", [4, 12])
def test_a_request_has_so_many_partitions_at_the_most(version: int) -> None:
    """300,000 of them took 0.3 s to decode, and 0.5 s more to take in."""
    flexible = version >= 12
    head = struct.pack(">iiiib", -1, 0, 0, 0, 0) + (struct.pack(">ii", 0, -1) if flexible else b"")
    size = 33 if flexible else 16

    def decode(topics: int, partitions: int) -> int:
        topic = (
            string("t", flexible) + array_length(partitions, flexible) + bytes(size * partitions) + b"\x00" * flexible
        )
        body = head + array_length(topics, flexible) + topic * topics + b"\x01\x01\x00" * flexible
        return sum(max(len(rows), 1) for _, rows in fetch_codec.decode_request(version, memoryview(body), 0).topics)

    for topics, partitions in ((2, REQUEST_PARTITIONS_MAX // 2), (REQUEST_PARTITIONS_MAX, 0)):
        assert decode(topics, partitions) == REQUEST_PARTITIONS_MAX
        with pytest.raises(MalformedRequest):
            decode(topics + 1, partitions)
