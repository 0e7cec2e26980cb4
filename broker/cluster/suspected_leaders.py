"""Leaders that may have died a moment ago, and the Metadata answers that wait until that is settled (CTL-16).

A client whose leader died asks another broker in the same millisecond, before there is a new leader. librdkafka asks once:
told the old leader, or that there is none, it looks again when its timer of one second fires. So such an answer waits, at
most HOLD_S, until it can name the next leader. Only the answers to later requests of the same connection wait with it.

These are hints for a moment, to clients only. Who leads and who is dead is decided by the controller and ZooKeeper alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.cluster.metadata_cache import MetadataCache
from protocol.types import BrokerInfo

HOLD_S = 0.5
GRACE_S = 0.003
"""A killed process's connections end one after the other, and which first is by chance: a client may know of the death, and ask,
up to a millisecond before the brokers know. An answer that names topics waits so long for what they are about to hear."""
LINGER_S = 3.0
"""How long Metadata goes on listing a broker that is gone, which leads nothing any more. librdkafka (2.16) drops brokers that
are not listed before it moves their partitions: the end of the dead one's thread then takes them from their new leader, when
one and the same answer has told of both, and they stand still until the timer of a second."""

WAITERS_MAX = 1_000
"""Answers that wait at a time; who asks then is answered with what is known."""
TOPICS_MAX = 100_000
"""Topics in all answers that wait: whether they are settled is looked at for all of them, in one turn of the loop."""
RELEASED_AT_ONCE = 50
"""Answers that are made in one turn of the loop."""


class _Waiter:
    """An answer that waits; `topics` are those that it names."""

    def __init__(self, topics: tuple[str, ...], then: Callable[[], None]) -> None:
        self.topics = topics
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class SuspectedLeaders:
    """Nobody is in doubt until PeerWatch says so; without fast failure detection nobody ever is."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.suspected: set[int] = set()
        """Their connection to here has ended, and nothing else is known yet."""
        self.are_watched = False
        """There are other brokers, and somebody would say so if one of them were in doubt."""
        self._metadata = metadata
        self._departed: dict[int, tuple[BrokerInfo, asyncio.TimerHandle]] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._topics_waiting = 0
        self._suspected_key: tuple[int, frozenset[int]] | None = None
        self._suspected_topics: frozenset[str] = frozenset()

    def suspect(self, broker_id: int) -> None:
        self.suspected.add(broker_id)

    def trust(self, broker_id: int) -> None:
        """It is known to live, or nothing is known against it any more."""
        if broker_id in self.suspected:
            self.suspected.discard(broker_id)
            self.look_again()

    def depart(self, broker: BrokerInfo) -> None:
        """The controller says that it is gone. Until it also names other leaders, what it led is still in doubt."""
        self.come(broker.id)
        timer = asyncio.get_running_loop().call_later(LINGER_S, self.come, broker.id)
        self._departed[broker.id] = (broker, timer)

    def come(self, broker_id: int) -> None:
        """It is there (again), or has been gone for long enough."""
        departed = self._departed.pop(broker_id, None)
        if departed is not None:
            departed[1].cancel()

    def departed(self) -> list[BrokerInfo]:
        """Who was live until LINGER_S ago."""
        return [broker for broker, _ in self._departed.values()]

    def when_settled(self, topics: Iterable[str], then: Callable[[], None]) -> None:
        """Calls `then` when no leader of these topics is in doubt, which is mostly after GRACE_S, or after HOLD_S more."""
        names = tuple(topics)
        if self.are_watched and names and not self._are_suspected(names):
            asyncio.get_running_loop().call_later(GRACE_S, self._when_settled_now, names, then)
        else:
            self._when_settled_now(names, then)

    def _when_settled_now(self, names: tuple[str, ...], then: Callable[[], None]) -> None:
        is_full = len(self._waiters) >= WAITERS_MAX or self._topics_waiting + len(names) > TOPICS_MAX
        if is_full or not self._are_suspected(names):
            then()
            return
        waiter = _Waiter(names, then)
        waiter.timer = asyncio.get_running_loop().call_later(HOLD_S, self._release, waiter)
        self._waiters[waiter] = None
        self._topics_waiting += len(names)

    def look_again(self) -> None:
        """After a change of the metadata or of who is in doubt: lets those go whose leaders are settled."""
        released = 0
        for waiter in list(self._waiters):
            if not self._are_suspected(waiter.topics):
                if released == RELEASED_AT_ONCE:
                    asyncio.get_running_loop().call_soon(self.look_again)
                    return
                released += 1
                self._release(waiter)

    def close(self) -> None:
        """No doubts any more: who waits is answered now."""
        self.suspected.clear()
        for broker_id in list(self._departed):
            self.come(broker_id)
        self.look_again()

    def _are_suspected(self, topics: tuple[str, ...]) -> bool:
        doubtful = frozenset(self.suspected | self._departed.keys())
        if not doubtful:
            return False
        key = (self._metadata.version, doubtful)
        if key != self._suspected_key:
            # Once for all who ask and wait: each may have asked for ten thousand partitions.
            of = self._metadata.partitions_of
            self._suspected_key = key
            self._suspected_topics = frozenset(
                name for name in self._metadata.topics() if any(state.leader in doubtful for state in of(name).values())
            )
        return not self._suspected_topics.isdisjoint(topics)

    def _release(self, waiter: _Waiter) -> None:
        del self._waiters[waiter]
        self._topics_waiting -= len(waiter.topics)
        if waiter.timer is not None:
            waiter.timer.cancel()
        waiter.then()
