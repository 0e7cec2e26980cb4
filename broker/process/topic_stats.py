"""What clients and followers read and write, counted for each topic (Kafka's BrokerTopicStats).

The loop adds to plain numbers; the metrics thread reads them. A topic's numbers end when this broker's last replica of it is removed. They
are then added to those of all topics, which never decrease.
"""

from __future__ import annotations

import threading

COUNTS = (
    "messages_in",
    "bytes_in",
    "bytes_out",
    "failed_produce_requests",
    "failed_fetch_requests",
)
"""The counts of a topic, in Kafka's words. A failed request counts once for each of its partitions that failed."""


class TopicStats:
    """The counts of one topic. `replicas`: partitions of the topic on this broker."""

    __slots__ = (*COUNTS, "replicas", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.replicas = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0

    def values(self) -> tuple[int, ...]:
        """In the order of COUNTS."""
        return (
            self.messages_in,
            self.bytes_in,
            self.bytes_out,
            self.failed_produce_requests,
            self.failed_fetch_requests,
        )


class BrokerTopicStats:
    """The counts of all topics with a replica here, and the bytes of replication."""

    def __init__(self) -> None:
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self._topics: dict[str, TopicStats] = {}
        self._of_removed = (0,) * len(COUNTS)
        self._lock = threading.Lock()
        """Held by the loop only when a topic is removed."""

    def replica_added(self, topic: str) -> TopicStats:
        stats = self._topics.get(topic)
        if stats is None:
            stats = self._topics[topic] = TopicStats(topic)
        stats.replicas += 1
        return stats

    def replica_removed(self, topic: str) -> None:
        stats = self._topics.get(topic)
        if stats is None:
            return
        stats.replicas -= 1
        if not stats.replicas:
            with self._lock:
                del self._topics[topic]
                self._of_removed = summed(self._of_removed, stats.values())

    def get(self, topic: str) -> TopicStats | None:
        """None for a topic without a replica here."""
        return self._topics.get(topic)

    def read(self) -> tuple[tuple[int, ...], list[TopicStats]]:
        """The counts of all topics that were removed since the start, and those of each topic. For the metrics thread."""
        with self._lock:
            return self._of_removed, list(self._topics.values())


def summed(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))
