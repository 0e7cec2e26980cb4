"""Counts by topic, and in total."""

from __future__ import annotations

from broker.process.topic_stats import COUNTS, BrokerTopicStats, TopicStats


def test_every_count_is_read() -> None:
    stats = TopicStats()
    for value, name in enumerate(COUNTS):
        setattr(stats, name, value)
    assert stats.values() == tuple(range(len(COUNTS)))


def test_the_total_never_decreases_when_a_topic_ends() -> None:
    stats = BrokerTopicStats()
    first, second = stats.replica_added("a"), stats.replica_added("a")
    stats.replica_added("b").messages_in += 1
    assert first is second
    first.messages_in += 10

    stats.replica_removed("a")
    assert stats.read()[1]["a"][0] == 10  # one replica is left
    stats.replica_removed("a")
    total, topics = stats.read()
    assert (total[0], set(topics), stats.get("a")) == (11, {"b"}, None)

    assert stats.replica_added("a").messages_in == 0  # created again
    assert stats.read()[0][0] == 11
