"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes.

    request's session id, epoch   meaning                                        answer
    any, -1                       no session (a session of that id is closed)    all partitions, session id 0
    any, 0                        a new session, the old one is closed           all partitions, the new id (0: none to be had)
    id, n > 0                     the n-th request of the session                partitions with news only
    unknown id, n > 0             FETCH_SESSION_ID_NOT_FOUND                     (BAD-30)
    id, another n                 INVALID_FETCH_SESSION_EPOCH

Only partitions that are awake are looked at (`broker.replication.quiet_partitions`).

The cache is bounded. When it is full, a session that was idle for two minutes gives way, and a consumer's session to a
follower's; otherwise the client goes on without a session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from broker.clock import Clock
from broker.replication.quiet_partitions import QuietPartitions
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition, TopicKey
from protocol.types import TopicPartition

NO_SESSION_ID = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
ID_MAX = 2**31 - 1
IDLE_BEFORE_EVICTION_S = 120.0

PartitionKey = tuple[TopicKey, int]


class FetchedPartition:
    """A partition of a request or session, and what was last told about it. `tp` is None while its topic id is unknown."""

    __slots__ = ("high_watermark", "key", "log_start_offset", "tp", "wanted")

    def __init__(self, key: TopicKey, wanted: FetchRequestPartition, tp: TopicPartition | None) -> None:
        self.key = key
        self.wanted = wanted
        self.tp = tp
        self.high_watermark = -1
        self.log_start_offset = wanted.log_start_offset

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

    __slots__ = ("awake", "id", "is_follower", "last_used", "next_epoch", "partitions", "quiet", "uses_topic_ids")

    def __init__(self, session_id: int, quiet: QuietPartitions, uses_topic_ids: bool, now: float) -> None:
        self.id = session_id
        self.quiet = quiet
        self.is_follower = quiet.replica_id >= 0
        self.uses_topic_ids = uses_topic_ids
        self.last_used = now
        self.next_epoch = 1
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.awake: dict[FetchedPartition, None] = {}

    def set(self, key: PartitionKey, partition: FetchedPartition) -> None:
        """It is asked for, and looked at with the next request."""
        self.partitions[key] = partition
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


class FetchSessionCache:
    """All sessions of this broker. `random_id(low, high)` gives a number of that range, both ends included.

    `new_quiet(replica id)` makes the place where a session's partitions rest, `begin_fetch(it, replica epoch)` is told of
    each request before it is looked who is awake.
    """

    def __init__(
        self,
        slots: int,
        clock: Clock,
        topic_name: Callable[[uuid.UUID], str | None],
        random_id: Callable[[int, int], int],
        new_quiet: Callable[[int], QuietPartitions],
        begin_fetch: Callable[[QuietPartitions, int], None],
    ) -> None:
        self._new_quiet = new_quiet
        self._begin_fetch = begin_fetch
        self._slots = slots
        self._clock = clock
        self._topic_name = topic_name
        self._random_id = random_id
        self._sessions: dict[int, FetchSession] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, *, uses_topic_ids: bool) -> FetchContext:
        """Raises KafkaError for a session that is not as the client thinks."""
        if request.session_epoch > INITIAL_EPOCH:
            return self._continue(request, uses_topic_ids)
        if request.session_id != NO_SESSION_ID:
            self._close(request.session_id)
        partitions = list(self._partitions(request))
        if request.session_epoch == FINAL_EPOCH or not partitions:
            return FetchContext(None, partitions, False)
        session = self._new_session(request.replica_id, uses_topic_ids)
        if session is not None:
            self._begin_fetch(session.quiet, request.replica_epoch)
            for partition in partitions:
                session.remove((partition.key, partition.wanted.partition))
                session.set((partition.key, partition.wanted.partition), partition)
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
        self._begin_fetch(session.quiet, request.replica_epoch)
        for woken in session.quiet.take_woken():
            assert isinstance(woken, FetchedPartition)
            session.awake[woken] = None
        if request.topics:
            self._merge(session, request)
        for key, indexes in request.forgotten:
            for index in indexes:
                session.remove((key, index))
        del self._sessions[session.id]
        if not session.partitions:
            session.quiet.close()
            return FetchContext(None, (), False)
        session.last_used = self._clock.monotonic()
        self._sessions[session.id] = session
        partitions = list(session.awake)
        for partition in partitions:
            if partition.tp is None:
                partition.tp = self._resolve(partition.key, partition.wanted.partition)
        return FetchContext(session, partitions, True)

    def _merge(self, session: FetchSession, request: FetchRequest) -> None:
        for partition in self._partitions(request):
            key = (partition.key, partition.wanted.partition)
            known = session.partitions.get(key)
            if known is None:
                session.set(key, partition)
            else:
                session.wake(known)
                known.wanted = partition.wanted
                known.tp = partition.tp

    def _partitions(self, request: FetchRequest) -> Iterable[FetchedPartition]:
        for key, partitions in request.topics:
            for wanted in partitions:
                yield FetchedPartition(key, wanted, self._resolve(key, wanted.partition))

    def _resolve(self, key: TopicKey, partition: int) -> TopicPartition | None:
        name = key if isinstance(key, str) else self._topic_name(key)
        return None if name is None else TopicPartition(name, partition)

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.quiet.close()

    def _new_session(self, replica_id: int, uses_topic_ids: bool) -> FetchSession | None:
        now = self._clock.monotonic()
        if len(self._sessions) >= self._slots and not self._make_room(replica_id >= 0, now):
            return None
        session_id = self._random_id(1, ID_MAX)
        while session_id in self._sessions:
            session_id = self._random_id(1, ID_MAX)
        session = FetchSession(session_id, self._new_quiet(replica_id), uses_topic_ids, now)
        self._sessions[session_id] = session
        return session

    def _make_room(self, for_follower: bool, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used <= IDLE_BEFORE_EVICTION_S:
            oldest = next((s for s in self._sessions.values() if not s.is_follower), None) if for_follower else None
        if oldest is None:
            return False
        self._close(oldest.id)
        return True
