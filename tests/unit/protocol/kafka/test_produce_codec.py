"""The hand-written Produce codec against kio, every version, and against broken frames (BAD-10, 11)."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import messages, produce_codec
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.produce_codec import NodeEndpoint, ProducePartitionResult
from tests.support.kafka_values import durations_ms, error_codes, int16s, int32s, int64s, names, times_ms
from tests.support.mutations import mutated

VERSIONS = range(SUPPORTED[ApiKey.PRODUCE].min, SUPPORTED[ApiKey.PRODUCE].max + 1)

requests = st.fixed_dictionaries(
    {
        "transactional_id": st.none() | names,
        "acks": int16s,
        "timeout": durations_ms,
        "topic_data": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "partition_data": st.lists(
                        st.fixed_dictionaries(
                            {
                                "index": int32s,
                                "records": st.none() | st.binary(max_size=50) | st.integers(100, 20_000).map(bytes),
                            }
                        ),
                        max_size=3,
                    ),
                }
            ),
            max_size=3,
        ),
    }
)
results = st.builds(
    ProducePartitionResult,
    partition=int32s,
    error=error_codes,
    base_offset=int64s,
    log_append_time_ms=times_ms,
    log_start_offset=int64s,
    error_message=st.none() | names,
    leader_id=st.integers(-1, 3),
    leader_epoch=st.integers(-1, 3),
    record_errors=st.just(()),
)
refused_records = st.builds(
    ProducePartitionResult,
    partition=int32s,
    error=error_codes,
    **{field: st.just(-1) for field in ("base_offset", "log_append_time_ms", "log_start_offset")},
    error_message=names,
    **{field: st.just(-1) for field in ("leader_id", "leader_epoch")},
    record_errors=st.lists(st.tuples(int32s, names), max_size=3),
)
endpoints = st.lists(st.builds(NodeEndpoint, int32s, names, int32s, st.none() | names), max_size=2)


def request_frame(version: int, body: dict[str, object]) -> tuple[bytes, int]:
    frame = messages.encode_request(ApiKey.PRODUCE, version, 1, "c", body)
    return frame, parse_request_header(frame).body_offset


def one_partition(records: bytes) -> dict[str, object]:
    partition = {"index": 0, "records": records}
    topic = {"name": "departures", "partition_data": [partition]}
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [topic]}


@pytest.mark.parametrize("version", VERSIONS)
@given(body=requests)
@settings(max_examples=20, deadline=None)
def test_requests_are_read_as_kio_writes_them(version: int, body: dict[str, object]) -> None:
    frame, offset = request_frame(version, body)
    found = produce_codec.decode_request(version, memoryview(frame), offset)
    assert {
        "transactional_id": found.transactional_id,
        "acks": found.acks,
        "timeout": found.timeout_ms,
        "topic_data": [
            {
                "name": name,
                "partition_data": [
                    {"index": index, "records": None if records is None else bytes(records)}
                    for index, records in partitions
                ],
            }
            for name, partitions in found.topics
        ],
    } == body


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 62, 126, 127, 128, 16_382, 16_383, 16_384, 3_000_000])
def test_one_partition_of_any_size_is_a_slice_of_the_frame(version: int, size: int) -> None:
    frame, offset = request_frame(version, one_partition(bytes(size)))
    view = memoryview(frame)
    request = produce_codec.decode_request(version, view, offset)
    ((name, ((partition, records),)),) = request.topics
    assert (name, partition, request.acks, request.timeout_ms) == ("departures", 0, -1, 30_000)
    assert records is not None
    assert len(records) == size
    assert records.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topics=st.lists(st.tuples(names, st.lists(results | refused_records, max_size=3)), max_size=3),
    throttle_ms=durations_ms,
    nodes=endpoints,
)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(
    version: int,
    topics: list[tuple[str, list[ProducePartitionResult]]],
    throttle_ms: int,
    nodes: list[NodeEndpoint],
) -> None:
    body = {
        "responses": [
            {
                "name": name,
                "partition_responses": [
                    {
                        "index": result.partition,
                        "error_code": result.error,
                        "base_offset": result.base_offset,
                        "log_append_time": result.log_append_time_ms,
                        "log_start_offset": result.log_start_offset,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": why}
                            for index, why in result.record_errors
                        ],
                        "error_message": result.error_message,
                        "current_leader": {"leader_id": result.leader_id, "leader_epoch": result.leader_epoch},
                    }
                    for result in partitions
                ],
            }
            for name, partitions in topics
        ],
        "throttle_time": throttle_ms,
        "node_endpoints": [node._asdict() for node in nodes],
    }
    expected = messages.encode_response(ApiKey.PRODUCE, version, body)
    assert produce_codec.encode_response(version, topics, throttle_ms, nodes) == expected


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_but_malformed_comes_out_of_a_broken_frame(version: int, data: st.DataObject) -> None:
    frame, offset = request_frame(version, data.draw(st.sampled_from([one_partition(bytes(30))]) | requests))
    broken = frame[:offset] + data.draw(mutated(frame[offset:]))
    with contextlib.suppress(MalformedRequest):
        produce_codec.decode_request(version, memoryview(broken), offset)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cut", range(1, 30))
def test_a_frame_cut_anywhere_is_malformed(version: int, cut: int) -> None:
    frame, offset = request_frame(version, one_partition(bytes(10)))
    with pytest.raises(MalformedRequest):
        produce_codec.decode_request(version, memoryview(frame[:-cut]), min(offset, len(frame) - cut))


HUGE = struct.pack(">i", 2**31 - 1)
HUGE_VARINT = b"\xff\xff\xff\xff\x07"
ACKS_AND_TIMEOUT = b"\xff\xff\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + HUGE),
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + HUGE + bytes(1000)),
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + b"\x00\x00\x00\x01\x00\x01t" + HUGE),
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00" + HUGE),
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + struct.pack(">i", -2)),
        (9, b"\x00" + ACKS_AND_TIMEOUT + HUGE_VARINT),
        (9, b"\x00" + ACKS_AND_TIMEOUT + b"\x02\x02t" + HUGE_VARINT),
        (9, b"\x00" + ACKS_AND_TIMEOUT + b"\x02\x02t\x02\x00\x00\x00\x00" + HUGE_VARINT),
        (9, b"\x00" + ACKS_AND_TIMEOUT + b"\x02\x02t\x02\x00\x00\x00\x00" + b"\xff" * 100_000),
        (9, b"\x00" + ACKS_AND_TIMEOUT + b"\x02\x00\x01\x00\x00"),
        (9, b"\x00" + ACKS_AND_TIMEOUT + b"\x01" + HUGE_VARINT),
        # More than a million partitions, each of them well formed: refused because reading them would take seconds.
        (3, b"\xff\xff" + ACKS_AND_TIMEOUT + struct.pack(">ihi", 1, 0, 1_000_001) + bytes(8) * 1_000_001),
    ],
)
def test_absurd_counts_allocate_nothing(version: int, body: bytes) -> None:
    view = memoryview(body)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            produce_codec.decode_request(version, view, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
