"""OffsetCommit by hand against kio, every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import messages, offset_commit_codec
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.offset_commit_codec import (
    INSTANCE_ID_SINCE,
    LEADER_EPOCH_SINCE,
    RETENTION_UNTIL,
    CommittedPartition,
    OffsetCommitRequest,
)
from tests.support.kafka_values import durations_ms, error_codes, int32s, int64s, names

VERSIONS = range(SUPPORTED[ApiKey.OFFSET_COMMIT].min, SUPPORTED[ApiKey.OFFSET_COMMIT].max + 1)

partitions = st.builds(CommittedPartition, int32s, int64s, int32s, st.none() | names)
topics = st.lists(st.tuples(names, st.lists(partitions, max_size=3)), max_size=3)
requests = st.builds(OffsetCommitRequest, names, int32s, names, st.none() | names, durations_ms | st.just(-1), topics)
ONE = OffsetCommitRequest("g", 1, "m", "i", -1, [("t", [CommittedPartition(0, 5, 2, "meta")])])


def encoded(version: int, request: OffsetCommitRequest) -> bytes:
    body = {
        "group_id": request.group_id,
        "generation_id_or_member_epoch": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "retention_time": request.retention_ms,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": row.partition,
                        "committed_offset": row.offset,
                        "committed_leader_epoch": row.leader_epoch,
                        "committed_metadata": row.metadata,
                    }
                    for row in rows
                ],
            }
            for name, rows in request.topics
        ],
    }
    frame = messages.encode_request(ApiKey.OFFSET_COMMIT, version, 1, None, body)
    return frame[parse_request_header(frame).body_offset :]


def as_of(version: int, request: OffsetCommitRequest) -> OffsetCommitRequest:
    """What is left of it in that version."""
    epochs = version >= LEADER_EPOCH_SINCE
    return request._replace(
        instance_id=request.instance_id if version >= INSTANCE_ID_SINCE else None,
        retention_ms=request.retention_ms if version <= RETENTION_UNTIL else -1,
        topics=[
            (name, [row if epochs else row._replace(leader_epoch=-1) for row in rows]) for name, rows in request.topics
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(request_=requests)
@settings(max_examples=30, deadline=None)
def test_requests_are_read_as_kio_writes_them(version: int, request_: OffsetCommitRequest) -> None:
    found = offset_commit_codec.decode_request(version, memoryview(encoded(version, request_)), 0)
    assert found == as_of(version, request_)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    rows=st.lists(st.tuples(names, st.lists(st.tuples(int32s, error_codes), max_size=3)), max_size=3),
    throttle_ms=durations_ms,
)
@settings(max_examples=20, deadline=None)
def test_responses_are_kios_byte_for_byte(
    version: int, rows: list[tuple[str, list[tuple[int, int]]]], throttle_ms: int
) -> None:
    body = {
        "throttle_time": throttle_ms,
        "topics": [
            {"name": name, "partitions": [{"partition_index": number, "error_code": error} for number, error in parts]}
            for name, parts in rows
        ],
    }
    expected = messages.encode_response(ApiKey.OFFSET_COMMIT, version, body)
    assert offset_commit_codec.encode_response(version, rows, throttle_ms) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_any_cut_and_any_byte_more_is_malformed(version: int) -> None:
    """BAD-10."""
    data = encoded(version, ONE)
    for broken in (*(data[:end] for end in range(len(data))), data + b"\x00"):
        with pytest.raises(MalformedRequest):
            offset_commit_codec.decode_request(version, memoryview(broken), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_array_that_the_frame_cannot_hold_is_malformed(version: int) -> None:
    """BAD-11."""
    data = encoded(version, ONE._replace(topics=[]))
    is_flexible = version >= offset_commit_codec.FLEXIBLE_SINCE
    many = b"\xff\xff\xff\xff\x07" if is_flexible else b"\x7f\xff\xff\xff"
    broken = data[:-2] + many + b"\x00" if is_flexible else data[:-4] + many
    with pytest.raises(MalformedRequest, match="array"):
        offset_commit_codec.decode_request(version, memoryview(broken), 0)


def test_the_longest_retention() -> None:
    """More milliseconds than a timedelta of kio's holds."""
    data = bytearray(encoded(2, ONE))
    at = len(b"\0\1g") + 4 + len(b"\0\1m")
    data[at : at + 8] = (2**63 - 1).to_bytes(8, "big")
    assert offset_commit_codec.decode_request(2, memoryview(bytes(data)), 0).retention_ms == 2**63 - 1
