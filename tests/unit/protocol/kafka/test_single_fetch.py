"""The kept form of a consumer's fetch of one partition: what it decodes and encodes is what `fetch_codec` does."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka import fetch_codec, messages, single_fetch
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.fetch_codec import (
    READ_COMMITTED,
    FetchPartitionData,
    FetchRequest,
    FetchRequestPartition,
)
from protocol.kafka.framing import in_memory, parse_request_header, response_header
from protocol.kafka.wire import TopicKey

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
NAMES = st.one_of(st.text(min_size=0, max_size=20), st.text(alphabet="\x02a", min_size=125, max_size=140))
PARTITIONS = st.builds(FetchRequestPartition, INT, INT, LONG, INT, LONG, INT)


@dataclass(frozen=True)
class Asked:
    version: int
    request: FetchRequest

    @property
    def frame(self) -> memoryview:
        if self.version >= single_fetch.FLEXIBLE_SINCE:
            return memoryview(fetch_codec.encode_request(self.version, 5, "client", self.request))
        body = self.request._asdict()
        body["max_wait"] = body.pop("max_wait_ms")
        body["topics"] = [
            {"topic": name, "partitions": [row._asdict() for row in rows]} for name, rows in body["topics"]
        ]
        body["forgotten_topics_data"] = [
            {"topic": name, "partitions": list(numbers)} for name, numbers in body.pop("forgotten")
        ]
        return memoryview(messages.encode_request(ApiKey.FETCH, self.version, 5, "client", body))


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """Mostly those that are kept, and others that differ from them in one place."""
    version = draw(st.sampled_from(single_fetch.VERSIONS))
    keys: st.SearchStrategy[TopicKey] = st.uuids().filter(lambda key: key.int > 0) if version >= 13 else NAMES
    one = st.lists(PARTITIONS, min_size=1, max_size=1)
    topics = st.lists(st.tuples(keys, st.one_of(one, one, st.lists(PARTITIONS, max_size=2))), min_size=1, max_size=1)
    replica = draw(st.sampled_from([-1, -1, -1, 2]))
    session = draw(st.sampled_from([(0, -1), (0, -1), (0, 0), (7, 3)])) if version >= 7 else (0, -1)
    request = FetchRequest(
        replica,
        9 if replica >= 0 and version >= 15 else -1,
        *(draw(INT), draw(INT), draw(INT), draw(st.integers(0, 1))),
        *session,
        draw(st.one_of(topics, st.lists(st.tuples(keys, one), max_size=2))),
        draw(st.sampled_from([[], [], [(uuid.UUID(int=3) if version >= 13 else "t", [1])]])) if version >= 7 else [],
        draw(st.sampled_from(["", "rack"])) if version >= 11 else "",
    )
    return Asked(version, request)


def is_kept(asked: Asked) -> bool:
    request = asked.request
    is_single = len(request.topics) == 1 and len(request.topics[0][1]) == 1
    return is_single and request.session_epoch == -1 and request.replica_id < 0 and not request.forgotten


@given(asked=requests(), other_offset=LONG)
def test_a_request_is_decoded_as_by_the_general_codec(asked: Asked, other_offset: int) -> None:
    at = parse_request_header(asked.frame).body_offset
    found = single_fetch.find(asked.version, asked.frame, at)
    if found is None:
        key = asked.request.topics[0][0] if asked.request.topics else ""
        assert not is_kept(asked) or (isinstance(key, str) and len(key.encode()) > 126)
        return
    single, offset = found
    decoded = fetch_codec.decode_request(asked.version, asked.frame, at)
    assert is_kept(asked)
    assert single.request_at(offset) == decoded
    moved = single.request_at(other_offset)
    following = single_fetch.find(asked.version, Asked(asked.version, moved).frame, at)
    assert following is not None
    assert following[0] is single, "the second request is not decoded again"
    assert following[0].request_at(following[1]) == moved


@given(
    asked=requests().filter(is_kept),
    numbers=st.tuples(LONG, LONG, LONG),
    records=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=2),
    correlation_id=INT,
)
def test_an_answer_has_the_bytes_of_the_general_codec(
    asked: Asked, numbers: tuple[int, int, int], records: list[bytes], correlation_id: int
) -> None:
    found = single_fetch.find(asked.version, asked.frame, parse_request_header(asked.frame).body_offset)
    if found is None:
        return
    single, _ = found
    key, (wanted,) = asked.request.topics[0]
    aborted = () if asked.request.isolation_level == READ_COMMITTED else None
    data = FetchPartitionData(wanted.partition, 0, *numbers, records, aborted_transactions=aborted)
    body = b"".join(fetch_codec.encode_response(asked.version, 0, 0, 0, [(key, [data])]))
    general = response_header(ApiKey.FETCH, asked.version, correlation_id) + body
    answer = b"".join(in_memory(single.answer(correlation_id, *numbers, records, sum(map(len, records)))))
    assert answer == len(general).to_bytes(4, "big") + general


@pytest.mark.parametrize("version", single_fetch.VERSIONS)
def test_a_request_that_is_cut_off_is_left_to_the_general_codec(version: int) -> None:
    key = uuid.UUID(int=1) if version >= 13 else "topic"
    partition = FetchRequestPartition(0, 1, 5, -1, -1, 1000)
    frame = Asked(version, FetchRequest(-1, -1, 500, 1, 1000, 0, 0, -1, [(key, [partition])], [])).frame
    at = parse_request_header(frame).body_offset
    assert single_fetch.find(version, frame, at) is not None
    assert [end for end in range(at, len(frame)) if single_fetch.find(version, frame[:end], at) is not None] == []


@pytest.mark.parametrize("version", range(single_fetch.SESSIONS_SINCE, single_fetch.VERSIONS.stop))
def test_a_request_that_closes_a_session_is_left_to_the_general_codec(version: int) -> None:
    key = uuid.UUID(int=1) if version >= 13 else "topic"
    partition = FetchRequestPartition(0, 1, 5, -1, -1, 1000)
    frame = Asked(version, FetchRequest(-1, -1, 500, 1, 1000, 0, 7, -1, [(key, [partition])], [])).frame
    assert single_fetch.find(version, frame, parse_request_header(frame).body_offset) is None
