"""`ottla config ...`: how changes are written, and Kafka's text."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import ottla
from tests.support.fake_admin import FakeCluster
from tools.admin.config_values import (
    ChangeError,
    ConfigSynonym,
    ConfigValue,
    Entity,
    entity_lines,
    is_sensitive,
    merge_changes,
    nearest,
    parse_additions,
    parse_removals,
)


@pytest.mark.parametrize(
    ("texts", "additions"),
    [
        (["a=1"], {"a": "1"}),
        (["a=1,b=2", "c=3"], {"a": "1", "b": "2", "c": "3"}),
        (["a=[x,y],b=2"], {"a": "x,y", "b": "2"}),
        (["a=[]"], {"a": ""}),
        ([" a = b=c , d= "], {"a": "b=c", "d": ""}),
        (["a=1,"], {"a": "1"}),
    ],
)
def test_parse_additions(texts: list[str], additions: dict[str, str]) -> None:
    assert parse_additions(texts) == additions


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "expected KEY=VALUE"),
        ("", "expected KEY=VALUE"),
        ("=1", "expected KEY=VALUE"),
        ("a=1,b", "'b': expected KEY=VALUE"),
        ("a=1,a=2", "a is given twice"),
        ("a=[x,y", "brackets"),
        ("a=x],b=1", "brackets"),
        ("a=[[x]]", "brackets"),
    ],
)
def test_parse_additions_refuses(text: str, says: str) -> None:
    with pytest.raises(ChangeError, match=r"^.*" + says.replace("[", r"\[")):
        parse_additions([text])


def test_removals_and_merge() -> None:
    assert parse_removals(["a,b", "a", " c "]) == ["a", "b", "c"]
    assert merge_changes({"a": "1"}, ["b"]) == {"a": "1", "b": None}
    with pytest.raises(ChangeError, match="a is both set and deleted"):
        merge_changes({"a": "1"}, ["a"])


def test_nearest() -> None:
    known = ["retention.ms", "retention.bytes"]
    assert nearest("retention.mss", known) == "; did you mean retention.ms?"
    assert nearest("retention.ms", known) == nearest("colour", known) == ""


def test_lines_are_kafkas() -> None:
    value = ConfigValue(
        "5",
        "DYNAMIC_TOPIC_CONFIG",
        synonyms=(
            ConfigSynonym("retention.ms", "5", "DYNAMIC_TOPIC_CONFIG"),
            ConfigSynonym("log.retention.hours", None, "DEFAULT_CONFIG"),
        ),
    )
    assert list(entity_lines(Entity("topics", "orders"), {"retention.ms": value}, everything=False)) == [
        "Dynamic configs for topic orders are:",
        (
            "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, "
            "DEFAULT_CONFIG:log.retention.hours=null}"
        ),
    ]
    secret = ConfigValue(None, "STATIC_BROKER_CONFIG", is_sensitive=True)
    assert list(entity_lines(Entity("brokers", "1"), {"password": secret}, everything=True)) == [
        "All configs for broker 1 are:",
        "  password=null sensitive=true synonyms={}",
    ]


def test_alter_and_describe(fake: FakeCluster) -> None:
    orders = "--entity-type topics --entity-name orders"
    altered = ottla(f"config alter {orders} --add-config retention.ms=5")
    assert altered.output == "Completed updating config for topic orders.\n"
    assert ottla(f"config describe {orders}").output.splitlines()[1].startswith("  retention.ms=5 ")
    (everything,) = json.loads(ottla(f"config describe {orders} --all --format json").output)
    assert everything["entity_name"] == "orders"
    assert everything["configs"]["min.insync.replicas"]["source"] == "DEFAULT_CONFIG"
    assert everything["configs"]["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    removed = json.loads(ottla(f"config alter {orders} --delete-config retention.ms --format json").output)
    assert removed == {"entity_type": "topics", "entity_name": "orders", "changed": {"retention.ms": None}}


def test_without_a_name_all_brokers_and_the_default_are_described(fake: FakeCluster) -> None:
    fake.alter_configs(Entity("brokers", ""), {"x": "1"})
    lines = ottla("config describe --entity-type brokers").output.splitlines()
    assert lines == [
        *(f"Dynamic configs for broker {broker} are:" for broker in (1, 2, 3)),
        "Default configs for brokers in the cluster are:",
        "  x=1 sensitive=false synonyms={}",
    ]


@pytest.mark.parametrize(
    ("key", "is_secret"),
    [
        ("ssl.key.password", True),
        ("listener.name.external.ssl.key.password", True),
        ("listener.name.external.ssl.keystore.location", False),
        ("ssl.keystore.location", False),
        ("other", False),
    ],
)
def test_a_secret_is_known_with_the_prefix_of_a_listener(key: str, is_secret: bool) -> None:
    described = {
        "ssl.key.password": ConfigValue(None, "DEFAULT_CONFIG", is_sensitive=True),
        "ssl.keystore.location": ConfigValue(None, "DEFAULT_CONFIG"),
    }
    assert is_sensitive(key, described) == is_secret
