"""Leaders that may have died a moment ago, and the Metadata answers that wait until this is known (CTL-16).

A client whose leader died asks another broker in the same millisecond, before there is a new leader. librdkafka asks once. If the
answer names the old leader or none, it does not ask again for a second. The broker therefore delays such an answer, for at most
HOLD_S, until it knows the next leader. Later requests of the same connection wait too, but no others.

These are short-lived hints, only for clients. Only the controller and ZooKeeper decide which broker leads and which is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.cluster.metadata_cache import MetadataCache
from protocol.types import BrokerInfo

HOLD_S = 0.5
GRACE_S = 0.003
"""A killed process's connections end one after the other, in random order: a client may know of the death, and ask, up to a
millisecond before the brokers know. An answer that names topics waits this long, in case a connection is about to end."""
LINGER_S = 3.0
"""How long Metadata continues to list a broker that has departed. librdkafka (2.16) drops unlisted brokers before it moves their
partitions. If one answer contains both changes, the end of the dead broker's thread takes the partitions from their new leader, and
they pause until a timer of one second fires."""

WAITERS_MAX = 1_000
"""Limit of waiting answers; further requests are answered at once."""
TOPICS_MAX = 100_000
"""Limit of topics in all waiting answers, because one turn of the loop checks all of them."""
RELEASED_AT_ONCE = 50
"""Answers released in one turn of the loop."""


class _Waiter:
    """A waiting answer that contains `topics`."""

    def __init__(self, topics: tuple[str, ...], then: Callable[[], None]) -> None:
        self.topics = topics
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class SuspectedLeaders:
    """No broker is in doubt until PeerWatch reports it. Without fast failure detection no broker ever is."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.suspected: set[int] = set()
        """Brokers whose connection to this one has ended, without further news yet."""
        self.are_watched = False
        """There are other brokers, and PeerWatch watches them."""
        self._metadata = metadata
        self._departed: dict[int, tuple[BrokerInfo, asyncio.TimerHandle]] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._topics_waiting = 0
        self._suspected_key: tuple[int, frozenset[int]] | None = None
        self._suspected_topics: frozenset[str] = frozenset()

    def suspect(self, broker_id: int) -> None:
        self.suspected.add(broker_id)

    def trust(self, broker_id: int) -> None:
        """The broker is alive, or nothing contradicts it any more."""
        if broker_id in self.suspected:
            self.suspected.discard(broker_id)
            self.look_again()

    def depart(self, broker: BrokerInfo) -> None:
        """The controller no longer lists the broker as live. The broker's partitions are in doubt until they have other leaders."""
        self.come(broker.id)
        timer = asyncio.get_running_loop().call_later(LINGER_S, self.come, broker.id)
        self._departed[broker.id] = (broker, timer)

    def come(self, broker_id: int) -> None:
        """The broker is registered (again), or departed long enough ago."""
        departed = self._departed.pop(broker_id, None)
        if departed is not None:
            departed[1].cancel()

    def departed(self) -> list[BrokerInfo]:
        """The brokers that departed within the last LINGER_S."""
        return [broker for broker, _ in self._departed.values()]

    def when_settled(self, topics: Iterable[str], then: Callable[[], None]) -> None:
        """Calls `then` when no leader of these topics is in doubt: usually after GRACE_S, at most HOLD_S later."""
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
        """Called after a change of the metadata or of the doubts. Releases the answers whose leaders are settled."""
        released = 0
        for waiter in list(self._waiters):
            if not self._are_suspected(waiter.topics):
                if released == RELEASED_AT_ONCE:
                    asyncio.get_running_loop().call_soon(self.look_again)
                    return
                released += 1
                self._release(waiter)

    def close(self) -> None:
        """Ends all doubts: waiting answers are sent now."""
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
            # Computed once for all waiters: each may have asked for ten thousand partitions.
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
