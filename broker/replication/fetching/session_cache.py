"""Incremental fetch sessions (KIP-227): a client lists its partitions once, then only the changes.

    request's session id, epoch   meaning                                        answer
    any, -1                       no session (a session of that id is closed)    all partitions, session id 0
    any, 0                        a new session, the old one is closed           all partitions, the new id (0: no session)
    id, n > 0                     the n-th request of the session                partitions with news only
    unknown id, n > 0             FETCH_SESSION_ID_NOT_FOUND                     (BAD-30)
    id, another n                 INVALID_FETCH_SESSION_EPOCH

The cache is bounded (BAD-30): `max.incremental.fetch.session.cache.slots` sessions, and, in all sessions of consumers together,
`max.incremental.fetch.session.cache.partitions` partitions. A session ends with its connection. A full cache evicts a session
that was idle for two minutes. If there are too many partitions, the largest session is evicted for a smaller session. If none can be
evicted, the client continues without a session, which every Kafka client can. A connection has at most SESSIONS_PER_CONNECTION.

A follower's session may evict a consumer's. A client counts as a follower only if it sends the broker epoch of a live broker, which
no other client knows. Each follower has at most SESSIONS_PER_FOLLOWER.

A consumer's session has at most UNKNOWN_PARTITIONS_MAX partitions that do not exist (yet). A request that adds more closes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.process.clock import Clock
from broker.replication.fetching.fetch_session import (
    NO_SESSION_ID,
    FetchContext,
    FetchedPartition,
    FetchSession,
    Owner,
    RestingIndex,
)
from broker.replication.hosted_partitions import HostedPartitions
from broker.settings.config import BrokerConfig
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchRequest
from protocol.topic_names import TOPIC_NAME_MAX
from protocol.types import TopicPartition

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
ID_MAX = 2**31 - 1
IDLE_BEFORE_EVICTION_S = 120.0

SESSIONS_PER_CONNECTION = 8
"""A client has one session with each broker, over one connection; a proxy may have several."""
SESSIONS_PER_FOLLOWER = 64
"""A follower has one session for each of its fetchers (`num.replica.fetchers`)."""
FOLLOWER_PARTITIONS_MAX = 100_000
"""Limit of partitions in one session of a follower."""
UNKNOWN_PARTITIONS_MAX = 1_000
"""Limit for one session of a consumer. The client may know a new partition before this broker, or name a deleted topic."""


class CacheLimits(NamedTuple):
    """Limits of sessions, and of partitions in all sessions of consumers together."""

    slots: int
    partitions: int = 200_000

    @classmethod
    def of(cls, config: BrokerConfig) -> CacheLimits:
        return cls(
            config.max_incremental_fetch_session_cache_slots,
            config.max_incremental_fetch_session_cache_partitions,
        )


class FetchSessionCache:
    """All sessions of this broker. `resting` has the partitions that rest in any of them."""

    def __init__(
        self,
        limits: CacheLimits,
        clock: Clock,
        hosted: HostedPartitions,
        metadata: MetadataCache,
        own_id: int,
        random: Random,
    ) -> None:
        """`random` gives the session ids."""
        self.resting = RestingIndex(hosted)
        self._limits = limits
        self._clock = clock
        self._hosted = hosted
        self._metadata = metadata
        self._own_id = own_id
        self._random = random
        self._sessions: dict[int, FetchSession] = {}
        """In order of their last use; the least recently used session is first."""
        self._partition_count = 0
        self._of_followers: Counter[int] = Counter()
        self._of_connection: dict[Owner, dict[int, None]] = {}
        """Its open sessions; a connection has an entry from its first session until it ends."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions are in the sessions of consumers."""
        return self._partition_count

    def look_at_all(self) -> None:
        """The next request of each session looks at all of its partitions."""
        for session in self._sessions.values():
            session.must_look_at_all = True

    def open(
        self,
        request: FetchRequest,
        *,
        uses_topic_ids: bool,
        connection: Owner | None = None,
        looks_at_all: bool = False,
    ) -> FetchContext:
        """The partitions that the request reads. Raises KafkaError if its session id or epoch is wrong, or the session too large.

        A new session ends with its `connection`. `looks_at_all`: all resting partitions are woken first.
        """
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._continue(request, uses_topic_ids, looks_at_all)
        if request.session_id != NO_SESSION_ID:
            self._close(request.session_id)
        partitions = list(self._partitions(request))
        if request.session_epoch == FINAL_EPOCH or not partitions:
            return _without_session(partitions)
        is_follower = self._is_live_follower(request.replica_id, request.replica_epoch)
        if not self._may_keep(partitions, 0, 0, is_follower):
            return _without_session(partitions)
        now = self._clock.monotonic()
        session = self._new_session(request.replica_id, is_follower, uses_topic_ids, len(partitions), connection, now)
        if session is None:
            return _without_session(partitions)
        session.begin_request(request.replica_epoch, now, looks_at_all=looks_at_all)
        for partition in partitions:
            session.set((partition.key, partition.wanted.partition), partition)
        self._count(session, len(session.partitions))
        return FetchContext(session, session.awake)

    def throttled(self, context: FetchContext) -> int:
        """The session id of an empty answer, because the client is over its quota. A session that the request opens is closed again.

        The client's next request lists its partitions once more. A session that it has keeps its partitions, and what is news in them.
        """
        if context.is_incremental:
            return context.session_id
        self._close(context.session_id)
        return NO_SESSION_ID

    def _continue(self, request: FetchRequest, uses_topic_ids: bool, looks_at_all: bool) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:  # a session belongs to one replica id
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        if request.topics or request.forgotten:
            self._change(session, request)  # before the heartbeat: who forgets a partition does not follow it any more
        session.begin_request(request.replica_epoch, self._clock.monotonic(), looks_at_all=looks_at_all)
        if not session.partitions:
            self._close(session.id)
            return _without_session(())
        del self._sessions[session.id]
        self._sessions[session.id] = session
        topic_id = self._hosted.topic_id
        for partition in session.awake:
            tp = partition.tp
            if tp is None or (uses_topic_ids and topic_id(tp) is not partition.topic_id):
                self._resolve(partition)
        return FetchContext(session, session.awake, is_incremental=True)

    def _change(self, session: FetchSession, request: FetchRequest) -> None:
        """Raises KafkaError if the session would become too large: it is closed then, and the client opens another."""
        before = len(session.partitions)
        new: list[FetchedPartition] = []
        for partition in self._partitions(request):
            key = (partition.key, partition.wanted.partition)
            known = session.partitions.get(key)
            if known is None:
                new.append(partition)
            else:
                session.change(known, partition)
        if new and not self._may_keep(new, before, session.unknown, session.is_follower):
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        for partition in new:
            session.set((partition.key, partition.wanted.partition), partition)
        for topic, indexes in request.forgotten:
            for index in indexes:
                session.remove((topic, index))
        self._count(session, len(session.partitions) - before)
        if new and self._is_over() and not self._make_room_for(len(session.partitions), session):
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _partitions(self, request: FetchRequest) -> Iterable[FetchedPartition]:
        for key, partitions in request.topics:
            for wanted in partitions:
                partition = FetchedPartition(key, wanted, None)
                self._resolve(partition)
                yield partition

    def _resolve(self, partition: FetchedPartition) -> None:
        """Looks up the name of a topic id. A topic that was deleted and created again has another id, and its log is not the client's."""
        key, number = partition.key, partition.wanted.partition
        if isinstance(key, str):
            partition.tp = TopicPartition(key, number)
            return
        partition.tp = self._hosted.resolve(key, number)
        partition.topic_id = None if partition.tp is None else self._hosted.topic_id(partition.tp)

    def _may_keep(self, new: Iterable[FetchedPartition], count: int, unknown: int, is_follower: bool) -> bool:
        """Whether a session of `count` partitions, `unknown` of which do not exist, may add `new`. Sets their `was_unknown`."""
        exists = self._hosted.exists
        for partition in new:
            count += 1
            if partition.tp is None or not exists(partition.tp):
                if isinstance(partition.key, str) and len(partition.key) > TOPIC_NAME_MAX:
                    return False
                partition.was_unknown = True
                unknown += 1
                if unknown > UNKNOWN_PARTITIONS_MAX and not is_follower:
                    return False
        return count <= (FOLLOWER_PARTITIONS_MAX if is_follower else self._limits.partitions)

    def _is_live_follower(self, replica: int, epoch: int) -> bool:
        """True for the id of another live broker with its broker epoch, which no other client knows."""
        live = self._metadata.broker(replica) if replica >= 0 and replica != self._own_id else None
        return live is not None and epoch == live.epoch

    # -- the bound of the cache ---------------------------------------------------------------------------------------

    def _count(self, session: FetchSession, change: int) -> None:
        if not session.is_follower:
            self._partition_count += change

    def _is_over(self) -> bool:
        return self._partition_count > self._limits.partitions

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._count(session, -len(session.partitions))
        if session.is_follower:
            replica_id = session.replica_id
            self._of_followers[replica_id] -= 1
            if not self._of_followers[replica_id]:
                del self._of_followers[replica_id]
        if session.owner is not None:
            self._of_connection.get(session.owner, {}).pop(session_id, None)
        session.close()

    def _new_session(
        self,
        replica_id: int,
        is_follower: bool,
        uses_topic_ids: bool,
        partitions: int,
        connection: Owner | None,
        now: float,
    ) -> FetchSession | None:
        """None: the cache is full."""
        own = self._own_sessions(connection) if connection is not None else {}
        if len(own) >= SESSIONS_PER_CONNECTION:
            self._close(next(iter(own)))
        if is_follower and self._of_followers[replica_id] >= SESSIONS_PER_FOLLOWER:
            sessions = self._sessions.values()
            self._close(next(s.id for s in sessions if s.is_follower and s.replica_id == replica_id))
        if len(self._sessions) >= self._limits.slots and not self._free_slot(is_follower, now):
            return None
        if not is_follower and self._partition_count + partitions > self._limits.partitions:
            self._partition_count += partitions
            has_room = self._make_room_for(partitions, None)
            self._partition_count -= partitions
            if not has_room:
                return None
        session_id = self._random.randint(1, ID_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, ID_MAX)
        session = FetchSession(
            session_id, replica_id, self.resting, is_follower=is_follower, uses_topic_ids=uses_topic_ids
        )
        self._sessions[session_id] = session
        if is_follower:
            self._of_followers[replica_id] += 1
        if connection is not None:
            own[session_id] = None
            session.owner = connection
        return session

    def _own_sessions(self, connection: Owner) -> dict[int, None]:
        own = self._of_connection.get(connection)
        if own is None:
            own = self._of_connection[connection] = {}
            connection.when_ended(lambda: self._connection_ended(connection))
        return own

    def _connection_ended(self, connection: Owner) -> None:
        for session_id in self._of_connection.pop(connection):
            self._close(session_id)

    def _free_slot(self, for_follower: bool, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used <= IDLE_BEFORE_EVICTION_S:
            oldest = next((s for s in self._sessions.values() if not s.is_follower), None) if for_follower else None
        if oldest is None:
            return False
        self._close(oldest.id)
        return True

    def _make_room_for(self, partitions: int, keep: FetchSession | None) -> bool:
        """Closes sessions of consumers with more than `partitions` partitions, the largest first. False: the limit is still exceeded."""
        while self._is_over():
            others = (s for s in self._sessions.values() if not s.is_follower and s is not keep)
            largest = max(others, key=lambda s: len(s.partitions), default=None)
            if largest is None or len(largest.partitions) <= partitions:
                return False
            self._close(largest.id)
        return True


def _without_session(partitions: Sequence[FetchedPartition]) -> FetchContext:
    """A partition that is listed twice is answered once, for its last entry."""
    if len(partitions) > 1:
        partitions = list({(partition.key, partition.wanted.partition): partition for partition in partitions}.values())
    return FetchContext(None, partitions)
