"""What a request makes of settings, and the codes of a real Kafka 3.9.1 for what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.config_changes import Change, Operation, changed
from broker.config import BrokerConfig, TopicConfig
from protocol.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = Operation
REPLICAS = "follower.replication.throttled.replicas"


def altered(
    current: dict[str, str], *changes: tuple[str, int, str | None], config: type = TopicConfig
) -> dict[str, str]:
    return changed(config, current, [Change(*change) for change in changes], config())


@pytest.mark.parametrize(
    ("current", "change", "expected"),
    [
        ({}, ("flush.ms", SET, " 5 "), {"flush.ms": "5"}),
        ({"flush.ms": "1", "retention.ms": "2"}, ("flush.ms", SET, "5"), {"flush.ms": "5", "retention.ms": "2"}),
        ({"flush.ms": "1", "retention.ms": "2"}, ("flush.ms", DELETE, None), {"retention.ms": "2"}),
        ({"flush.ms": "1"}, ("flush.ms", DELETE, "whatever"), {}),
        ({}, ("flush.ms", DELETE, None), {}),
        ({"retention.mss": "9"}, ("retention.mss", DELETE, None), {}),
        ({"retention.ms": "rubbish"}, ("flush.ms", SET, "5"), {"retention.ms": "rubbish", "flush.ms": "5"}),
        ({}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        (
            {"cleanup.policy": "compact"},
            ("cleanup.policy", APPEND, "compact, delete"),
            {"cleanup.policy": "compact,delete"},
        ),
        ({"cleanup.policy": "compact"}, ("cleanup.policy", SUBTRACT, "compact"), {"cleanup.policy": ""}),
        ({}, (REPLICAS, APPEND, "0:1,1:2"), {REPLICAS: "0:1,1:2"}),
        ({REPLICAS: "0:1,1:2"}, (REPLICAS, SUBTRACT, "0:1,7:7"), {REPLICAS: "1:2"}),
        ({}, ("preallocate", SET, "TRUE"), {"preallocate": "true"}),
    ],
)
def test_changes(current: dict[str, str], change: tuple[str, int, str | None], expected: dict[str, str]) -> None:
    before = dict(current)
    assert altered(current, change) == expected
    assert current == before, "what it is given stays"


@pytest.mark.parametrize(
    ("config", "changes", "code"),
    [
        (TopicConfig, [("retention.mss", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("retention.ms", SET, "abc")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("retention.ms", SET, "-2")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("retention.ms", SET, "")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("retention.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("cleanup.policy", APPEND, "burn")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [(REPLICAS, APPEND, "*"), (REPLICAS, SET, "0:1")], ErrorCode.INVALID_REQUEST),
        (TopicConfig, [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TopicConfig, [("cleanup.policy", APPEND, None)], ErrorCode.INVALID_REQUEST),
        (TopicConfig, [("retention.ms", 4, "1")], ErrorCode.INVALID_REQUEST),
        (TopicConfig, [("retention.ms", -1, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.dirs", SET, "/x")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("broker.id", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.retention.minutes", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("num.io.threads", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("message.max.bytes", SET, "x")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("message.max.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (BrokerConfig, [("foo.bar", SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_is_refused(config: type, changes: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        altered({}, *changes, config=config)
    assert refused.value.code is code
    assert changes[0][0] in refused.value.message


ITEMS = st.lists(st.sampled_from(["0:1", "0:2", "1:1", "2:3"]))


@given(ITEMS, ITEMS)
def test_appending_and_subtracting_are_sets(first: list[str], second: list[str]) -> None:
    both = altered({}, (REPLICAS, APPEND, ",".join(first)))
    both = altered(both, (REPLICAS, APPEND, ",".join(second)))
    assert [item for item in both[REPLICAS].split(",") if item] == list(dict.fromkeys(first + second))
    left = altered(both, (REPLICAS, SUBTRACT, ",".join(first)))
    assert {item for item in left[REPLICAS].split(",") if item} == set(second) - set(first)
