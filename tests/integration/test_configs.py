"""Settings of topics and brokers over the wire: seen with their sources, changed, and effective without a restart.

The codes are those of a Kafka 3.9.1 in ZooKeeper mode, asked the same; where we differ on purpose the case says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.settings.config import is_secret
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.conftest import ClusterFactory
from tests.support.invariants import ZooKeeperView, assert_healed, eventually
from tests.support.topics import new_topic, produce_batch
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE = 0, 1
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
OWN = "1"
Row = tuple[str, int, str | None]


@pytest.fixture(scope="module")
def cluster(new_module_cluster: ClusterFactory) -> LocalCluster:
    return new_module_cluster(
        brokers=2, overrides={"log.segment.bytes": "1000000", "auto.leader.rebalance.enable": "false"}
    )


@pytest.fixture
def wire(cluster: LocalCluster) -> Iterator[Wire]:
    """A connection to broker 1."""
    with Wire(cluster.port(int(OWN))) as connection:
        yield connection


@pytest.fixture
def topic(cluster: LocalCluster, zk: ZooKeeperView) -> str:
    """A topic that broker 1 leads and broker 2 follows."""
    name = new_topic(cluster.bootstrap_servers, assignment=[[1, 2]])
    assert_healed(cluster, zk, name)
    return name


def alter(wire: Wire, kind: int, name: str, *rows: Row, validate_only: bool = False) -> ErrorCode:
    """IncrementalAlterConfigs of one resource. A refusal has a reason."""
    (code,) = alter_all(wire, (kind, name, rows), validate_only=validate_only)
    return code


def alter_all(wire: Wire, *resources: tuple[int, str, tuple[Row, ...]], validate_only: bool = False) -> list[ErrorCode]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in rows],
        }
        for kind, name, rows in resources
    ]
    answer = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"validate_only": validate_only, "resources": asked})
    assert all(bool(row.error_message) == bool(row.error_code) for row in answer.responses)
    return [ErrorCode(row.error_code) for row in answer.responses]


def replace(wire: Wire, kind: int, name: str, **values: str | None) -> int:
    """AlterConfigs of one resource, `_` for `.`: the code."""
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in values.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    answer = wire.call(ApiKey.ALTER_CONFIGS, 2, {"validate_only": False, "resources": [resource]})
    return int(answer.responses[0].error_code)


def describe(wire: Wire, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **asked: bool) -> Any:
    body = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        "include_synonyms": True,
        **asked,
    }
    return wire.call(ApiKey.DESCRIBE_CONFIGS, version, body).results[0]


def value_and_source(wire: Wire, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (row,) = describe(wire, kind, name, [key]).configs
    return row.value, row.config_source


def layers(wire: Wire, kind: int, name: str, key: str) -> list[tuple[str, str, int]]:
    (row,) = describe(wire, kind, name, [key]).configs
    return [(synonym.name, synonym.value, synonym.source) for synonym in row.synonyms]


BAD_REQUESTS: list[tuple[str, int, str, tuple[Row, ...], ErrorCode]] = [
    ("unknown topic", TOPIC, "nope", (("retention.ms", SET, "1"),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("impossible topic", TOPIC, "no/pe", (("retention.ms", SET, "1"),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("no text", TOPIC, "a\0b", (("retention.ms", SET, "1"),), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("no topic", TOPIC, "", (("retention.ms", SET, "1"),), ErrorCode.INVALID_REQUEST),
    ("one of two is bad", TOPIC, "T", (("flush.ms", SET, "77"), ("segment.bytes", SET, "x")), ErrorCode.INVALID_CONFIG),
    # Kafka answers -1 without a reason.
    ("no operation", TOPIC, "T", (("retention.ms", 9, "1"),), ErrorCode.INVALID_REQUEST),
    ("static", BROKER, OWN, (("log.dirs", SET, "/x"),), ErrorCode.INVALID_REQUEST),
    ("static for all", BROKER, "", (("log.dirs", SET, "/x"),), ErrorCode.INVALID_REQUEST),
    ("another broker", BROKER, "2", (("message.max.bytes", SET, "5555"),), ErrorCode.INVALID_REQUEST),
    ("no broker", BROKER, "99", (("message.max.bytes", SET, "5555"),), ErrorCode.INVALID_REQUEST),
    ("no number of a broker", BROKER, "abc", (("message.max.bytes", SET, "5555"),), ErrorCode.INVALID_REQUEST),
    ("no resource", 99, "x", (("retention.ms", SET, "1"),), ErrorCode.INVALID_REQUEST),
    ("logger", BROKER_LOGGER, OWN, (("root", SET, "DEBUG"),), ErrorCode.INVALID_REQUEST),
]


def test_illegal_changes_are_refused(wire: Wire, topic: str) -> None:
    """They are refused with a reason, also with validate_only, and nothing is set. The unit tests have the cases of each check."""
    for case, kind, given, rows, error in BAD_REQUESTS:
        name = topic if given == "T" else given
        for validate_only in (True, False):
            assert alter(wire, kind, name, *rows, validate_only=validate_only) == error, case
    assert [row.name for row in describe(wire, TOPIC, topic).configs if row.config_source == DYNAMIC_TOPIC] == []
    assert describe(wire, BROKER, "").configs == ()


def test_one_bad_resource_does_not_affect_the_others(wire: Wire, topic: str) -> None:
    def flush(name: str, value: str) -> tuple[int, str, tuple[Row, ...]]:
        return TOPIC, name, (("flush.ms", SET, value),)

    mixed = alter_all(wire, flush("nope", "1"), flush(topic, "1000"))
    assert mixed == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    twice = alter_all(wire, flush(topic, "1"), flush(topic, "2"))
    assert twice == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]
    assert value_and_source(wire, TOPIC, topic, "flush.ms") == ("1000", DYNAMIC_TOPIC)


def test_the_layers_of_a_setting(wire: Wire, topic: str) -> None:
    """Topic > this broker > all brokers > static > default; `retention.ms` lists no default, as in Kafka."""
    key, broker_key = "max.message.bytes", "message.max.bytes"
    default = (broker_key, "1048588", DEFAULT)
    assert layers(wire, TOPIC, topic, key) == [default]
    assert alter(wire, BROKER, "", (broker_key, SET, "800000"), ("log.retention.ms", SET, "99999999")) == 0
    for_all = (broker_key, "800000", DYNAMIC_DEFAULT)
    assert layers(wire, TOPIC, topic, key) == [for_all, default]
    older = ("log.retention.hours", "168", DEFAULT)
    assert layers(wire, TOPIC, topic, "retention.ms") == [("log.retention.ms", "99999999", DYNAMIC_DEFAULT), older]
    assert alter(wire, BROKER, OWN, (broker_key, SET, "700000")) == 0
    of_broker = (broker_key, "700000", DYNAMIC_BROKER)
    assert alter(wire, TOPIC, topic, (key, SET, " 600000 ")) == 0
    assert layers(wire, TOPIC, topic, key) == [(key, "600000", DYNAMIC_TOPIC), of_broker, for_all, default]
    assert layers(wire, BROKER, OWN, broker_key) == [of_broker, for_all, default]
    assert [(row.name, row.value) for row in describe(wire, BROKER, "").configs] == [
        ("log.retention.ms", "99999999"),
        (broker_key, "800000"),
    ]
    assert replace(wire, TOPIC, topic) == replace(wire, BROKER, OWN) == replace(wire, BROKER, "") == 0
    assert layers(wire, TOPIC, topic, key) == [default]
    assert layers(wire, TOPIC, topic, "retention.ms") == []
    static = [("log.segment.bytes", "1000000", STATIC), ("log.segment.bytes", str(2**30), DEFAULT)]
    assert layers(wire, TOPIC, topic, "segment.bytes") == static


def test_what_describe_says(wire: Wire, topic: str) -> None:
    broker = {row.name: row for row in describe(wire, BROKER, OWN).configs}
    own = broker["broker.id"]
    assert (own.value, own.config_source, own.read_only) == (OWN, STATIC, True)
    assert not broker["log.retention.bytes"].read_only
    assert broker["broker.rack"].value is None
    assert {key for key, row in broker.items() if row.is_sensitive} == {key for key in broker if is_secret(key)}
    rows = {row.name: row for row in describe(wire, TOPIC, topic, include_documentation=True).configs}
    types = {"preallocate": 1, "compression.type": 2, "segment.bytes": 3, "retention.ms": 5, "cleanup.policy": 7}
    types |= {"min.cleanable.dirty.ratio": 6}
    assert {key: rows[key].config_type for key in types} == types
    assert all(row.documentation for row in rows.values())
    assert not any(row.documentation for row in describe(wire, TOPIC, topic).configs)
    assert len(describe(wire, TOPIC, topic, []).configs) == len(rows), "no keys: all of them, as Kafka"
    assert describe(wire, TOPIC, topic, ["nope"]).configs == ()
    for version in (1, 2, 3, 4):
        (row,) = describe(wire, TOPIC, topic, ["segment.bytes"], version).configs
        assert (row.name, row.value, row.config_source) == ("segment.bytes", "1000000", STATIC)


def test_illegal_resources_cannot_be_described(wire: Wire) -> None:
    for kind, name, error in (
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/pe", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "a\0b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "abc", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, OWN, ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ):
        found = describe(wire, kind, name)
        assert (int(found.error_code), bool(found.error_message), found.configs) == (error, True, ()), (kind, name)


def test_alter_configs_resets_what_it_does_not_name(wire: Wire, topic: str) -> None:
    """As in Kafka. IncrementalAlterConfigs does not change the other settings."""
    assert alter(wire, TOPIC, topic, ("flush.ms", SET, "1000"), ("retention.ms", SET, "5000")) == 0
    assert replace(wire, TOPIC, topic, segment_bytes="100000") == ErrorCode.NONE
    mine = {row.name: row.value for row in describe(wire, TOPIC, topic).configs if row.config_source == DYNAMIC_TOPIC}
    assert mine == {"segment.bytes": "100000"}
    assert replace(wire, TOPIC, topic, segment_bytes=None) == ErrorCode.INVALID_REQUEST
    assert replace(wire, TOPIC, "nope", segment_bytes="100000") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replace(wire, BROKER, OWN, broker_id=OWN) == ErrorCode.INVALID_REQUEST, "static, though the same"
    assert replace(wire, BROKER, "2") == ErrorCode.INVALID_REQUEST


def test_the_znodes_are_kafkas(wire: Wire, topic: str, zk: ZooKeeperView) -> None:
    """The change keeps the other settings, and is announced to the brokers by a node below /config/changes."""
    path = f"/config/topics/{topic}"
    zk.client.set(path, b'{"version":1,"config":{"some.plugin.key":"kept","flush.ms":"7"}}')
    assert alter(wire, TOPIC, topic, ("retention.ms", SET, "1000")) == 0
    data = json.loads(zk.client.get(path)[0])
    assert data == {"version": 1, "config": {"some.plugin.key": "kept", "flush.ms": "7", "retention.ms": "1000"}}
    changes = sorted(zk.client.get_children("/config/changes"))
    newest = json.loads(zk.client.get(f"/config/changes/{changes[-1]}")[0])
    assert newest == {"version": 2, "entity_path": f"topics/{topic}"}
    assert alter(wire, BROKER, "", ("max.connections", SET, "1000")) == 0
    assert json.loads(zk.client.get("/config/brokers/<default>")[0])["config"] == {"max.connections": "1000"}
    assert replace(wire, BROKER, "") == 0


def produce(cluster: LocalCluster, topic: str, size: int) -> ErrorCode:
    """Sends one batch to broker 1, acks=all."""
    with Wire(cluster.port(1)) as wire:
        batch = build_batch([(None, b"x" * size, [], int(time.time() * 1000))])
        return ErrorCode(produce_batch(wire, topic, batch).error_code)


@pytest.mark.parametrize(
    ("kind", "key"), [(TOPIC, "max.message.bytes"), (BROKER, "message.max.bytes"), (-BROKER, "message.max.bytes")]
)
def test_a_limit_applies_at_once_until_it_is_reset(
    cluster: LocalCluster, wire: Wire, topic: str, kind: int, key: str
) -> None:
    """Broker 1 leads; the same key of the topic, of the broker and of all brokers (-BROKER)."""
    name = {TOPIC: topic, BROKER: OWN}.get(kind, "")
    assert produce(cluster, topic, 50_000) == 0
    assert alter(wire, abs(kind), name, (key, SET, "10000")) == 0
    assert produce(cluster, topic, 50_000) == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(cluster, topic, 5_000) == 0
    assert alter(wire, abs(kind), name, (key, DELETE, None)) == 0
    assert produce(cluster, topic, 50_000) == 0


def test_a_change_applies_at_every_broker(cluster: LocalCluster, topic: str) -> None:
    """Broker 2 is asked, broker 1 leads: min.insync.replicas=3 of two replicas refuses acks=all."""
    with Wire(cluster.port(2)) as other:
        assert alter(other, TOPIC, topic, ("min.insync.replicas", SET, "3")) == 0
        eventually(
            lambda: produce(cluster, topic, 10) == ErrorCode.NOT_ENOUGH_REPLICAS, "the leader has heard of it", 20
        )
        assert alter(other, TOPIC, topic, ("min.insync.replicas", DELETE, None)) == 0
        eventually(lambda: produce(cluster, topic, 10) == 0, "the leader has heard of the reset", 20)


def test_a_change_of_retention_takes_effect_within_seconds(cluster: LocalCluster, wire: Wire, topic: str) -> None:
    """Smaller segments and a shorter retention take effect within seconds, not with the next check or restart."""
    assert alter(wire, TOPIC, topic, ("segment.bytes", SET, "10000")) == 0
    for _ in range(6):
        assert produce(cluster, topic, 6_000) == 0
    logs = cluster.broker_directory(1) / "data" / f"{topic}-0"
    assert len(list(logs.glob("*.log"))) >= 5
    assert alter(wire, TOPIC, topic, ("retention.bytes", SET, "1")) == 0
    eventually(lambda: len(list(logs.glob("*.log"))) == 1, "only the newest segment left", 30)


def test_settings_survive_a_restart(cluster: LocalCluster, topic: str) -> None:
    with Wire(cluster.port(2)) as other:
        assert alter(other, BROKER, "2", ("log.retention.ms", SET, "7777777")) == 0
        assert alter(other, TOPIC, topic, ("max.message.bytes", SET, "10000")) == 0
    cluster.restart_broker(2)
    cluster.wait_ready()
    with Wire(cluster.port(2)) as other:
        assert value_and_source(other, BROKER, "2", "log.retention.ms") == ("7777777", DYNAMIC_BROKER)
        assert value_and_source(other, TOPIC, topic, "retention.ms") == ("7777777", DYNAMIC_BROKER)
        assert value_and_source(other, TOPIC, topic, "max.message.bytes") == ("10000", DYNAMIC_TOPIC)
        assert replace(other, BROKER, "2") == 0


@pytest.mark.parametrize("is_for_all", [False, True], ids=["topic", "all brokers"])
def test_an_unclean_election_when_it_is_allowed(
    cluster: LocalCluster, zk: ZooKeeperView, topic: str, is_for_all: bool
) -> None:
    """INV-18: a partition without a living member of its ISR gets a leader as soon as the setting allows it."""
    cluster.stop_broker(2)
    eventually(lambda: zk.state(topic, 0).isr == (1,), "broker 2 out of the ISR", 20)
    cluster.kill(1)
    cluster.start_broker(2)
    cluster.wait_ready(brokers=[2])
    eventually(lambda: zk.state(topic, 0).leader == -1, "no leader", 30)
    assert zk.state(topic, 0).isr == (1,)
    with Wire(cluster.port(2)) as other:
        target = (BROKER, "") if is_for_all else (TOPIC, topic)
        eventually(lambda: zk.controller() == 2, "broker 2 the controller", 30)
        assert alter(other, *target, ("unclean.leader.election.enable", SET, "true")) == 0
        eventually(lambda: zk.state(topic, 0).leader == 2, "broker 2 leads", 30)
        assert zk.state(topic, 0).isr == (2,)
        assert alter(other, *target, ("unclean.leader.election.enable", DELETE, None)) == 0
    cluster.start_broker(1)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)


def test_many_resources_in_one_request(wire: Wire, topic: str) -> None:
    """Each resource is answered once, even if it is named twice."""
    keys = ["retention.ms"]
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        for kind, name in [(TOPIC, topic), (TOPIC, "nope"), (BROKER, OWN)] * 10
    ]
    body = {"resources": resources, "include_synonyms": True}
    results = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    found = [(row.resource_name, int(row.error_code), [config.name for config in row.configs]) for row in results]
    one_round = [
        (topic, ErrorCode.NONE, keys),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        (OWN, ErrorCode.NONE, []),
    ]
    assert found == one_round
