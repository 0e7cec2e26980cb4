"""Answers that say an error, for every API and version that can have one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from protocol.conversation import api_errors
from protocol.conversation.asked import Asked, plain
from protocol.conversation.error_answers import STAMPED, body_with, is_outermost, merged, split
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.by_schema import fields_of
from protocol.kafka.framing import parse_request_header, response_header

TOPIC_ID = uuid.UUID(int=7)
EVERYTHING = [
    (api, version)
    for api in ApiKey
    if api_errors.errors_of(api)
    for version in range(SUPPORTED[api].min, SUPPORTED[api].max + 1)
]


def sample(schema: Any) -> dict[str, Any]:
    """A request that names two of everything."""
    found: dict[str, Any] = {}
    for field in fields_of(schema):
        if field.is_array and field.element is not None:
            found[field.name] = [sample(field.element), sample(field.element)]
            for number, row in enumerate(found[field.name]):
                for name in ("partition_index", "partition", "index"):
                    if name in row:
                        row[name] = number
        elif field.is_array:
            found[field.name] = ["a", "b"] if field.kafka_type == "string" else [0, 1]
        elif field.element is not None:
            found[field.name] = sample(field.element)
        elif field.kafka_type == "string":
            found[field.name] = "name"
        elif field.kafka_type in ("bytes", "records"):
            found[field.name] = b"some bytes"
        elif field.kafka_type == "uuid":
            found[field.name] = TOPIC_ID
        else:
            found[field.name] = 0
    return found


def asked(api: ApiKey, version: int, **changes: Any) -> Asked:
    body = {**sample(messages.request_schema(api, version)), **changes}
    frame = messages.encode_request(api, version, 5, "client", body)
    return Asked(parse_request_header(frame), frame, {TOPIC_ID: "name"}.get)


def answer(api: ApiKey, version: int, body: bytes) -> Any:
    return plain(messages.decode_response(api, version, response_header(api, version, 5) + body)[1])


def errors_in(value: Any) -> Iterator[tuple[int, int]]:
    """(depth, error code) of each error field."""
    for name, each in value.items():
        if name.endswith("error_code") and name != "topic_config_error_code":
            yield 0, each
        for row in each if isinstance(each, list) else ():
            if isinstance(row, Mapping):
                for depth, code in errors_in(row):
                    yield depth + 1, code


@pytest.mark.parametrize(("api", "version"), EVERYTHING)
def test_the_error_stands_where_a_client_looks(api: ApiKey, version: int) -> None:
    """It is that of the whole request, or that of every innermost row; the other error fields say NONE."""
    request = asked(api, version)
    assert request.body is not None
    for name in api_errors.errors_of(api, version)[:2] + api_errors.errors_of(api, version)[-1:]:
        error = ErrorCode[name]
        codes = list(errors_in(answer(api, version, body_with(api, version, request.body, error))))
        depths = [depth for depth, code in codes if code == error]
        if api in STAMPED:
            continue
        where = min if is_outermost(api, error) else max
        assert set(depths) == {where(depth for depth, _ in codes)}, (name, codes)
        assert {code for depth, code in codes if depth not in depths} <= {ErrorCode.NONE}
        assert len(set(depths)) == 1
        assert depths.count(depths[0]) == [depth for depth, _ in codes].count(depths[0])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, "00000000 0010"),
        (7, "00000000 01 0010 00"),
        (9, "00000000 02 056e616d65 01 0010 00 00"),
    ],
)
def test_the_error_of_a_group_comes_without_partitions(version: int, expected: str) -> None:
    """The body of a real Kafka 4.1.1 that is not the coordinator: librdkafka does with it what it does not with rows."""
    groups = (
        {"groups": [sample(messages.request_schema(ApiKey.OFFSET_FETCH, version))["groups"][0]]} if version > 7 else {}
    )
    request = asked(ApiKey.OFFSET_FETCH, version, **groups)
    assert request.body is not None
    body = body_with(ApiKey.OFFSET_FETCH, version, request.body, ErrorCode.NOT_COORDINATOR)
    assert body == bytes.fromhex(expected)


def test_unstable_offsets_are_those_of_partitions() -> None:
    request = asked(ApiKey.OFFSET_FETCH, 9)
    assert request.body is not None
    unstable = body_with(ApiKey.OFFSET_FETCH, 9, request.body, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    for group in answer(ApiKey.OFFSET_FETCH, 9, unstable)["groups"]:
        assert group["error_code"] == ErrorCode.NONE
        assert {row["error_code"] for topic in group["topics"] for row in topic["partitions"]} == {
            ErrorCode.UNSTABLE_OFFSET_COMMIT
        }


@pytest.mark.parametrize(("api", "version"), EVERYTHING)
def test_a_request_is_read_and_written_alike(api: ApiKey, version: int) -> None:
    request = asked(api, version)
    assert request.body is not None
    assert messages.encode_request(api, version, 5, "client", request.body) == request.frame


@pytest.mark.parametrize(
    ("api", "version"), [(ApiKey.PRODUCE, 9), (ApiKey.FETCH, 12), (ApiKey.FETCH, 17), (ApiKey.LIST_OFFSETS, 9)]
)
def test_a_part_of_a_request_is_answered_with_the_rest(api: ApiKey, version: int) -> None:
    """The answer has every partition that was asked for: with the error those that were hit."""
    request = asked(api, version)
    assert request.body is not None
    hit, rest = split(request.body, request.name_of, lambda topic, partition: partition == 1)
    done = answer(api, version, body_with(api, version, rest, ErrorCode.NONE))
    failed = answer(api, version, body_with(api, version, hit, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    both = merged(done, failed)
    expected = answer(api, version, body_with(api, version, request.body, ErrorCode.NONE))
    rows = "responses" if api in (ApiKey.PRODUCE, ApiKey.FETCH) else "topics"

    def partitions(of: Any) -> list[tuple[int, int]]:
        inner = "partition_responses" if api is ApiKey.PRODUCE else "partitions"
        key = "index" if api is ApiKey.PRODUCE else "partition_index"
        return sorted((row[key], row["error_code"]) for topic in of[rows] for row in topic[inner])

    assert [number for number, _ in partitions(both)] == [number for number, _ in partitions(expected)]
    assert {code for number, code in partitions(both) if number == 1} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert {code for number, code in partitions(both) if number == 0} == {ErrorCode.NONE}


def test_every_error_is_one_of_kafkas() -> None:
    for api, _ in EVERYTHING:
        assert set(api_errors.errors_of(api)) <= set(ErrorCode.__members__), api


def test_what_a_request_names() -> None:
    produce = asked(ApiKey.PRODUCE, 9)
    assert {(each.topic, each.partition) for each in produce.named} == {("name", 0), ("name", 1)}
    assert produce.transactional_ids == {"name"}
    assert {each.topic for each in asked(ApiKey.FETCH, 17).named} == {"name"}, "by its id"
    assert asked(ApiKey.FIND_COORDINATOR, 4, key_type=0).groups == {"a", "b"}
    assert asked(ApiKey.FIND_COORDINATOR, 4, key_type=1).transactional_ids == {"a", "b"}
    assert asked(ApiKey.DELETE_GROUPS, 2).groups == {"a", "b"}
    assert asked(ApiKey.CONSUMER_GROUP_DESCRIBE, 1).groups == {"a", "b"}
    assert len(asked(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1).groups) == 1
    assert asked(ApiKey.FETCH, 12, replica_id=3).is_of_broker
    assert not asked(ApiKey.FETCH, 12, replica_id=-1).is_of_broker
