"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes.

    request's session id, epoch   meaning                                        answer
    any, -1                       no session (a session of that id is closed)    all partitions, session id 0
    any, 0                        a new session, the old one is closed           all partitions, the new id (0: none to be had)
    id, n > 0                     the n-th request of the session                partitions with news only
    unknown id, n > 0             FETCH_SESSION_ID_NOT_FOUND                     (BAD-30)
    id, another n                 INVALID_FETCH_SESSION_EPOCH

Only partitions that are awake are looked at (`broker.replication.fetching.quiet_partitions`).

The cache is bounded (BAD-30): `max.incremental.fetch.session.cache.slots` sessions, and among those of consumers
`max.incremental.fetch.session.cache.partitions` partitions. When it is full, sessions of connections that have ended give way,
and those that were idle for two minutes; when there are too many partitions, the largest session, for a smaller one. Otherwise
the client goes on without a session, which any client of Kafka can. A connection has SESSIONS_PER_CONNECTION at the most.

A follower's session takes the place of a consumer's. A client may claim to be a follower: only who names the broker epoch of a
live broker is one, and of each broker the cache has SESSIONS_PER_FOLLOWER.

Of partitions that do not exist (yet) a session keeps UNKNOWN_PARTITIONS_MAX. One that names more is ended.
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary, ref

from broker.process.clock import Clock
from broker.replication.fetching.quiet_partitions import QuietPartitions
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition, TopicKey
from protocol.topic_names import TOPIC_NAME_MAX
from protocol.types import TopicPartition

NO_SESSION_ID = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
ID_MAX = 2**31 - 1
IDLE_BEFORE_EVICTION_S = 120.0

SESSIONS_PER_CONNECTION = 8
"""A client has one with each broker, over one connection; a proxy may have some."""
SESSIONS_PER_FOLLOWER = 64
"""One for each of its fetchers (`num.replica.fetchers`)."""
FOLLOWER_PARTITIONS_MAX = 100_000
"""In one session of a follower."""
UNKNOWN_PARTITIONS_MAX = 1_000
"""In one session of a consumer: those that a broker hears of a moment after the client, and those of deleted topics."""
PartitionKey = tuple[TopicKey, int]


class FetchedPartition:
    """A partition of a request or session, and what was last told about it. `tp` is None while its topic id is unknown.

    `was_unknown`: it did not exist when the session took it.
    """

    __slots__ = ("high_watermark", "key", "log_start_offset", "tp", "wanted", "was_unknown")

    def __init__(self, key: TopicKey, wanted: FetchRequestPartition, tp: TopicPartition | None) -> None:
        self.key = key
        self.wanted = wanted
        self.tp = tp
        self.high_watermark = -1
        self.log_start_offset = wanted.log_start_offset
        self.was_unknown = False

    def take_news(self, data: FetchPartitionData) -> bool:
        """Whether an incremental answer must have it; then it counts as told."""
        news = bool(data.records) or data.diverging_epoch is not None or data.preferred_read_replica != -1
        if data.high_watermark != self.high_watermark:
            self.high_watermark = data.high_watermark
            news = True
        if data.log_start_offset != self.log_start_offset:
            self.log_start_offset = data.log_start_offset
            news = True
        if data.error:
            # Told again until it is over, and the next good answer is news in any case.
            self.high_watermark = -1
            news = True
        return news


class FetchSession:
    """`next_epoch` is what the client's next request must have. Of `partitions` those not `awake` are `quiet`."""

    __slots__ = (
        "awake",
        "id",
        "is_follower",
        "last_used",
        "next_epoch",
        "owner",
        "partitions",
        "quiet",
        "unknown",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, quiet: QuietPartitions, is_follower: bool, uses_topic_ids: bool, now: float
    ) -> None:
        self.id = session_id
        self.quiet = quiet
        self.is_follower = is_follower
        self.owner: ref[object] | None = None
        self.unknown = 0
        """How many of its partitions did not exist when it took them."""
        self.uses_topic_ids = uses_topic_ids
        self.last_used = now
        self.next_epoch = 1
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.awake: dict[FetchedPartition, None] = {}

    def set(self, key: PartitionKey, partition: FetchedPartition) -> None:
        """It is asked for, and looked at with the next request."""
        self.partitions[key] = partition
        self.unknown += partition.was_unknown
        self.awake[partition] = None

    def wake(self, partition: FetchedPartition) -> None:
        """What is asked of it changes."""
        if partition.tp is not None:
            self.quiet.wake(partition.tp)
        self.awake[partition] = None

    def woken_with(
        self, results: Iterable[tuple[TopicPartition, FetchPartitionData]]
    ) -> list[tuple[FetchedPartition, FetchPartitionData]]:
        """What was found of those that rested when the request came, and were woken while it was parked."""
        found = []
        for tp, data in results:
            partition = self.quiet.woken.pop(tp, None)
            # None: a later request of the session, which the client did not wait with, has it.
            if isinstance(partition, FetchedPartition):
                self.awake[partition] = None
                found.append((partition, data))
        return found

    def remove(self, key: PartitionKey) -> None:
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.unknown -= partition.was_unknown
            self.wake(partition)
            del self.awake[partition]

    def rest_idle(self, told: Iterable[FetchedPartition]) -> None:
        """Of those that were just told, who had nothing to tell is looked at again when something happens to it."""
        idle = set(self.quiet.idle)
        self.quiet.idle = []
        for partition in told if idle else ():
            tp = partition.tp
            if tp in idle and partition in self.awake and self.quiet.rest(tp, partition):
                del self.awake[partition]


class FetchContext(NamedTuple):
    """What one request fetches, and how to answer it. `session` None: without one."""

    session: FetchSession | None
    partitions: Sequence[FetchedPartition]
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION_ID if self.session is None else self.session.id

    def select(
        self, results: Iterable[tuple[FetchedPartition, FetchPartitionData]]
    ) -> list[tuple[TopicKey, list[FetchPartitionData]]]:
        """The topics of the response; an incremental one has the news only."""
        topics: list[tuple[TopicKey, list[FetchPartitionData]]] = []
        session = self.session
        for partition, data in results:
            if session is not None:
                if not partition.take_news(data) and self.is_incremental:
                    continue
                if data.records and partition in session.awake:
                    # Served last next time, so that one busy partition cannot starve the others of the byte limit.
                    del session.awake[partition]
                    session.awake[partition] = None
            if topics and topics[-1][0] == partition.key:
                topics[-1][1].append(data)
            else:
                topics.append((partition.key, [data]))
        return topics


class CacheLimits(NamedTuple):
    """How many sessions there are at the most, and how many partitions in those of consumers."""

    slots: int
    partitions: int = 200_000


class Surroundings(NamedTuple):
    """What the cache asks of the broker. `random_id(low, high)` gives a number of that range, both ends included.

    `new_quiet(replica id)` makes the place where a session's partitions rest, `begin_fetch(it, replica epoch)` is told of
    each request before it is looked who is awake. `exists`: does any broker have that partition? `is_follower(replica id,
    broker epoch)`: is that a live broker, in its current life?
    """

    topic_name: Callable[[uuid.UUID], str | None]
    random_id: Callable[[int, int], int]
    new_quiet: Callable[[int], QuietPartitions]
    begin_fetch: Callable[[QuietPartitions, int], None]
    exists: Callable[[TopicPartition], bool]
    is_follower: Callable[[int, int], bool]


class FetchSessionCache:
    """All sessions of this broker."""

    def __init__(self, limits: CacheLimits, clock: Clock, world: Surroundings) -> None:
        self._world = world
        self._limits = limits
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}  # the longest unused first
        self._partition_count = 0  # of consumers' sessions
        self._of_followers: Counter[int] = Counter()
        self._of_connection: WeakKeyDictionary[object, dict[int, None]] = WeakKeyDictionary()
        self._orphans: deque[int] = (
            deque()
        )  # sessions whose connections have ended; filled by whoever drops the last of one

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many there are in all sessions of consumers."""
        return self._partition_count

    def open(self, request: FetchRequest, *, uses_topic_ids: bool, connection: object | None = None) -> FetchContext:
        """Raises KafkaError for a session that is not as the client thinks. A new one ends with its `connection`."""
        while self._orphans:
            self._close(self._orphans.popleft())
        if request.session_epoch > INITIAL_EPOCH:
            return self._continue(request, uses_topic_ids)
        if request.session_id != NO_SESSION_ID:
            self._close(request.session_id)
        partitions = list(self._partitions(request))
        if request.session_epoch == FINAL_EPOCH or not partitions:
            return FetchContext(None, partitions, False)
        is_follower = request.replica_id >= 0 and self._world.is_follower(request.replica_id, request.replica_epoch)
        if not self._may_keep(partitions, 0, 0, is_follower):
            return FetchContext(None, partitions, False)
        session = self._new_session(request.replica_id, is_follower, uses_topic_ids, len(partitions), connection)
        if session is not None:
            self._world.begin_fetch(session.quiet, request.replica_epoch)
            for partition in partitions:
                session.remove((partition.key, partition.wanted.partition))
                session.set((partition.key, partition.wanted.partition), partition)
            self._count(session, len(session.partitions))
            partitions = list(session.awake)
        return FetchContext(session, partitions, False)

    def _continue(self, request: FetchRequest, uses_topic_ids: bool) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None or session.quiet.replica_id != request.replica_id:  # nobody goes on with another's
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        self._world.begin_fetch(session.quiet, request.replica_epoch)
        for woken in session.quiet.take_woken():
            assert isinstance(woken, FetchedPartition)
            session.awake[woken] = None
        if request.topics or request.forgotten:
            self._change(session, request)
        if not session.partitions:
            self._close(session.id)
            return FetchContext(None, (), False)
        del self._sessions[session.id]
        session.last_used = self._clock.monotonic()
        self._sessions[session.id] = session
        partitions = list(session.awake)
        for partition in partitions:
            if partition.tp is None:
                partition.tp = self._resolve(partition.key, partition.wanted.partition)
        return FetchContext(session, partitions, True)

    def _change(self, session: FetchSession, request: FetchRequest) -> None:
        """Raises KafkaError when the session would become too large; then it is closed, and the client begins another."""
        before = len(session.partitions)
        new: list[FetchedPartition] = []
        for partition in self._partitions(request):
            key = (partition.key, partition.wanted.partition)
            known = session.partitions.get(key)
            if known is None:
                new.append(partition)
            else:
                session.wake(known)
                known.wanted = partition.wanted
                known.tp = partition.tp
        if new and not self._may_keep(new, before, session.unknown, session.is_follower):
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        for partition in new:
            session.remove((partition.key, partition.wanted.partition))
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
                yield FetchedPartition(key, wanted, self._resolve(key, wanted.partition))

    def _resolve(self, key: TopicKey, partition: int) -> TopicPartition | None:
        name = key if isinstance(key, str) else self._world.topic_name(key)
        return None if name is None else TopicPartition(name, partition)

    def _may_keep(self, new: Iterable[FetchedPartition], count: int, unknown: int, is_follower: bool) -> bool:
        """May a session that has `count` partitions, of them `unknown` ones, take these too? Notes which of them do not exist."""
        exists = self._world.exists
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

    # -- who is in it -------------------------------------------------------------------------------------------------

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
            replica_id = session.quiet.replica_id
            self._of_followers[replica_id] -= 1
            if not self._of_followers[replica_id]:
                del self._of_followers[replica_id]
        owner = session.owner() if session.owner is not None else None
        if owner is not None:
            self._of_connection.get(owner, {}).pop(session_id, None)
        session.quiet.close()

    def _new_session(
        self, replica_id: int, is_follower: bool, uses_topic_ids: bool, partitions: int, connection: object | None
    ) -> FetchSession | None:
        own = self._of_connection.setdefault(connection, {}) if connection is not None else {}
        if len(own) >= SESSIONS_PER_CONNECTION:
            self._close(next(iter(own)))
        if is_follower and self._of_followers[replica_id] >= SESSIONS_PER_FOLLOWER:
            sessions = self._sessions.values()
            self._close(next(s.id for s in sessions if s.is_follower and s.quiet.replica_id == replica_id))
        now = self._clock.monotonic()
        if len(self._sessions) >= self._limits.slots and not self._free_slot(is_follower, now):
            return None
        if not is_follower and self._partition_count + partitions > self._limits.partitions:
            self._partition_count += partitions
            has_room = self._make_room_for(partitions, None)
            self._partition_count -= partitions
            if not has_room:
                return None
        session_id = self._world.random_id(1, ID_MAX)
        while session_id in self._sessions:
            session_id = self._world.random_id(1, ID_MAX)
        session = FetchSession(session_id, self._world.new_quiet(replica_id), is_follower, uses_topic_ids, now)
        self._sessions[session_id] = session
        if is_follower:
            self._of_followers[replica_id] += 1
        if connection is not None:
            own[session_id] = None
            orphans = self._orphans
            session.owner = ref(connection, lambda _: orphans.append(session_id))
        return session

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
        """There are too many partitions in the sessions of consumers: the largest go, for one that is smaller than they are."""
        while self._is_over():
            others = (s for s in self._sessions.values() if not s.is_follower and s is not keep)
            largest = max(others, key=lambda s: len(s.partitions), default=None)
            if largest is None or len(largest.partitions) <= partitions:
                return False
            self._close(largest.id)
        return True
