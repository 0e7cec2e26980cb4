"""ListOffsets by hand against kio, every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import list_offsets_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.list_offsets_codec import AskedOffset, ListOffsetsPartitionResult, ListOffsetsRequest
from tests.support.kafka_values import durations_ms, error_codes, int32s, int64s, names

VERSIONS = range(SUPPORTED[ApiKey.LIST_OFFSETS].min, SUPPORTED[ApiKey.LIST_OFFSETS].max + 1)

results = st.builds(ListOffsetsPartitionResult, int32s, error_codes, int64s, int64s, int32s)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=st.lists(st.tuples(names, st.lists(results, max_size=3)), max_size=3), throttle_ms=durations_ms)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(
    version: int, topics: list[tuple[str, list[ListOffsetsPartitionResult]]], throttle_ms: int
) -> None:
    body = {
        "throttle_time": throttle_ms,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": result.partition,
                        "error_code": result.error,
                        "timestamp": result.timestamp,
                        "offset": result.offset,
                        "leader_epoch": result.leader_epoch,
                    }
                    for result in partitions
                ],
            }
            for name, partitions in topics
        ],
    }
    expected = messages.encode_response(ApiKey.LIST_OFFSETS, version, body)
    encoded = [
        list_offsets_codec.encode_topic(version, name, len(rows), [list_offsets_codec.encode_results(version, rows)])
        for name, rows in topics
    ]
    assert list_offsets_codec.encode_response(version, encoded, throttle_ms) == expected


asked = st.lists(st.tuples(names, st.lists(st.builds(AskedOffset, int32s, int32s, int64s), max_size=3)), max_size=3)
requests = st.builds(ListOffsetsRequest, int32s, st.sampled_from([0, 1]), asked)
ONE = ListOffsetsRequest(-1, 1, [("t", [AskedOffset(0, 5, -1), AskedOffset(1, 5, 99)]), ("u", [])])


def as_of(version: int, request: ListOffsetsRequest) -> ListOffsetsRequest:
    """What is left of it in that version."""
    topics = request.topics
    if version < list_offsets_codec.LEADER_EPOCH_SINCE:
        topics = [(name, [row._replace(current_leader_epoch=-1) for row in rows]) for name, rows in topics]
    isolated = version >= list_offsets_codec.ISOLATION_SINCE
    return ListOffsetsRequest(request.replica_id, request.isolation_level if isolated else 0, topics)


def sent(version: int, request: ListOffsetsRequest) -> bytes:
    body = {
        "replica_id": request.replica_id,
        "isolation_level": request.isolation_level,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": row.partition,
                        "current_leader_epoch": row.current_leader_epoch,
                        "timestamp": row.timestamp,
                    }
                    for row in rows
                ],
            }
            for name, rows in request.topics
        ],
    }
    frame = messages.encode_request(ApiKey.LIST_OFFSETS, version, 1, None, body)
    return frame[parse_request_header(frame).body_offset :]


def decoded(version: int, frame: bytes) -> ListOffsetsRequest:
    steps = list_offsets_codec.decoding(version, frame, 0)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: ListOffsetsRequest = end.value
            return request


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests)
@settings(max_examples=40, deadline=None)
def test_requests(version: int, request: ListOffsetsRequest) -> None:
    assert decoded(version, sent(version, request)) == as_of(version, request)


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_is_cut_off_is_malformed(version: int) -> None:
    """BAD-10."""
    whole = sent(version, ONE)
    assert decoded(version, whole) == as_of(version, ONE)
    for end in range(len(whole)):
        with pytest.raises(MalformedRequest):
            decoded(version, whole[:end])
    with pytest.raises(MalformedRequest):
        decoded(version, whole + b"\0")
