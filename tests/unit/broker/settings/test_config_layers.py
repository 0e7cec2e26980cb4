"""Where the value of a setting comes from, and which source applies."""

from __future__ import annotations

import pytest

from broker.settings.config import (
    BROKER_KEY_OF,
    INT_MAX,
    LONG_MAX,
    MAX_CONNECTIONS,
    TLS_OF_LISTENERS,
    BrokerConfig,
    TopicConfig,
    limit_of_listener,
    own_limits_of_listeners,
    settings_of,
)
from broker.settings.config_layers import (
    ABSENT_UNLESS_SET,
    DYNAMIC_BROKER_KEYS,
    OLDER_KEYS,
    ConfigLayers,
    ConfigType,
    DescribedSetting,
    Source,
    believable,
)
from broker.settings.config_sources import load

MAX = "message.max.bytes"
STATIC = BrokerConfig(broker_id=1, log_segment_bytes=1_000_000, message_max_bytes=900_000)


def topic_row(layers: ConfigLayers, key: str, **overrides: str) -> DescribedSetting:
    own = {name.replace("_", "."): value for name, value in overrides.items()}
    return next(row for row in layers.describe_topic(own) if row.name == key)


def broker_row(layers: ConfigLayers, key: str) -> DescribedSetting:
    return next(row for row in layers.describe_broker() if row.name == key)


@pytest.mark.parametrize(
    ("cluster", "own", "topic", "expected", "source"),
    [
        ({}, {}, {}, "900000", Source.STATIC_BROKER_CONFIG),
        ({MAX: "800000"}, {}, {}, "800000", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ({MAX: "8"}, {MAX: "700000"}, {}, "700000", Source.DYNAMIC_BROKER_CONFIG),
        ({MAX: "8"}, {MAX: "7"}, {"max_message_bytes": "600000"}, "600000", Source.DYNAMIC_TOPIC_CONFIG),
    ],
)
def test_topic_over_broker_over_all_brokers_over_static(
    cluster: dict[str, str], own: dict[str, str], topic: dict[str, str], expected: str, source: Source
) -> None:
    layers = ConfigLayers(STATIC, cluster, own)
    row = topic_row(layers, "max.message.bytes", **topic)
    assert (row.value, row.source) == (expected, source)
    if not topic:
        assert layers.effective.message_max_bytes == int(expected)
        assert layers.effective.topic_defaults().max_message_bytes == int(expected)


@pytest.mark.parametrize("key", ["retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms"])
def test_a_setting_with_an_older_key_lists_no_default(key: str) -> None:
    """As in Kafka, `retention.ms` lists only itself."""
    row = topic_row(ConfigLayers(STATIC), key)
    assert (row.source, row.synonyms) == (Source.DEFAULT_CONFIG, ())
    own = topic_row(ConfigLayers(STATIC), key, **{key.replace(".", "_"): "77"})
    assert [(s.name, s.value) for s in own.synonyms] == [(key, "77")]


HOURS = [("log.retention.hours", "2", 4), ("log.retention.hours", "168", 5)]
ROLL_HOURS = [("log.roll.hours", "3", 4), ("log.roll.hours", "168", 5)]
TYPE = "log.message.timestamp.type"
KAFKAS: dict[str, tuple[str | None, int, list[tuple[str, str, int]]]] = {
    "log.retention.hours": ("2", 4, HOURS),
    "log.retention.minutes": ("90", 4, [("log.retention.minutes", "90", 4), *HOURS]),
    "log.retention.ms": (None, 5, []),
    "log.roll.ms": ("5000000", 4, [("log.roll.ms", "5000000", 4), *ROLL_HOURS]),
    "log.roll.hours": ("3", 4, ROLL_HOURS),
    "log.roll.jitter.hours": ("0", 5, [("log.roll.jitter.hours", "0", 5)]),
    "log.roll.jitter.ms": (None, 5, []),
    TYPE: ("CreateTime", 4, [(TYPE, "CreateTime", 4), (TYPE, "CreateTime", 5)]),
}
"""What a real Kafka 3.9.1 describes for the file below."""


def test_older_keys_are_described_as_kafka_describes_them() -> None:
    text = "log.retention.minutes=90\nlog.retention.hours=2\nlog.roll.hours=3\nlog.roll.ms=5000000\n"
    text += "log.message.timestamp.type=CreateTime\nbroker.id=1\nzookeeper.connect=z:1\nlog.dirs=/d"
    loaded = load(text, "file", {}, [])
    assert loaded.config.log_retention_ms == 90 * 60_000, "minutes win over hours, wherever they stand"
    layers = ConfigLayers(loaded.config, given=loaded.given)

    def shown(row: DescribedSetting) -> tuple[str | None, int, list[tuple[str, str, int]]]:
        return row.value, int(row.source), [(s.name, s.value, int(s.source)) for s in row.synonyms]

    assert {row.name: shown(row) for row in layers.describe_broker() if row.name in KAFKAS} == KAFKAS
    assert shown(topic_row(layers, "retention.ms")) == ("5400000", 5, [])
    assert shown(topic_row(layers, "segment.ms")) == KAFKAS["log.roll.ms"]
    layers = ConfigLayers(loaded.config, {"log.retention.ms": "200000"}, {"log.retention.ms": "100000"}, loaded.given)
    synonyms = [
        ("log.retention.ms", "100000", 2),
        ("log.retention.ms", "200000", 3),
        *KAFKAS["log.retention.minutes"][2],
    ]
    assert shown(broker_row(layers, "log.retention.ms")) == ("100000", 2, synonyms)
    assert shown(topic_row(layers, "retention.ms")) == ("100000", 2, synonyms)
    assert shown(broker_row(layers, "log.retention.minutes")) == KAFKAS["log.retention.minutes"]


def test_every_dynamic_key_is_a_broker_setting_and_can_be_described() -> None:
    assert settings_of(BrokerConfig).keys() >= DYNAMIC_BROKER_KEYS
    assert settings_of(TopicConfig).keys() >= BROKER_KEY_OF.keys()
    rows = list(ConfigLayers(STATIC, dict.fromkeys(ABSENT_UNLESS_SET, "5")).describe_broker())
    older = {key for keys in OLDER_KEYS.values() for key in keys}
    assert {row.name for row in rows} == settings_of(BrokerConfig).keys() | older
    assert len(rows) == len(settings_of(BrokerConfig)) + len(older)
    assert {row.name for row in rows if not row.is_read_only} == DYNAMIC_BROKER_KEYS | TLS_OF_LISTENERS


@pytest.mark.parametrize(
    ("key", "config_type", "value"),
    [
        ("broker.id", ConfigType.INT, "1"),
        ("log.retention.ms", ConfigType.LONG, None),
        ("log.retention.hours", ConfigType.INT, "168"),
        ("log.retention.minutes", ConfigType.INT, None),
        ("log.segment.bytes", ConfigType.INT, "1000000"),
        ("broker.rack", ConfigType.STRING, None),
        ("log.cleanup.policy", ConfigType.LIST, "delete"),
        ("auto.create.topics.enable", ConfigType.BOOLEAN, "true"),
    ],
)
def test_types_and_texts(key: str, config_type: ConfigType, value: str | None) -> None:
    row = broker_row(ConfigLayers(STATIC), key)
    assert (row.config_type, row.value) == (config_type, value)


@pytest.mark.parametrize("key", sorted(ABSENT_UNLESS_SET))
def test_a_throttle_is_described_only_while_it_is_set(key: str) -> None:
    """As in Kafka: whoever removes a throttle waits until it is gone."""

    def described(layers: ConfigLayers) -> list[tuple[str | None, Source]]:
        return [(row.value, row.source) for row in layers.describe_broker() if row.name == key]

    assert described(ConfigLayers(STATIC)) == []
    assert described(ConfigLayers(STATIC, {key: "500"})) == [("500", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)]
    assert described(ConfigLayers(STATIC, {key: "500"}, {key: "9"})) == [("9", Source.DYNAMIC_BROKER_CONFIG)]
    given = {key: str(LONG_MAX)}
    assert described(ConfigLayers(STATIC, given=given)) == [(given[key], Source.STATIC_BROKER_CONFIG)]


def test_an_empty_list_is_described_as_empty_and_not_as_unset() -> None:
    row = topic_row(ConfigLayers(STATIC), "leader.replication.throttled.replicas")
    assert (row.value, row.source, row.config_type) == ("", Source.DEFAULT_CONFIG, ConfigType.LIST)
    assert topic_row(ConfigLayers(STATIC), "cleanup.policy", cleanup_policy="").value == ""


@pytest.mark.parametrize(
    ("config", "found", "earlier", "usable", "complaint"),
    [
        (TopicConfig, {"retention.ms": " 77 "}, {}, {"retention.ms": "77"}, ""),
        (TopicConfig, {"retention.ms": "x"}, {"retention.ms": "5"}, {"retention.ms": "5"}, "5 stays"),
        (TopicConfig, {"retention.ms": "x"}, {}, {}, "is ignored"),
        (TopicConfig, {"some.plugin": "x", "flush.ms": "5"}, {}, {"flush.ms": "5"}, "some.plugin is unknown"),
        (TopicConfig, {}, {"retention.ms": "5"}, {}, ""),
        (BrokerConfig, {"log.dirs": "/x"}, {}, {}, "cannot change"),
        (BrokerConfig, {"log.cleaner.io.buffer.sizes": "2"}, {}, {}, "is unknown"),
        (BrokerConfig, {"max.connections": "-1"}, {"max.connections": "9"}, {"max.connections": "9"}, "9 stays"),
    ],
)
def test_invalid_and_unknown_settings_in_zookeeper_are_not_used(
    config: type, found: dict[str, str], earlier: dict[str, str], usable: dict[str, str], complaint: str
) -> None:
    got, complaints = believable(config, found, earlier, "somebody")
    assert got == usable
    assert len(complaints) == bool(complaint)
    assert all(complaint in text and "somebody" in text for text in complaints)


RATE = "max.connection.creation.rate"
OF_CLIENTS = f"listener.name.clients.{RATE}"


@pytest.mark.parametrize(
    ("given", "cluster", "own", "expected"),
    [
        ("", {}, {}, (INT_MAX, INT_MAX)),
        ("", {RATE: "7"}, {}, (7, 7)),
        ("", {OF_CLIENTS: "7"}, {}, (7, INT_MAX)),
        (f"{OF_CLIENTS}=5", {}, {}, (5, INT_MAX)),
        (f"{OF_CLIENTS}=5", {RATE: "7"}, {}, (5, 7)),
        (f"{OF_CLIENTS}=5", {OF_CLIENTS: "7"}, {}, (7, INT_MAX)),
        (f"{OF_CLIENTS}=5", {OF_CLIENTS: "7"}, {OF_CLIENTS: "9"}, (9, INT_MAX)),
    ],
)
def test_the_limit_of_one_listener(
    given: str, cluster: dict[str, str], own: dict[str, str], expected: tuple[int, int]
) -> None:
    loaded = load(f"broker.id=1\nzookeeper.connect=zk:2181\nlog.dirs=/d\n{given}", "f", {}, ())
    assert loaded.warnings == ()
    effective = ConfigLayers(loaded.config, cluster, own, loaded.given).effective
    assert tuple(limit_of_listener(effective, name, RATE) for name in ("CLIENTS", "OTHERS")) == expected


def test_the_limit_of_one_listener_is_described_with_those_of_all() -> None:
    layers = ConfigLayers(
        BrokerConfig(broker_id=1, limits_of_listeners={OF_CLIENTS: 5}),
        {RATE: "7", OF_CLIENTS: "8"},
        {OF_CLIENTS: "9"},
        {OF_CLIENTS: "5"},
    )
    row = broker_row(layers, OF_CLIENTS)
    assert (row.value, row.source, row.config_type) == ("9", Source.DYNAMIC_BROKER_CONFIG, ConfigType.INT)
    assert [(each.name, each.value) for each in row.synonyms] == [
        (OF_CLIENTS, "9"),
        (OF_CLIENTS, "8"),
        (RATE, "7"),
        (OF_CLIENTS, "5"),
        (RATE, str(INT_MAX)),
    ]
    rows = {row.name: row.synonyms for row in layers.describe_cluster_default()}
    assert [each.name for each in rows[OF_CLIENTS]] == [OF_CLIENTS, RATE]


def test_a_limit_of_one_listener_in_zookeeper_is_checked() -> None:
    found = {OF_CLIENTS: "many", "listener.name.clients.max.connection.rate": "5"}
    usable, complaints = believable(BrokerConfig, found, {OF_CLIENTS: "5"}, "broker 1")
    assert usable == {OF_CLIENTS: "5"}
    assert [complaint.partition(":")[2].split()[0] for complaint in complaints] == [
        f"{OF_CLIENTS}='many':",
        "listener.name.clients.max.connection.rate",
    ]


def test_only_listeners_with_a_limit_of_their_own_have_one() -> None:
    config = BrokerConfig(
        max_connections=9, limits_of_listeners={"listener.name.clients.max.connections": 5, OF_CLIENTS: 7}
    )
    assert own_limits_of_listeners(config, ["CLIENTS", "OTHERS"], MAX_CONNECTIONS) == {"CLIENTS": 5}


def test_tls_of_one_listener_counts_for_one_broker_and_is_described_without_its_passwords() -> None:
    key, location = "listener.name.clients.ssl.key.password", "listener.name.clients.ssl.keystore.location"
    loaded = load(
        f"broker.id=1\nzookeeper.connect=zk:2181\nlog.dirs=/d\n{location}=/a\nlistener.name.b.ssl.client.auth=required",
        "f", {}, (),
    )  # fmt: skip
    usable, complaints = believable(
        BrokerConfig, {key: "sesame", location: "/b", "ssl.key.password": "x"}, {}, "broker 1"
    )
    assert usable == {key: "sesame", location: "/b"}
    assert complaints == ["broker 1: ssl.key.password cannot change while a broker runs, and is ignored"]
    layers = ConfigLayers(loaded.config, {}, usable, loaded.given)
    assert layers.effective.ssl_of_listeners == {
        location: "/b",
        key: "sesame",
        "listener.name.b.ssl.client.auth": "required",
    }
    row = broker_row(layers, location)
    assert (row.value, row.source, row.is_read_only) == ("/b", Source.DYNAMIC_BROKER_CONFIG, True)
    assert [(each.value, each.source) for each in row.synonyms] == [
        ("/b", Source.DYNAMIC_BROKER_CONFIG),
        ("/a", Source.STATIC_BROKER_CONFIG),
    ]
    secret = broker_row(layers, key)
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, ConfigType.PASSWORD)
    assert "sesame" not in repr(list(layers.describe_broker()))


def test_a_password_that_is_too_long_is_not_shown_in_the_complaint() -> None:
    key = "listener.name.clients.ssl.key.password"
    usable, complaints = believable(BrokerConfig, {key: "x" * 200_000}, {key: "sesame"}, "broker 1")
    assert usable == {key: "sesame"}
    assert "xx" not in complaints[0]
    assert "sesame" not in complaints[0]
