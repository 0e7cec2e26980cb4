"""Where the leaders of partitions were some seconds ago, for metadata that is out of date. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from protocol.conversation.asked import Plain
from protocol.types import Address

KEPT_S = 70.0
"""A little longer than rules can look back."""
NO_LEADER = -1


class Led(NamedTuple):
    """From `since` on. `leader`: -1: none."""

    since: float
    leader: int
    epoch: int


class LeadersBefore:
    """`led` is called with every change, and may be called without one."""

    def __init__(self, address_of: Callable[[int], Address | None] = lambda broker: None) -> None:
        """`address_of`: where clients reach a broker, also one that is down; None: that is not known."""
        self._address_of = address_of
        self._known: dict[str, dict[int, deque[Led]]] = {}

    @property
    def topics(self) -> Collection[str]:
        """Of which something is known."""
        return self._known.keys()

    def forget(self, topics: Collection[str]) -> None:
        """They are deleted."""
        for topic in topics:
            self._known.pop(topic, None)

    def led(self, now: float, topic: str, partition: int, leader: int, epoch: int) -> None:
        known = self._known.setdefault(topic, {}).setdefault(partition, deque())
        if not known or (known[-1].leader, known[-1].epoch) != (leader, epoch):
            known.append(Led(now, leader, epoch))
        while len(known) > 1 and known[1].since < now - KEPT_S:
            known.popleft()

    def at(self, when: float, topic: str, partition: int) -> Led | None:
        """None: nothing is known of that time."""
        found = None
        for each in self._known.get(topic, {}).get(partition, ()):
            if each.since <= when:
                found = each
        return found

    def outdated(self, metadata: Plain, when: float) -> Plain:
        """An answer to Metadata with the leaders of that time, and their addresses. What is not known of that time stays as it is."""
        topics = []
        brokers = {row["node_id"]: row for row in metadata["brokers"]}
        for row in metadata["topics"]:
            partitions = []
            for partition in row["partitions"]:
                led = self.at(when, row["name"] or "", partition["partition_index"])
                if led is not None and led.leader != NO_LEADER:
                    partition = {**partition, "leader_id": led.leader, "leader_epoch": led.epoch, "error_code": 0}
                    if led.leader not in brokers and (address := self._address_of(led.leader)) is not None:
                        brokers[led.leader] = {
                            "node_id": led.leader,
                            "host": address[0],
                            "port": address[1],
                            "rack": None,
                        }
                partitions.append(partition)
            topics.append({**row, "partitions": partitions})
        return {**metadata, "brokers": list(brokers.values()), "topics": topics}
