"""server.properties, KAFKA_* and --override: syntax, precedence, warnings, errors."""

from __future__ import annotations

import itertools
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker
from broker.settings import config_sources
from broker.settings.config import (
    BROKER_KEY_OF,
    SASL_OF_LISTENERS,
    VALUE_LENGTH_MAX,
    BrokerConfig,
    ConfigError,
    TopicConfig,
    attribute,
    parse_value,
    settings_of,
    throttled_replicas,
)
from broker.settings.config_sources import environment_key, parse_properties
from broker.settings.zookeeper import access_of

ENOUGH = "broker.id=1\nzookeeper.connect=localhost:2181\n"
SOMEWHERE = {"KAFKA_LOG_DIRS": "/data"}


def load(text: str = "", environment: dict[str, str] | None = None, *overrides: str) -> config_sources.LoadedConfig:
    return config_sources.load(ENOUGH + text, "server.properties", {**SOMEWHERE, **(environment or {})}, overrides)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a = b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("  a  =  b c ", [("a", "b c ")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("a==b", [("a", "=b")]),
        ("# a=b", []),
        ("! a=b", []),
        ("", []),
        ("a=b\\\n   c", [("a", "bc")]),
        ("a=b\\\\\nc=d", [("a", "b\\"), ("c", "d")]),
        ("a=\\t\\u0041\\:", [("a", "\tA:")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a=b\\", [("a", "b")]),
        ("a=b # no comment", [("a", "b # no comment")]),
        ("a=1\r\nb=2", [("a", "1"), ("b", "2")]),
        ("a=\\uD83D\\uDE00!", [("a", "\U0001f600!")]),
    ],
)
def test_properties_syntax(line: str, expected: list[tuple[str, str]]) -> None:
    assert [(s.key, s.value) for s in parse_properties(line, "f")] == expected


def test_a_continued_line_is_named_by_its_first_line_number() -> None:
    assert [s.where for s in parse_properties("\na=b\\\n c\nd=e", "f")] == ["f:2", "f:4"]


@given(st.text())
def test_any_text_is_settings_or_an_error(text: str) -> None:
    try:
        settings = list(parse_properties(text, "f"))
    except ConfigError:
        return
    assert all(setting.where.startswith("f:") for setting in settings)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("KAFKA_BROKER_ID", "broker.id"),
        ("KAFKA_ZOOKEEPER_SESSION_TIMEOUT_MS", "zookeeper.session.timeout.ms"),
        ("KAFKA_A__B", "a_b"),
        ("KAFKA_A___B_C", "a-b.c"),
    ],
)
def test_environment_names(name: str, key: str) -> None:
    assert environment_key(name) == key


def test_a_later_source_wins() -> None:
    environment = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_BROKER_RACK": "b", "PATH": "x"}
    config = load("num.partitions=2\nbroker.rack=a\nmessage.max.bytes=5", environment, "num.partitions=4").config
    assert (config.num_partitions, config.broker_rack, config.message_max_bytes, config.broker_id) == (4, "b", 5, 1)


def test_log_dirs_has_no_default() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs is not set: .*log\.dirs=/"):
        config_sources.load(ENOUGH, "f", {}, ())


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x1c"])
def test_only_newlines_end_a_line(separator: str) -> None:
    """As in Java: a value that hides another separator of lines sets nothing else."""
    assert load(f"broker.rack=a{separator}num.partitions=7").config.num_partitions == 1


def test_older_keys() -> None:
    assert config_sources.load(ENOUGH + "log.dir=/a", "f", {}, ()).config.log_directories == ("/a",)
    assert config_sources.load(ENOUGH + "log.dir=/a\nlog.dirs=/b, /c", "f", {}, ()).config.log_directories == (
        "/b",
        "/c",
    )
    assert load("log.retention.hours=2").config.log_retention_ms == 7_200_000
    assert load("log.retention.minutes=-1").config.log_retention_ms == -1


def test_an_unknown_key_is_a_warning_with_the_nearest_one() -> None:
    warnings = load("num.partition=2").warnings
    assert warnings == (
        "server.properties:3: unknown setting 'num.partition' is ignored; did you mean num.partitions?",
    )
    (warning,) = load("", {"KAFKA_FOO_BAR_BAZ": "1"}).warnings
    assert "environment KAFKA_FOO_BAR_BAZ" in warning


@pytest.mark.parametrize(
    "name", ["KAFKA_HEAP_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_JMX_PORT"]
)
def test_variables_of_the_jvm_are_ignored(name: str) -> None:
    assert load("", {name: "x"}).warnings == ()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("num.partitions=many", ["server.properties:3", "num.partitions", "'many'", "whole number"]),
        ("num.partitions=0", ["num.partitions", "'0'", "from 1 to"]),
        ("auto.create.topics.enable=yes", ["auto.create.topics.enable", "true or false"]),
        ("log.cleanup.policy=keep", ["log.cleanup.policy", "delete, compact"]),
        ("log.retention.hours=x", ["log.retention.hours", "'x'"]),
        ("replica.selector.class=com.example.Mine", ["replica.selector.class", "expected nothing, or "]),
        ("broker.id=-2", ["broker.id"]),
        ("log.retention.hours=1_0", ["log.retention.hours", "'1_0'"]),
        ("log.retention.ms=1_0", ["log.retention.ms", "'1_0'", "whole number"]),
        ("log.retention.ms=9223372036854775808", ["log.retention.ms", "expected a number of at least -1"]),
        ("log.retention.ms=\\u0661", ["log.retention.ms", "whole number"]),
        ("log.retention.ms=" + "1" * 5000, ["log.retention.ms", "more characters", "whole number"]),
        ("log.cleaner.min.cleanable.ratio=nan", ["log.cleaner.min.cleanable.ratio", "'nan'"]),
        ("log.cleaner.io.max.bytes.per.second=Infinity", ["log.cleaner.io.max.bytes.per.second", "a number"]),
        ("compression.gzip.level=1_0", ["compression.gzip.level"]),
        ("offsets.topic.num.partitions=0", ["offsets.topic.num.partitions", "'0'", "from 1 to"]),
        ("offsets.topic.compression.codec=5", ["offsets.topic.compression.codec", "'5'", "from 0 to 4"]),
        (
            "group.min.session.timeout.ms=10\ngroup.max.session.timeout.ms=9",
            ["group.min.session.timeout.ms=10", "group.max.session.timeout.ms=9"],
        ),
    ],
)
def test_a_bad_value_names_place_key_value_and_what_is_allowed(text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(text)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "broker.id=1", "zookeeper.connect=a:1", ENOUGH, ENOUGH + "log.dirs=", ENOUGH + "log.dirs= , "]
)
def test_required_settings(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.id|zookeeper\.connect|log\.dirs"):
        config_sources.load(text, "f", {}, ())


@pytest.mark.parametrize("override", ["x", "=1", " =1"])
def test_a_bad_override(override: str) -> None:
    with pytest.raises(ConfigError, match="--override"):
        load("", {}, override)


def test_every_setting_is_read_or_says_that_it_is_not() -> None:
    code = Path(str(broker.__file__)).parent.rglob("*.py")
    read = set()
    for path in code:
        with tokenize.open(path) as file:
            for before, token in itertools.pairwise(tokenize.generate_tokens(file.readline)):
                if before.string == ".":
                    read.add(token.string)
    read |= {attribute(key) for key in BROKER_KEY_OF.values()}  # as the default of a topic's own setting
    of_tls = {key for key in settings_of(BrokerConfig) if key.startswith("ssl.")}
    of_tls |= {key for key in settings_of(BrokerConfig) if key.startswith("zookeeper.")}
    read |= {
        attribute(key) for key in of_tls.union(SASL_OF_LISTENERS)
    }  # by key, in broker/settings/{tls,sasl,zookeeper}.py
    settings = [*settings_of(BrokerConfig).values(), *settings_of(TopicConfig).values()]
    without_effect = {each.name for each in settings if each.metadata["doc"].startswith("Without effect here")}
    assert {each.name for each in settings} - read == without_effect


def test_values_have_a_maximum_length() -> None:
    """Only a few long lists of replicas are kept in memory."""
    replicas = ",".join(f"{partition}:1" for partition in range(12_000))
    assert VALUE_LENGTH_MAX // 2 < len(replicas) < VALUE_LENGTH_MAX
    assert parse_value(TopicConfig, "leader.replication.throttled.replicas", replicas) == replicas
    parsed = throttled_replicas(replicas)
    assert parsed is throttled_replicas(replicas)
    assert parsed is not None
    assert (11_999, 1) in parsed
    for number in range(64):  # as many as are kept
        throttled_replicas(" " * len(replicas) + f"{number}:2")  # long, and soon read
    assert parsed is not throttled_replicas(replicas)
    with pytest.raises(ConfigError, match=f"the limit is {VALUE_LENGTH_MAX}"):
        parse_value(TopicConfig, "leader.replication.throttled.replicas", "x" * (VALUE_LENGTH_MAX + 1))


@pytest.mark.parametrize(
    "text",
    ["zookeeper.set.acl=true", "zookeeper.digest.user=a", "zookeeper.digest.user=a:b\nzookeeper.digest.password=x"],
)
def test_logins_at_zookeeper_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.digest\.user and zookeeper\.digest\.password"):
        access_of(load(f"\n{text}").config)


HALF = "\\uD800"
"""An escape of half of a surrogate pair, as a file has it."""


@pytest.mark.parametrize(
    ("text", "environment", "override", "where"),
    [
        (f"super.users=User:{HALF}", {}, "", "server.properties:4: 'super.users'"),
        (f"ssl.principal.mapping.rules=RULE:.*/{HALF}/", {}, "", "server.properties:4: 'ssl.principal.mapping.rules'"),
        (f"plain.sasl.jaas.config=x required user_a{HALF}=y;", {}, "", "'plain.sasl.jaas.config'"),
        (f"scram-sha-256.sasl.jaas.config=x required username=a password=y{HALF};", {}, "", "'scram-sha-256"),
        ("", {"KAFKA_SUPER_USERS": "User:\udcff"}, "", "environment KAFKA_SUPER_USERS: 'super.users'"),
        ("", {}, "super.users=User:\udcff", "--override: 'super.users'"),
        (f"un{HALF}known=1", {}, "", r"server.properties:4: 'un\ud800known'"),
    ],
)
def test_names_that_are_no_text(text: str, environment: dict[str, str], override: str, where: str) -> None:
    """Nobody could be told of them, and no node of ZooKeeper could have them."""
    with pytest.raises(ConfigError) as refused:
        load(f"\n{text}", environment, *[override] * bool(override))
    assert where in str(refused.value)
    assert str(refused.value).endswith("is no text in UTF-8")
