"""A real Kafka 3.9 and ottla describe the settings of a broker and of a topic from the same file, and take the same changes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.settings.config import TLS_OF_LISTENERS
from broker.settings.config_layers import ABSENT_UNLESS_SET, DYNAMIC_BROKER_KEYS
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.kafka_tools import KafkaTools
from tests.support.swappable_broker import Kind, SwappableBroker
from tests.support.wire import Wire

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

TOPIC, BROKER = 2, 4
PAGE = Path(__file__).parents[2] / "docs" / "CONFIGS.md"
ROW = re.compile(r"^\| (`[^|]+`) \| (?:cluster-wide|per broker) \| (dynamic|no) \|", re.MULTILINE)
OVERRIDES = {
    "log.retention.hours": "2",
    "log.roll.ms": "5000000",
    "log.roll.hours": "3",
    "log.cleaner.threads": "2",
    "log.message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
READ_AT_THE_START = {"advertised.listeners", "listener.security.protocol.map", "listeners"}
OTHERWISE = READ_AT_THE_START | {
    "authorizer.class.name",  # not set; in Kafka an empty text
    "log.dirs",
    "queued.max.request.bytes",
    "zookeeper.connection.timeout.ms",
    "metrics.listener",
    "group.consumer.assignors",  # by their names, as in Kafka 4; in 3.9 classes of Java
    "broker.fault.injection",  # in the settings of a local cluster, which both brokers get here
}
"""Keys whose values differ between the two brokers, or for which ottla has another default."""
OF_THE_AUTHORIZER = {"allow.everyone.if.no.acl.found", "super.users"}
"""In Kafka, these are settings of its authorizer, which a broker does not describe."""
OWN = OF_THE_AUTHORIZER | {
    "broker.api.level",
    "broker.fast.failure.detection",
    "broker.stop.timeout.ms",
    "group.consumer.migration.policy",
    "group.consumer.regex.refresh.interval.ms",
    "group.memory.max.bytes",
    "max.broker.partitions",
    "max.in.flight.requests.per.connection",
    "max.incremental.fetch.session.cache.partitions",
    "metrics.max.partitions",
    "producer.id.expiration.check.interval.ms",
    "recorder.client.salt",
    "recorder.enable",
    "recorder.id",
    "recorder.max.bytes",
    "recorder.topics",
    "queued.max.response.bytes",
    "zookeeper.digest.password",
    "zookeeper.digest.user",
    "zookeeper.sasl.jaas.config",
    "socket.frame.timeout.ms",
    "socket.response.timeout.ms",
    "transaction.memory.max.bytes",
}
"""Keys of ottla alone, and keys that Kafka does not describe because they are internal."""
CHANGES = [  # One that is taken is the last of its key: Kafka applies it a moment later.
    ("log.cleaner.threads", "5"),
    ("log.cleaner.threads", "0"),
    ("log.cleaner.threads", "4"),
    ("num.io.threads", "17"),
    ("num.io.threads", "3"),
    ("num.io.threads", "16"),
    ("num.replica.fetchers", "2"),
    ("background.threads", "5"),
    ("producer.id.expiration.ms", "100000"),
    ("log.retention.hours", "5"),
    ("log.retention.ms", "100000"),
    ("log.local.retention.ms", "5"),
    ("log.preallocate", "false"),
    ("log.message.downconversion.enable", "maybe"),
    ("log.message.format.version", "3.0"),
    ("compression.gzip.level", "3"),
    ("compression.gzip.level", "0"),
    ("log.segment.bytes", "1"),
    ("max.connections", "0"),
    ("max.connections.per.ip", "0"),
    ("max.connections.per.ip", "2000000000"),
    ("max.connections.per.ip.overrides", "127.0.0.1"),
    ("max.connections.per.ip.overrides", "127.0.0.1:many"),
    ("max.connections.per.ip.overrides", "a b:5"),
    ("max.connections.per.ip.overrides", "127.0.0.1:1000,localhost:2000"),
    ("max.connection.creation.rate", "0"),
    ("max.connection.creation.rate", "1000"),
    ("listener.name.plaintext.max.connection.creation.rate", "0"),
    ("listener.name.plaintext.max.connection.creation.rate", "many"),
    ("listener.name.plaintext.max.connection.creation.rate", "2000"),
    ("listener.name.other.max.connection.creation.rate", "3000"),
    ("listener.name.plaintext.max.connections", "0"),
    ("listener.name.plaintext.max.connections", "500"),
    ("ssl.keystore.location", "/no/such"),
    ("listener.name.plaintext.ssl.keystore.location", "/no/such"),
    ("listener.name.plaintext.ssl.keystore.type", "PEM"),
    ("listener.name.plaintext.ssl.key.password", "there is no password.encoder.secret"),
]
TOPIC_CHANGES = [
    ("message.format.version", "0.10.2"),
    ("message.format.version", "3.9-IV0"),
    ("message.format.version", "3.9-IV1"),
    ("message.format.version", "4"),
    ("remote.storage.enable", "false"),
    ("remote.storage.enable", "true"),
    ("remote.log.copy.disable", "true"),
    ("local.retention.bytes", "-3"),
    ("local.retention.bytes", "9"),
    ("max.compaction.lag.ms", "5"),
    ("min.compaction.lag.ms", "6"),
    ("min.compaction.lag.ms", "5"),
    ("compression.lz4.level", "17"),
    ("compression.zstd.level", "23"),
]


class Described(NamedTuple):
    value: str | None
    source: int
    is_read_only: bool
    config_type: int
    synonyms: list[tuple[str, str | None, int]]


class Seen(NamedTuple):
    """What one of the two says."""

    broker: dict[str, Described]
    topic: dict[str, Described]
    broker_codes: list[ErrorCode]
    topic_codes: list[ErrorCode]
    after: dict[str, Described]


def describe(wire: Wire, kind: int, name: str) -> dict[str, Described]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    (answer,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    assert answer.error_code == 0, answer.error_message
    return {
        row.name: Described(
            row.value,
            int(row.config_source),
            row.read_only,
            int(row.config_type),
            [(each.name, each.value, int(each.source)) for each in row.synonyms],
        )
        for row in answer.configs
    }


def altered(wire: Wire, kind: int, name: str, changes: list[tuple[str, str]]) -> list[ErrorCode]:
    codes = []
    for key, value in changes:
        row = {"name": key, "config_operation": 0, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [row]}
        (answer,) = wire.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        ).responses
        codes.append(ErrorCode(answer.error_code))
    return codes


def ask(peer: SwappableBroker, kind: Kind) -> Seen:
    topic = f"of-{kind}"
    peer.start(kind)
    with Wire(peer.cluster.port(1)) as wire:
        row: dict[str, Any] = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        body = {"topics": [row | {"assignments": [], "configs": []}], "timeout": 20_000, "validate_only": False}
        assert wire.call(ApiKey.CREATE_TOPICS, 5, body).topics[0].error_code == 0
        before = describe(wire, BROKER, "1"), describe(wire, TOPIC, topic)
        codes = altered(wire, BROKER, "1", CHANGES), altered(wire, TOPIC, topic, TOPIC_CHANGES)
        after = describe(wire, BROKER, "1")
        dynamic = [key for key, row in after.items() if row.source == 2]
        for key in dynamic:
            resource = {"resource_type": BROKER, "resource_name": "1"}
            reset = {"name": key, "config_operation": 1, "value": None}
            wire.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                {"resources": [resource | {"configs": [reset]}], "validate_only": False},
            )
    peer.stop(signal.SIGKILL)  # A Kafka whose thread pools have just changed does not always end when asked.
    return Seen(*before, *codes, {key: after[key] for key in dynamic})


@pytest.fixture(scope="module")
def both(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Seen, Seen]]:
    """(Kafka's, ours)"""
    with SwappableBroker(tmp_path_factory.mktemp("configs"), kafka_tools, OVERRIDES) as peer:
        yield ask(peer, "Kafka"), ask(peer, "ottla")


def test_the_page_has_every_dynamic_setting_of_kafka(both: tuple[Seen, Seen]) -> None:
    page = {name: here for names, here in ROW.findall(PAGE.read_text()) for name in re.findall(r"`(\S+)`", names)}
    assert page.keys() == {key for key, row in both[0].broker.items() if not row.is_read_only}
    assert {key for key, here in page.items() if here == "dynamic"} == (
        DYNAMIC_BROKER_KEYS - OWN - ABSENT_UNLESS_SET | TLS_OF_LISTENERS
    )


def test_what_both_describe_of_a_broker_is_the_same(both: tuple[Seen, Seen]) -> None:
    kafkas, ours = both[0].broker, both[1].broker
    assert ours.keys() - kafkas.keys() == OWN
    common = kafkas.keys() & ours.keys() - OTHERWISE
    assert len(common) > 100
    for key in common:
        if (
            key.startswith(("ssl.", "sasl.")) and key not in TLS_OF_LISTENERS
        ):  # docs/CONFIGS.md says why they are not dynamic here
            kafkas[key] = kafkas[key]._replace(is_read_only=True)
    assert {key: (ours[key], kafkas[key]) for key in common if ours[key] != kafkas[key]} == {}


def test_the_settings_of_a_topic_are_the_same(both: tuple[Seen, Seen]) -> None:
    assert both[1].topic == both[0].topic


def test_both_accept_the_same_changes(both: tuple[Seen, Seen]) -> None:
    kafkas = both[0].broker_codes + both[0].topic_codes
    ours = both[1].broker_codes + both[1].topic_codes
    rows = zip(CHANGES + TOPIC_CHANGES, ours, kafkas, strict=True)
    assert [row for row in rows if row[1] is not row[2]] == []


def test_what_was_changed_is_described_the_same(both: tuple[Seen, Seen]) -> None:
    assert both[1].after == both[0].after
