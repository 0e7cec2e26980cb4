"""The settings after a request, and the error codes of Kafka 3.9.1 for illegal requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.config_changes import Change, Operation, changed
from broker.settings.config import BrokerConfig, TopicConfig
from protocol.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = Operation
LAG_MIN, LAG_MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
POLICY, LOCAL = "cleanup.policy", "local.retention.bytes"
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
        ({POLICY: "compact"}, (POLICY, APPEND, "compact, delete"), {POLICY: "compact,delete"}),
        ({"cleanup.policy": "compact"}, ("cleanup.policy", SUBTRACT, "compact"), {"cleanup.policy": ""}),
        ({}, (REPLICAS, APPEND, "0:1,1:2"), {REPLICAS: "0:1,1:2"}),
        ({REPLICAS: "0:1,1:2"}, (REPLICAS, SUBTRACT, "0:1,7:7"), {REPLICAS: "1:2"}),
        ({}, ("preallocate", SET, "TRUE"), {"preallocate": "true"}),
        ({}, ("message.downconversion.enable", SET, "false"), {"message.downconversion.enable": "false"}),
        ({}, ("message.format.version", SET, "2.8"), {"message.format.version": "2.8"}),
        ({}, ("message.format.version", SET, "0.10.2.1"), {"message.format.version": "0.10.2.1"}),
        ({}, ("message.format.version", SET, "3.9-IV0"), {"message.format.version": "3.9-IV0"}),
        ({}, ("remote.storage.enable", SET, "false"), {"remote.storage.enable": "false"}),
        ({}, ("remote.log.copy.disable", SET, "false"), {"remote.log.copy.disable": "false"}),
        ({}, ("remote.log.delete.on.disable", SET, "false"), {"remote.log.delete.on.disable": "false"}),
        ({}, ("local.retention.ms", SET, "-2"), {"local.retention.ms": "-2"}),
        ({"retention.bytes": "5"}, (LOCAL, SET, "9"), {"retention.bytes": "5", LOCAL: "9"}),
        ({}, ("compression.gzip.level", SET, "-1"), {"compression.gzip.level": "-1"}),
        ({}, ("compression.zstd.level", SET, "-131072"), {"compression.zstd.level": "-131072"}),
        ({LAG_MIN: "5"}, (LAG_MAX, SET, "5"), {LAG_MIN: "5", LAG_MAX: "5"}),
        ({LAG_MIN: "rubbish"}, (LAG_MAX, SET, "5"), {LAG_MIN: "rubbish", LAG_MAX: "5"}),
        ({LAG_MIN: "9", LAG_MAX: "5"}, ("flush.ms", SET, "5"), {LAG_MIN: "9", LAG_MAX: "5", "flush.ms": "5"}),
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
        (TopicConfig, [("remote.storage.enable", SET, "true")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("remote.log.copy.disable", SET, "true")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("remote.log.delete.on.disable", SET, "true")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("local.retention.ms", SET, "-3")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("message.format.version", SET, "bogus")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("message.format.version", SET, "2.8-IV7")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("message.format.version", SET, "")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("compression.gzip.level", SET, "0")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [("compression.lz4.level", SET, "18")], ErrorCode.INVALID_CONFIG),
        (TopicConfig, [(LAG_MIN, SET, "6"), (LAG_MAX, SET, "5")], ErrorCode.INVALID_CONFIG),
        (BrokerConfig, [("log.cleaner.threads", SET, "3")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.cleaner.threads", SET, "0")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.message.format.version", SET, "3.0")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.dirs", SET, "/x")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("broker.id", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("log.retention.minutes", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("num.io.threads", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("message.max.bytes", SET, "x")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("message.max.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        (BrokerConfig, [("foo.bar", SET, "x")], ErrorCode.INVALID_CONFIG),
        (BrokerConfig, [("ssl.keystore.location", SET, "/x")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("listener.name.a.ssl.client.auth", SET, "none")], ErrorCode.INVALID_REQUEST),
        (BrokerConfig, [("listener.name.a.ssl.keystore.type", APPEND, "PEM")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_illegal_changes_are_refused(config: type, changes: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        altered({}, *changes, config=config)
    assert refused.value.code is code
    assert changes[0][0] in refused.value.message


@pytest.mark.parametrize(
    ("current", "effective"),
    [
        ({LAG_MIN: "6"}, TopicConfig()),
        ({LAG_MIN: "6", LAG_MAX: "7"}, TopicConfig()),
        ({}, TopicConfig(min_compaction_lag_ms=6)),
    ],
)
def test_a_change_that_contradicts_another_setting_is_refused(current: dict[str, str], effective: TopicConfig) -> None:
    with pytest.raises(KafkaError, match=LAG_MIN) as refused:
        changed(TopicConfig, current, [Change(LAG_MAX, SET, "5")], effective)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("current", "wanted"), [(8, "4"), (8, "16"), (1, "2"), (1, "1"), (3, "1")])
def test_threads_at_most_double_or_halve(current: int, wanted: str) -> None:
    """As Kafka does."""
    effective = BrokerConfig(num_io_threads=current)
    change = Change("num.io.threads", SET, wanted)
    assert changed(BrokerConfig, {}, [change], effective) == {"num.io.threads": wanted}


ITEMS = st.lists(st.sampled_from(["0:1", "0:2", "1:1", "2:3"]))


@given(ITEMS, ITEMS)
def test_appended_and_subtracted_items_have_no_duplicates(first: list[str], second: list[str]) -> None:
    both = altered({}, (REPLICAS, APPEND, ",".join(first)))
    both = altered(both, (REPLICAS, APPEND, ",".join(second)))
    assert [item for item in both[REPLICAS].split(",") if item] == list(dict.fromkeys(first + second))
    left = altered(both, (REPLICAS, SUBTRACT, ",".join(first)))
    assert {item for item in left[REPLICAS].split(",") if item} == set(second) - set(first)


OF_CLIENTS = "listener.name.clients.max.connection.creation.rate"


def test_the_limit_of_one_listener_may_change() -> None:
    assert altered({}, (OF_CLIENTS, SET, " 5 "), config=BrokerConfig) == {OF_CLIENTS: "5"}
    assert altered({OF_CLIENTS: "5"}, (OF_CLIENTS, DELETE, None), config=BrokerConfig) == {}


@pytest.mark.parametrize("key", [OF_CLIENTS, "max.connection.creation.rate", "max.connections"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_limits_of_connections_that_a_running_broker_does_not_take(key: str, value: str) -> None:
    with pytest.raises(KafkaError, match=f"INVALID_REQUEST: {key}=") as caught:
        altered({}, (key, SET, value), config=BrokerConfig)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_nobody_from_other_addresses_is_possible_only_with_overrides() -> None:
    per_ip, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    both = {overrides: "10.0.0.1:5,::1:7", per_ip: "0"}
    assert altered({overrides: both[overrides]}, (per_ip, SET, "0"), config=BrokerConfig) == both
    for wrong in [(per_ip, SET, "0")], [(overrides, SET, ""), (per_ip, SET, "0")]:
        with pytest.raises(KafkaError, match="no client could connect") as caught:
            altered({}, *wrong, config=BrokerConfig)
        assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("value", ["10.0.0.1", "10.0.0.1:", ":5", "a b:5", "10.0.0.1:-1", "10.0.0.1:5:many"])
def test_overrides_that_cannot_be_read(value: str) -> None:
    with pytest.raises(KafkaError, match="expected host:number") as caught:
        altered({}, ("max.connections.per.ip.overrides", SET, value), config=BrokerConfig)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
