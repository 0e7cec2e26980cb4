"""Control frames are read as they were written, and other bytes are a ValueError (FMT-4)."""

from __future__ import annotations

import contextlib
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.rpc import framing, parsing
from protocol.rpc.messages import (
    NO_TOPIC_ID,
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.topic_ids import new_topic_id
from protocol.types import BrokerInfo, Endpoint

EPOCH = 2**31 - 1
correlation_ids = st.integers(-(2**31), 2**31 - 1)
ids = st.integers(0, 2**31 - 1)
longs = st.integers(-1, 2**63 - 1)
names = st.text(max_size=8)
topics = st.from_regex(r"[a-z]\.?[A-Z0-9_-]{0,6}", fullmatch=True)
id_lists = st.lists(ids, max_size=4).map(tuple)
states = st.builds(
    PartitionState,
    *(topics, ids, st.integers(-1, EPOCH), st.integers(-2, 2**31 - 1), st.integers(-1, 2**31 - 1), id_lists),
    *(st.integers(-1, 2**31 - 1), id_lists, id_lists, id_lists, st.booleans(), id_lists),
)
brokers = st.builds(
    BrokerInfo,
    ids,
    longs,
    st.lists(st.builds(Endpoint, names, names, st.integers(0, 65535), names), max_size=2).map(tuple),
    st.none() | names,
)
state_lists = st.lists(states, max_size=3).map(tuple)
broker_lists = st.lists(brokers, max_size=3).map(tuple)
topic_ids = st.dictionaries(topics, st.binary(min_size=16, max_size=16).map(new_topic_id), max_size=3)
stops = st.lists(
    st.builds(StopReplicaPartition, topics, ids, st.integers(-2, 2**31 - 1), st.booleans()), max_size=3
).map(tuple)
numbers = st.integers(0, 2**63 - 1)
head = (ids, st.just(EPOCH), longs, state_lists, topic_ids, broker_lists, st.booleans())
requests = st.one_of(
    st.builds(LeaderAndIsrRequest, *head, st.lists(names, max_size=2).map(tuple), numbers),
    st.builds(UpdateMetadataRequest, *head, numbers, st.dictionaries(topics, ids, max_size=3)),
    st.builds(StopReplicaRequest, ids, ids, longs, stops, topic_ids, numbers),
    st.builds(ControlledShutdownRequest, ids, longs),
)
responses = st.builds(
    ControlResponse,
    st.sampled_from(ErrorCode),
    st.lists(st.builds(PartitionError, topics, ids, st.integers(-1, 100)), max_size=3).map(tuple),
    st.one_of(topic_ids, st.dictionaries(topics, st.just(NO_TOPIC_ID), max_size=3)),
)


def in_steps(frame: bytes | memoryview) -> tuple[int, ControlRequest]:
    """As `parse_request`, in steps of the smallest size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "PIECE_BYTES", 400)
        patch.setattr(parsing, "VALUES_IN_A_STEP", 3)
        return framing.parse_request(frame)


@given(correlation_id=correlation_ids, request=requests)
def test_a_request_is_read_as_it_was_written(correlation_id: int, request: ControlRequest) -> None:
    frame = framing.request_frame(correlation_id, request)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    assert framing.parse_request(frame[4:]) == in_steps(frame[4:]) == (correlation_id, request)
    assert framing.parse_request(memoryview(framing.request_payload(correlation_id, request))) == (
        correlation_id,
        request,
    )


@given(correlation_id=correlation_ids, response=responses)
def test_a_response_is_read_as_it_was_written(correlation_id: int, response: ControlResponse) -> None:
    frame = framing.response_frame(correlation_id, response)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    assert framing.parse_response(memoryview(frame)[4:]) == (correlation_id, response)


@given(st.binary(max_size=64))
def test_bytes_that_are_not_a_frame_are_refused(frame: bytes) -> None:
    for parse in (framing.parse_request, in_steps, framing.parse_response):
        with contextlib.suppress(ValueError):
            parse(frame)


@pytest.mark.parametrize(
    "body", [[], {}, 7, "x", [1], [9, 1, 2], [4, 1], [4, 1, 2, 3], [1, 1, 1, 1, 5, {}, [], False], [3, 1, 1, 1, [[1]]]]
)
def test_a_body_of_another_shape_is_refused(body: object) -> None:
    for parse in (framing.parse_request, in_steps):
        with pytest.raises(ValueError, match="malformed control request"):
            parse(struct.pack(">i", 1) + msgpack.packb(body))


def test_a_large_request_is_parsed_in_steps() -> None:
    states = tuple(PartitionState("t", number, 1, 2, 3, (1, 2), 4, (1, 2)) for number in range(5000))
    request = UpdateMetadataRequest(1, 2, 3, states, {}, ())
    assert sum(1 for _ in framing.parsing_request(framing.request_payload(1, request))) >= 3


@given(requests, st.data())
def test_a_torn_frame_is_refused(request: ControlRequest, data: st.DataObject) -> None:
    frame = framing.request_payload(1, request)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for parse in (framing.parse_request, in_steps):
        with pytest.raises(ValueError, match="malformed control request"):
            parse(frame[:cut])
