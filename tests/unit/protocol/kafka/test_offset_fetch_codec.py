"""OffsetFetch by hand against kio, every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka import messages
from protocol.kafka import offset_fetch_codec as codec
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header
from protocol.kafka.offset_fetch_codec import AskedGroup, OffsetFetchRequest, Position
from tests.support.kafka_values import error_codes, int32s, int64s, names

VERSIONS = range(SUPPORTED[ApiKey.OFFSET_FETCH].min, SUPPORTED[ApiKey.OFFSET_FETCH].max + 1)

asked_topics = st.lists(st.tuples(names, st.lists(int32s, max_size=3).map(tuple)), max_size=3)
requests = st.builds(
    OffsetFetchRequest,
    st.lists(st.builds(AskedGroup, names, st.none() | asked_topics), min_size=1, max_size=3),
    st.booleans(),
)
positions = st.builds(Position, int32s, int64s, int32s, names, error_codes)
answers = st.lists(
    st.tuples(names, error_codes, st.lists(st.tuples(names, st.lists(positions, max_size=3)), max_size=3))
)
ONE = OffsetFetchRequest([AskedGroup("g", [("t", (0, 1)), ("u", ())])], True)


def as_of(version: int, request: OffsetFetchRequest) -> OffsetFetchRequest:
    """What is left of it in that version."""
    groups = request.groups if version >= codec.MANY_SINCE else request.groups[:1]
    if version < codec.GROUP_ERROR_SINCE:
        groups = [group._replace(topics=group.topics or []) for group in groups]
    return OffsetFetchRequest(groups, request.require_stable and version >= codec.REQUIRE_STABLE_SINCE)


def encoded(version: int, request: OffsetFetchRequest) -> bytes:
    groups: list[dict[str, Any]] = [
        {
            "group_id": group_id,
            "member_id": None,
            "member_epoch": -1,
            "topics": topics
            if topics is None
            else [{"name": name, "partition_indexes": list(numbers)} for name, numbers in topics],
        }
        for group_id, topics in request.groups
    ]
    body = {"require_stable": request.require_stable}
    body |= {"groups": groups} if version >= codec.MANY_SINCE else groups[0]
    frame = messages.encode_request(ApiKey.OFFSET_FETCH, version, 1, None, body)
    return frame[parse_request_header(frame).body_offset :]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(request=requests)
def test_requests(version: int, request: OffsetFetchRequest) -> None:
    expected = as_of(version, request)
    assert codec.decode_request(version, encoded(version, expected), 0) == expected


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(answer=answers)
def test_responses(version: int, answer: Any) -> None:
    answer = answer if version >= codec.MANY_SINCE else [*answer, ("g", 0, [])][:1]
    rows = [
        codec.encode_group(
            version,
            group_id,
            error,
            [codec.encode_topic(version, name, len(p), [codec.encode_positions(version, p)]) for name, p in topics],
        )
        for group_id, error, topics in answer
    ]
    bodies = [
        {
            "group_id": group_id,
            "error_code": error,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": each.partition,
                            "committed_offset": each.offset,
                            "committed_leader_epoch": each.leader_epoch,
                            "metadata": each.metadata,
                            "error_code": each.error,
                        }
                        for each in found
                    ],
                }
                for name, found in topics
            ],
        }
        for group_id, error, topics in answer
    ]
    body: dict[str, Any] = {"throttle_time": 0}
    body |= {"groups": bodies} if version >= codec.MANY_SINCE else bodies[0]
    assert codec.encode_response(version, rows) == messages.encode_response(ApiKey.OFFSET_FETCH, version, body)


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_is_cut_off_is_malformed(version: int) -> None:
    """BAD-10."""
    whole = encoded(version, as_of(version, ONE))
    for end in range(len(whole)):
        with pytest.raises(MalformedRequest):
            codec.decode_request(version, whole[:end], 0)
    with pytest.raises(MalformedRequest):
        codec.decode_request(version, whole + b"\0", 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_array_that_is_not_there_is_malformed(version: int) -> None:
    """BAD-11: nothing is made of an announced length before."""
    whole = encoded(version, OffsetFetchRequest([AskedGroup("g", [])], False))
    length = b"\xff\xff\xff\xff\x07" if version >= codec.FLEXIBLE_SINCE else b"\x7f\xff\xff\xff"
    at = whole.index(b"g") + 1 + (5 if version >= codec.MEMBER_SINCE else 0)
    with pytest.raises(MalformedRequest):
        codec.decode_request(version, whole[:at] + length + whole[at:], 0)
