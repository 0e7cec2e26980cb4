"""Counts by topic, and in total."""

from __future__ import annotations

from broker.process.topic_stats import BrokerTopicStats


def test_the_total_never_decreases_when_a_topic_ends() -> None:
    stats = BrokerTopicStats()
    first, second = stats.replica_added("a"), stats.replica_added("a")
    stats.replica_added("b").messages_in += 1
    assert first is second
    first.messages_in += 10

    def counted() -> tuple[int, dict[str, int]]:
        removed, topics = stats.read()
        return removed[0], {topic.topic: topic.messages_in for topic in topics}

    stats.replica_removed("a")
    assert counted() == (0, {"a": 10, "b": 1})  # one replica is left
    stats.replica_removed("a")
    assert counted() == (10, {"b": 1})
    assert stats.get("a") is None

    assert stats.replica_added("a").messages_in == 0  # created again
    assert counted() == (10, {"a": 0, "b": 1})
