"""Which brokers registered again since a partition's state was written: what a new controller can tell of the time before it. Pure.

A broker epoch is the czxid of the broker's registration, and a state's znode has the zxid of its last write (mzxid): the one
counter of ZooKeeper says what came first. A member of the ISR whose registration is newer has died since, or lost its session,
and nobody reacted: whoever reacts writes the state, and whoever lets a broker into the ISR does so after it registered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping

from protocol.types import BrokerInfo, LeaderAndIsr, TopicPartition


class Bounces:
    """`note` takes the states as they are loaded; afterwards this has the partitions that somebody bounced in."""

    def __init__(self, brokers: Collection[BrokerInfo]) -> None:
        by_epoch = sorted(brokers, key=lambda broker: broker.epoch)
        self._epochs = [broker.epoch for broker in by_epoch]
        # One set for each number of older brokers: a hundred thousand states are compared without making any.
        self._newer = [frozenset(broker.id for broker in by_epoch[at:]) for at in range(len(by_epoch) + 1)]
        self._of: dict[TopicPartition, frozenset[int]] = {}

    @property
    def newest(self) -> int:
        """The greatest broker epoch: states that were written later have seen every live broker in its present life."""
        return self._epochs[-1] if self._epochs else 0

    def note(self, states: Mapping[TopicPartition, LeaderAndIsr], mzxids: Mapping[TopicPartition, int]) -> None:
        """`mzxids`: of those states that were written before `newest`."""
        epochs, newer, of = self._epochs, self._newer, self._of
        for tp, mzxid in mzxids.items():
            since = newer[bisect_right(epochs, mzxid)]
            if not since.isdisjoint(states[tp].isr):
                of[tp] = since

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def since(self, tp: TopicPartition) -> frozenset[int]:
        """The live brokers that registered after the state was written, in the ISR or not."""
        return self._of.get(tp, frozenset())
