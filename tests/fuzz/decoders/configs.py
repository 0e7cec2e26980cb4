"""Settings: the broker's file, its environment and overrides, and what admins set while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

from broker.settings import config_layers
from broker.settings.config import BrokerConfig, ConfigError, TopicConfig, parse_value, settings_of
from broker.settings.config_sources import environment_key, load, parse_properties
from broker.settings.listeners import listeners_of
from tests.fuzz.decoder import Decoder

KEYS = tuple(
    chain(
        ((BrokerConfig, key) for key in settings_of(BrokerConfig)),
        ((TopicConfig, key) for key in settings_of(TopicConfig)),
    )
)
"""Their order is that of the fields; a new one comes last in its class."""
VALUES = ("1", "-1", "0.5", "true", "delete", "zstd", "*", "0:1,1:2", "3.0-IV1", " 7 ")


def decoders() -> list[Decoder]:
    return [
        Decoder(
            "properties",
            _properties,
            lambda: PROPERTIES,
            (ConfigError, UnicodeDecodeError),
            cpu_ms=200,
            lines=50_000,
            lines_per_byte=2000,
            is_slow=True,
        ),
        Decoder("setting", _setting, _settings, (ConfigError, UnicodeDecodeError), bytes_max=500),
        Decoder("topic-settings", _topic_settings, lambda: TOPICS, (ConfigError, UnicodeDecodeError), lines=20_000),
        Decoder(
            "broker-settings",
            _broker_settings,
            lambda: BROKERS,
            (ConfigError, UnicodeDecodeError),
            cpu_ms=100,
            lines=50_000,
            is_slow=True,
        ),
    ]


PROPERTIES = [
    b"broker.id=1\nzookeeper.connect=h:1\nlog.dirs=/d\nlisteners=PLAINTEXT://:9092\n# c\nlog.retention.hours: 5\na\\\n  b = \\u0041\n",
    b"broker.id 1\nzookeeper.connect:h\nlog.dir=/d,/e\nunknown.key=1\nlog.roll.hours=\\u00e9\nport=1\n",
    b"broker.id=1\nzookeeper.connect=h:1\nlog.dirs=/d\nlisteners=A://h:1,B://[::1]:0\nlistener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\n",
]


def _properties(data: bytes) -> object:
    text = data.decode()
    settings = list(parse_properties(text, "f"))
    loaded = load(text, "f", {}, ())
    assert all(0 <= endpoint.port < 65536 for endpoint in listeners_of(loaded.config).bound.values())
    assert len(settings) >= len(loaded.given)
    return loaded


def _setting(data: bytes) -> object:
    """Two bytes for the setting, then its value. An accepted value is written, and accepted again."""
    config, key = KEYS[int.from_bytes(data[:2], "big") % len(KEYS)]
    text = data[2:].decode()
    environment_key("KAFKA_" + text)
    value = parse_value(config, key, text)
    assert text.isascii() or isinstance(value, str), f"{text!r} is {value}"
    assert isinstance(value, str) or not set("_") & set(text), f"{text!r} is {value}"
    assert not isinstance(value, float) or math.isfinite(value), f"{text!r} is {value}"
    again = parse_value(config, key, config_layers.config_text(value))
    assert again == value
    return value


def _settings() -> Iterator[bytes]:
    for number, (config, key) in enumerate(KEYS):
        default = getattr(config(), settings_of(config)[key].name)
        yield number.to_bytes(2, "big") + config_layers.config_text(default).encode()
        yield number.to_bytes(2, "big") + VALUES[number % len(VALUES)].encode()


TOPICS = [
    b"retention.ms=5\ncleanup.policy=compact,delete\nmin.insync.replicas=2",
    b"segment.bytes=100\nmax.message.bytes=0\nfollower.replication.throttled.replicas=0:1,1:2\ncompression.type=gzip",
    b"min.compaction.lag.ms=5\nmax.compaction.lag.ms=1\nmessage.format.version=3.0-IV1\nunknown=1",
]


def _lines(data: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in data.decode().split("\n"))
    return {key: value for key, _, value in pairs}


def _topic_settings(data: bytes) -> object:
    overrides = _lines(data)
    config = TopicConfig().with_overrides(overrides)
    rows = list(config_layers.ConfigLayers(BrokerConfig(broker_id=1)).describe_topic(overrides))
    assert len(rows) >= len(settings_of(TopicConfig))
    return config


BROKERS = [
    b"log.retention.ms=5\nlog.cleaner.threads=2\nmax.connections=5",
    b"compression.type=gzip\nlog.cleanup.policy=compact\nleader.replication.throttled.rate=5\nlog.dirs=/x",
]


def _broker_settings(data: bytes) -> object:
    """Valid settings are used; others are reported."""
    found = _lines(data)
    usable, complaints = config_layers.believable(BrokerConfig, found, {"log.retention.ms": "7"}, "brokers/1")
    assert len(usable) + len(complaints) >= len(found)
    layers = config_layers.ConfigLayers(BrokerConfig(broker_id=1), cluster=usable)
    usable, _ = config_layers.believable(TopicConfig, found, {}, "topics/t")
    list(layers.describe_topic(usable))
    return list(layers.describe_broker())
