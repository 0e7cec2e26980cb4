"""Finds, for a new controller, the brokers that registered again after a partition's state was written. Pure.

A broker epoch is the czxid of the broker's registration, and a state's znode has the zxid of its last write (mzxid). Both come from
ZooKeeper's one counter, so the smaller one came first. A member of the ISR with a newer registration has died or lost its session
since the write, and no controller reacted: a reaction writes the state, and a broker enters the ISR only after it registered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping

from protocol.types import BrokerInfo, LeaderAndIsr, TopicPartition


class Bounces:
    """Call `note` with the states as they are loaded; afterwards this contains the partitions with a bounced broker."""

    def __init__(self, brokers: Collection[BrokerInfo]) -> None:
        by_epoch = sorted(brokers, key=lambda broker: broker.epoch)
        self._epochs = [broker.epoch for broker in by_epoch]
        # One set for each number of older brokers: no set is created for each of a hundred thousand states.
        self._newer = [frozenset(broker.id for broker in by_epoch[at:]) for at in range(len(by_epoch) + 1)]
        self._of: dict[TopicPartition, frozenset[int]] = {}

    @property
    def newest(self) -> int:
        """The highest broker epoch. A state with a higher mzxid was written after every live broker registered."""
        return self._epochs[-1] if self._epochs else 0

    def note(self, states: Mapping[TopicPartition, LeaderAndIsr], mzxids: Mapping[TopicPartition, int]) -> None:
        """`mzxids` has only the states that were written before `newest`."""
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
