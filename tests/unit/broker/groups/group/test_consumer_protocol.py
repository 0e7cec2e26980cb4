"""Which topics a group's members subscribe to, as far as the coordinator can read it (KIP-496)."""

from __future__ import annotations

import pytest

from broker.groups.group import consumer_protocol
from broker.groups.group.messages import Protocol
from tests.support.group_scripts import ScriptedGroup, subscription


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription(), frozenset()),
        (subscription("a", "b"), frozenset({"a", "b"})),
        (subscription("ä", version=3), frozenset({"ä"})),
        (subscription("a")[:8], None),
        (b"", None),
        (b"\xff\xff" + subscription("a")[2:], None),
        (b"\x00\x00\xff\xff\xff\xff", None),
        (b"\x00\x00\x00\x00\x00\x01\xff\xff", None),
        (b"\x00\x00\x00\x00\x00\x01\x00\x01\xff", None),
    ],
)
def test_subscribed_topics(metadata: bytes, topics: frozenset[str] | None) -> None:
    """KIP-496: a subscription that cannot be read counts as one to everything."""
    script = ScriptedGroup()
    assert script.group.subscribed_topics() is None
    assert script.group.is_subscribed("x")
    script.join(protocols=(Protocol("range", metadata),))
    assert script.group.subscribed_topics() == topics
    assert script.group.is_subscribed("a") == (topics is None or "a" in topics)
    script.leave("id-1")
    assert script.group.subscribed_topics() == frozenset()
    assert not script.group.is_subscribed("a")


def test_topics_of_other_protocol_types_are_not_known() -> None:
    script = ScriptedGroup()
    script.join(protocol_type="connect", protocols=(Protocol("eager", subscription("a")),))
    assert script.group.subscribed_topics() is None


def test_the_same_topics_of_many_members_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More topics than the coordinator reads count as unknown."""
    monkeypatch.setattr(consumer_protocol, "TOPICS_READ_MAX", 3)
    same = [subscription("a", "b") + bytes([member]) for member in range(100)]
    other, another = subscription("c"), subscription("d")
    assert consumer_protocol.topics_of_all(same) == {"a", "b"}
    assert consumer_protocol.topics_of_all([*same, other, *same]) == {"a", "b", "c"}
    assert consumer_protocol.topics_of_all([*same, other, another]) is None
    assert consumer_protocol.subscribed_topics(subscription("a", "b", "c", "d")) is None
