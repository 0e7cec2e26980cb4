"""Leaders that may have died a moment ago, and the Metadata answers that wait until the broker knows more (CTL-16).

A client whose leader died asks another broker in the same millisecond, before there is a new leader. librdkafka asks once. If the
answer names the old leader or none, the client does not ask again for a second. The broker therefore delays an answer about a
partition whose last known leader is suspected or departed, for at most HOLD_S. A partition that already has no leader is answered
without waiting. Later requests of the same connection wait too, but no others.

These are short-lived hints, only for clients. Only the controller and ZooKeeper decide which broker leads and which is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.cluster.metadata_cache import MetadataCache
from protocol.types import BrokerInfo

HOLD_S = 0.5
GRACE_S = 0.003
"""A killed process's connections end one after the other, in random order: a client may notice the death, and ask, up to a
millisecond before the brokers notice it. An answer that names topics waits this long, in case a connection is about to end."""
LINGER_S = 3.0
"""How long Metadata continues to list a broker that has departed. librdkafka (2.16) first ends the thread of a broker that
is no longer listed. If the same answer moves partitions to a new leader, the ending thread detaches them again, and they stop until
librdkafka's one-second timer fires."""

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
    """No broker is in doubt until PeerWatch reports it. Without fast failure detection no broker is ever in doubt."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.unreachable: set[int] = set()
        """Brokers to which this broker's watching connection has just ended; it is not yet known whether they died."""
        self.peers_are_watched = False
        """Whether there are other brokers, and PeerWatch watches them."""
        self._metadata = metadata
        self._departed: dict[int, tuple[BrokerInfo, asyncio.TimerHandle]] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._topics_waiting = 0
        self._doubtful_key: tuple[int, frozenset[int]] | None = None
        self._doubtful_topics: frozenset[str] = frozenset()

    def suspect(self, broker_id: int) -> None:
        self.unreachable.add(broker_id)

    def trust(self, broker_id: int) -> None:
        """The watch no longer suspects the broker.

        Either a new connection lasts, or connections keep ending early, or the result is unclear, or AGAIN_S have passed since the
        watch found the broker dead.
        """
        if broker_id in self.unreachable:
            self.unreachable.discard(broker_id)
            self.look_again()

    def depart(self, broker: BrokerInfo) -> None:
        """The controller no longer lists the broker as live.

        Its partitions are in doubt until they have another leader or none, for at most LINGER_S.
        """
        self.forget_departure(broker.id)
        timer = asyncio.get_running_loop().call_later(LINGER_S, self.forget_departure, broker.id)
        self._departed[broker.id] = (broker, timer)

    def forget_departure(self, broker_id: int) -> None:
        """The broker is live again, or departed LINGER_S ago."""
        departed = self._departed.pop(broker_id, None)
        if departed is not None:
            departed[1].cancel()

    def departed(self) -> list[BrokerInfo]:
        """The brokers that departed within the last LINGER_S."""
        return [broker for broker, _ in self._departed.values()]

    def when_settled(self, topics: Iterable[str], then: Callable[[], None]) -> None:
        """Calls `then` once no leader of these topics is in doubt, or HOLD_S after the first check.

        The first check is delayed by GRACE_S if brokers are watched and no doubt about these topics is known yet. If too many
        answers wait already, the first check calls `then`.
        """
        names = tuple(topics)
        if self.peers_are_watched and names and not self._is_a_leader_in_doubt(names):
            asyncio.get_running_loop().call_later(GRACE_S, self._when_settled_now, names, then)
        else:
            self._when_settled_now(names, then)

    def _when_settled_now(self, names: tuple[str, ...], then: Callable[[], None]) -> None:
        is_full = len(self._waiters) >= WAITERS_MAX or self._topics_waiting + len(names) > TOPICS_MAX
        if is_full or not self._is_a_leader_in_doubt(names):
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
            if not self._is_a_leader_in_doubt(waiter.topics):
                if released == RELEASED_AT_ONCE:
                    asyncio.get_running_loop().call_soon(self.look_again)
                    return
                released += 1
                self._release(waiter)

    def close(self) -> None:
        """Ends all doubts: waiting answers are sent now."""
        self.unreachable.clear()
        for broker_id in list(self._departed):
            self.forget_departure(broker_id)
        self.look_again()

    def _is_a_leader_in_doubt(self, topics: tuple[str, ...]) -> bool:
        doubtful = frozenset(self.unreachable | self._departed.keys())
        if not doubtful:
            return False
        key = (self._metadata.version, doubtful)
        if key != self._doubtful_key:
            # Computed once for all waiters: each may have asked for ten thousand partitions.
            of = self._metadata.partitions_of
            self._doubtful_key = key
            self._doubtful_topics = frozenset(
                name for name in self._metadata.topics() if any(state.leader in doubtful for state in of(name).values())
            )
        return not self._doubtful_topics.isdisjoint(topics)

    def _release(self, waiter: _Waiter) -> None:
        del self._waiters[waiter]
        self._topics_waiting -= len(waiter.topics)
        if waiter.timer is not None:
            waiter.timer.cancel()
        waiter.then()
