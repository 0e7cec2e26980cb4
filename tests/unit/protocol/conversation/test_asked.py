"""What a request names, and whether it has an answer; a Fetch is read and answered as by the schemas, only faster."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.conversation import error_answers
from protocol.conversation.asked import FIRST_WITH_SESSIONS, Asked, Named, has_answer, outside_of_sessions, plain
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, parse_request_header

TOPICS = {uuid.UUID(int=number): f"topic-{number}" for number in range(1, 4)}


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("transactional_id", [None, "", "pay", "x" * 300])
@pytest.mark.parametrize("version", range(3, 13))
def test_only_acks_0_has_no_answer(version: int, transactional_id: str | None, acks: int) -> None:
    body: dict[str, Any] = {"transactional_id": transactional_id, "acks": acks, "timeout": 1, "topic_data": []}
    frame = messages.encode_request(ApiKey.PRODUCE, version, 1, "c", body)
    header = parse_request_header(frame)
    assert has_answer(header, frame) == Asked(header, frame, TOPICS.get).has_answer == (acks != 0)


def test_other_requests_have_answers() -> None:
    frame = messages.encode_request(
        ApiKey.HEARTBEAT, 4, 1, "c", {"group_id": "g", "generation_id": 0, "member_id": "m"}
    )
    assert has_answer(parse_request_header(frame), frame)


def test_a_produce_that_is_cut_off_is_an_error() -> None:
    body: dict[str, Any] = {"transactional_id": None, "acks": 0, "timeout": 1, "topic_data": []}
    frame = messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body)
    header = parse_request_header(frame)
    with pytest.raises(MalformedRequest):
        has_answer(header, frame[: header.body_offset + 1])
    assert Asked(header, frame[: header.body_offset + 1], TOPICS.get).has_answer, "whoever serves it says so"


@st.composite
def fetches(draw: st.DrawFn) -> Asked:
    """Fetches of consumers and followers, in all versions, of topics of which some are not known by their ids."""
    version = draw(st.integers(4, 17))
    rows = [
        {
            **({"topic": f"topic-{number}"} if version < 13 else {"topic_id": uuid.UUID(int=number)}),
            "partitions": [
                {"partition": partition, "fetch_offset": draw(st.integers(0, 2**62)), "partition_max_bytes": 100}
                for partition in draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
            ],
        }
        for number in draw(st.lists(st.integers(1, 5), max_size=4, unique=True))
    ]
    replica = draw(st.sampled_from([-1, 3]))
    body: dict[str, Any] = {
        **({"replica_id": replica} if version < 15 else {"replica_state": {"replica_id": replica}}),
        "max_wait": 500,
        "min_bytes": 1,
        "topics": rows,
    }
    if version >= 7:
        body |= {"session_id": 7, "session_epoch": draw(st.sampled_from([-1, 0, 4])), "forgotten_topics_data": []}
    frame = messages.encode_request(ApiKey.FETCH, version, 3, "c", body)
    return Asked(parse_request_header(frame), frame, TOPICS.get)


@given(fetches(), st.sampled_from([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FETCH_SESSION_ID_NOT_FOUND]))
def test_a_fetch_is_looked_at_as_by_the_schemas(fast: Asked, error: ErrorCode) -> None:
    version = fast.header.api_version
    slow = Asked(fast.header, fast.frame, fast.name_of)
    slow.fetch = None
    assert fast.fetch is not None
    assert slow.body is not None
    assert (fast.named, fast.topics, fast.is_of_broker) == (slow.named, slow.topics, slow.is_of_broker)
    assert fast.session_epoch == slow.session_epoch
    assert fast.without_session() == slow.without_session()
    if version < FIRST_WITH_SESSIONS:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    answers = [
        error_answers.fetch_body_with(version, fast.fetch, error),
        error_answers.body_with(ApiKey.FETCH, version, slow.body, error),
    ]
    assert answers[0] == answers[1]


def test_topics_have_their_partitions() -> None:
    body: dict[str, Any] = {
        "acks": 1,
        "timeout": 1,
        "topic_data": [{"name": "a", "partition_data": [{"index": number, "records": b""} for number in (3, 1)]}],
    }
    frame = messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body)
    asked = Asked(parse_request_header(frame), frame, TOPICS.get)
    assert asked.named == [Named("a", 3), Named("a", 1)]
    assert asked.topics == {"a": frozenset({1, 3})}
    assert outside_of_sessions(plain({"acks": 1})) == {"acks": 1}
