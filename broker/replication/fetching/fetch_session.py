"""A fetch session (KIP-227): which of its partitions a request reads, and which of them are in the answer.

A client lists the partitions of its session once. Each partition is in one of three states:

    awake      the next request reads it
    resting    its last read found nothing; no request reads it, no parked fetch watches it
    woken      it was resting and may have news; one of the next requests takes it over, which makes it awake

    awake   -> resting   its read found nothing when the request is answered; a follower must also be in the ISR
    resting -> woken     an append, a move of the high watermark, or a change of leadership touched it
    woken   -> awake     the next request takes it over, or the parked fetch that it joined is answered
    any     -> awake     the client changes what it asks for

The cost of a fetch therefore depends on how many partitions are awake, not on how many rest.

While a follower's partition rests, each request of its session shows that the follower still has everything: `FollowerState`
takes its times from the session's `Heartbeat`. A request first wakes the touched partitions and then counts as a heartbeat, so the
heartbeat never covers an append that the follower has not seen.

A failover wakes thousands of a follower's partitions that have no new records, only a new high watermark. Each request takes
over a few of them. Partitions with appended records come first, because producers wait for them.

Some changes do not touch a partition: retention moves its log start, or a throttle changes. The session therefore wakes a few
resting partitions regularly, to look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

from broker.replication.fetching.delayed_fetch import DelayedFetch
from broker.replication.fetching.fetch_reads import FetchEntry, PartitionRead
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.replica_state import FollowerState, Heartbeat
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.wire import TopicKey
from protocol.types import TopicPartition

NO_SESSION_ID: Final = 0

LOOK_EVERY_S: Final = 0.5
LOOKS_UNTIL_ALL: Final = 64
"""Every LOOK_EVERY_S, one in this many partitions is woken: each about twice a minute. With 5,000 this takes under 1 ms."""

WOKEN_AT_ONCE: Final = 50
"""Limit of a follower's woken partitions without new records that join one fetch."""

PartitionKey = tuple[TopicKey, int]
FetchedTopics = list[tuple[TopicKey, list[FetchPartitionData]]]
"""The topics of a response, in their order."""


class FetchedPartition:
    """A partition of a request or session, with its offsets in the last answer. `tp` is None while its topic id is unknown.

    `was_unknown`: the partition did not exist when it was added to the session. `topic_id`: that of the log when `tp` was looked up.
    """

    __slots__ = ("high_watermark", "key", "log_start_offset", "topic_id", "tp", "wanted", "was_unknown")

    def __init__(self, key: TopicKey, wanted: FetchRequestPartition, tp: TopicPartition | None) -> None:
        self.key = key
        self.wanted = wanted
        self.tp = tp
        self.topic_id: str | None = None
        self.high_watermark = -1
        self.log_start_offset = wanted.log_start_offset
        self.was_unknown = False

    def take_news(self, data: FetchPartitionData) -> bool:
        """Whether an incremental answer must contain `data`. Notes its offsets as those of the last answer."""
        is_news = data.has_records or data.diverging_epoch is not None or data.preferred_read_replica != -1
        if data.high_watermark != self.high_watermark:
            self.high_watermark = data.high_watermark
            is_news = True
        if data.log_start_offset != self.log_start_offset:
            self.log_start_offset = data.log_start_offset
            is_news = True
        if data.error:
            # Each answer repeats the error while it lasts. The first answer without it is always news.
            self.high_watermark = -1
            is_news = True
        return is_news


class Owner(Protocol):
    """The connection that opens a session."""

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the connection ends."""
        ...


class FetchSession:
    """`replica_id` < 0: the session of a consumer. `is_follower`: the client has shown that it is a live broker.

    `next_epoch` is the epoch that the client's next request must have; the session ends with its `owner`.
    """

    __slots__ = (
        "_appended",
        "_heartbeat",
        "_index",
        "_looked_at",
        "_parked",
        "_replica_epoch",
        "_resting",
        "_woken",
        "awake",
        "id",
        "is_follower",
        "last_used",
        "must_look_at_all",
        "next_epoch",
        "owner",
        "partitions",
        "replica_id",
        "unknown",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, replica_id: int, index: RestingIndex, *, is_follower: bool, uses_topic_ids: bool
    ) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.is_follower = is_follower
        self.uses_topic_ids = uses_topic_ids
        self.owner: Owner | None = None
        self.unknown = 0
        """How many partitions of the session did not exist when they were added."""
        self.last_used = 0.0
        self.must_look_at_all = False
        """All partitions are due for a look with the next request."""
        self.next_epoch = 1
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.awake: dict[FetchedPartition, None] = {}
        """In the order in which the next request reads them."""
        self._resting: dict[TopicPartition, tuple[FetchedPartition, FollowerState | None]] = {}
        self._woken: dict[TopicPartition, FetchedPartition] = {}
        self._appended: dict[TopicPartition, None] = {}
        """The woken partitions with appended records."""
        self._parked: DelayedFetch | None = None
        self._heartbeat = Heartbeat()
        self._looked_at = 0.0
        self._replica_epoch = -1
        self._index = index
        index.add_session(self)

    @property
    def resting(self) -> int:
        """How many partitions rest."""
        return len(self._resting)

    @property
    def is_behind(self) -> bool:
        """Some woken partitions wait for the next request."""
        return bool(self._woken)

    # -- requests and answers -----------------------------------------------------------------------------------------

    def begin_request(self, replica_epoch: int, now: float, *, looks_at_all: bool) -> None:
        """Starts a request. Wakes partitions that are due for a look, and takes over woken partitions.

        The caller has woken the touched partitions. `looks_at_all`: all partitions are due.
        """
        if looks_at_all or self.must_look_at_all or replica_epoch != self._replica_epoch:
            self.must_look_at_all = False
            self._replica_epoch = replica_epoch
            self.wake_all()
        elif now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._wake_for_a_look(list(islice(self._resting, len(self._resting) // LOOKS_UNTIL_ALL + 1)))
        self._heartbeat.at = self.last_used = now
        if self._woken:
            self._take_over_woken()

    def park(self, fetch: DelayedFetch) -> None:
        """The session's request is parked as `fetch`: partitions that are woken from now on join it."""
        self._parked = fetch

    def take_answer(self, partition: FetchedPartition, read: PartitionRead, *, may_rest: bool) -> bool:
        """Notes a read that is about to be answered. True: an incremental answer must contain it.

        With `may_rest`, a partition with nothing to read rests from now on.
        """
        data = read.data
        is_news = partition.take_news(data)
        if data.has_records:
            if partition in self.awake:
                # The next request reads it last, so that a busy partition does not take all bytes of each answer.
                del self.awake[partition]
                self.awake[partition] = None
        elif read.is_idle:
            if may_rest:
                self._rest(partition)
        elif data.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self.uses_topic_ids:
            partition.tp = None  # The topic was deleted: the next request looks up its id again.
        return is_news

    def take_woken(self, tp: TopicPartition) -> FetchedPartition | None:
        """Makes a woken partition awake. None: it was not woken, or is not in the session any more."""
        partition = self._woken.pop(tp, None)
        if partition is not None:
            self.awake[partition] = None
            if not self._woken:
                self._appended = {}
                self._index.caught_up(self)
        return partition

    # -- the client's set of partitions -------------------------------------------------------------------------------

    def set(self, key: PartitionKey, partition: FetchedPartition) -> None:
        """The client asks for this partition."""
        self.remove(key)
        self.partitions[key] = partition
        self.unknown += partition.was_unknown
        self.awake[partition] = None

    def change(self, partition: FetchedPartition, new: FetchedPartition) -> None:
        """The client changes its fields for a partition of the session.

        If it has not moved forward in the same leader epoch, the last answer may have been void for it: a follower drops the answer to
        a fetch of an earlier leader epoch. So the next answer has the partition, with its high watermark, even without records.
        """
        before, after = partition.wanted, new.wanted
        if after.fetch_offset <= before.fetch_offset or after.current_leader_epoch != before.current_leader_epoch:
            partition.high_watermark = -1
        self._wake_now(partition)
        partition.wanted, partition.tp, partition.topic_id = new.wanted, new.tp, new.topic_id

    def remove(self, key: PartitionKey) -> None:
        """The client does not ask for this partition any more."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.unknown -= partition.was_unknown
            self._wake_now(partition)
            del self.awake[partition]

    def close(self) -> None:
        """Ends the session. Its parked fetch is still answered, but the partitions do not rest after that."""
        self.wake_all()
        self._index.remove_session(self)
        self.awake, self._woken, self._appended = {}, {}, {}
        self._parked = None

    # -- resting and waking -------------------------------------------------------------------------------------------

    def wake(self, tp: TopicPartition, *, is_appended: bool) -> None:
        """Wakes a resting partition that was touched. The caller has removed it from the index."""
        self._end_rest(tp)
        self.join_parked(tp, is_appended=is_appended)

    def join_parked(self, tp: TopicPartition, *, is_appended: bool) -> None:
        """Adds a woken partition to the parked fetch. A follower's partition without new records is not added beyond WOKEN_AT_ONCE."""
        if is_appended:
            self._appended[tp] = None
        if self._parked is not None and (is_appended or self.replica_id < 0 or len(self._woken) <= WOKEN_AT_ONCE):
            self._parked.add(tp, self._woken[tp].wanted)

    def is_woken(self, tp: TopicPartition) -> bool:
        """Whether the partition waits for one of the next requests to take it over."""
        return tp in self._woken

    def woken(self, tp: TopicPartition) -> FetchedPartition | None:
        """The partition, if it waits for one of the next requests to take it over."""
        return self._woken.get(tp)

    def wake_all(self) -> None:
        """Wakes all partitions, so that the next requests read them."""
        self._wake_for_a_look(tuple(self._resting))

    def _rest(self, partition: FetchedPartition) -> None:
        tp = partition.tp
        if tp is None or tp in self._resting or partition not in self.awake:
            return
        follower = None
        if self.replica_id >= 0:
            follower = self._index.in_sync_follower(tp, self.replica_id)
            if follower is None:
                return
            follower.rest(self._heartbeat)
        self._resting[tp] = (partition, follower)
        self._index.add(tp, self)
        del self.awake[partition]

    def _wake_for_a_look(self, partitions: Iterable[TopicPartition]) -> None:
        """Wakes partitions that were not touched: they do not join a parked fetch."""
        for tp in partitions:
            self._index.discard(tp, self)
            self._end_rest(tp)

    def _wake_now(self, partition: FetchedPartition) -> None:
        """Makes the partition awake, so that the current request reads it."""
        tp = partition.tp
        if tp is not None:
            if tp in self._resting:
                self._wake_for_a_look((tp,))
            self.take_woken(tp)
        self.awake[partition] = None

    def _end_rest(self, tp: TopicPartition) -> None:
        partition, follower = self._resting.pop(tp)
        if follower is not None:
            follower.wake(self._heartbeat)
        self._woken[tp] = partition
        if self.replica_id >= 0:
            self._index.fell_behind(self)

    def _take_over_woken(self) -> None:
        """Takes over all woken partitions of a consumer; of a follower, those that were appended to and WOKEN_AT_ONCE others."""
        appended, self._appended = self._appended, {}
        for tp in appended:
            self.take_woken(tp)
        limit = WOKEN_AT_ONCE if self.replica_id >= 0 else len(self._woken)
        for tp in list(islice(self._woken, limit)):
            self.take_woken(tp)


class RestingIndex:
    """The sessions in which each partition rests."""

    def __init__(self, hosted: HostedPartitions) -> None:
        self._hosted = hosted
        self._resting: dict[TopicPartition, dict[FetchSession, None]] = {}
        self._of_followers: dict[int, dict[FetchSession, None]] = {}
        self._behind: dict[FetchSession, None] = {}
        """Followers' sessions with woken partitions."""

    def __len__(self) -> int:
        """Partitions that rest in at least one session."""
        return len(self._resting)

    @property
    def is_idle(self) -> bool:
        """Whether a touched partition concerns no session: none rests, and no session has woken partitions."""
        return not (self._resting or self._behind)

    def add_session(self, session: FetchSession) -> None:
        if session.replica_id >= 0:
            self._of_followers.setdefault(session.replica_id, {})[session] = None

    def remove_session(self, session: FetchSession) -> None:
        """The session ends. None of its partitions rests any more."""
        sessions = self._of_followers.get(session.replica_id, {})
        sessions.pop(session, None)
        if not sessions:
            self._of_followers.pop(session.replica_id, None)
        self._behind.pop(session, None)

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether the partition rests in any session."""
        return tp in self._resting

    def add(self, tp: TopicPartition, session: FetchSession) -> None:
        """The partition rests in that session."""
        self._resting.setdefault(tp, {})[session] = None

    def discard(self, tp: TopicPartition, session: FetchSession) -> None:
        """The partition does not rest in that session any more."""
        sessions = self._resting[tp]
        del sessions[session]
        if not sessions:
            del self._resting[tp]

    def in_sync_follower(self, tp: TopicPartition, replica: int) -> FollowerState | None:
        """The follower's state. None: this broker does not have the partition, or the follower is not in the ISR."""
        partition = self._hosted.get(tp)
        return partition.followers.get(replica) if partition is not None and replica in partition.isr else None

    def fell_behind(self, session: FetchSession) -> None:
        """The follower's session has woken partitions that no request has taken over yet."""
        self._behind[session] = None

    def caught_up(self, session: FetchSession) -> None:
        """The session's requests have taken over all its woken partitions."""
        self._behind.pop(session, None)

    def wake(self, touched: Iterable[TopicPartition], *, only_followers: bool = False) -> None:
        """Wakes touched partitions; `only_followers`: in followers' sessions, because of appended records that consumers do not see yet."""
        for tp in touched:
            if only_followers:
                for session in self._behind:
                    if session.is_woken(tp):
                        session.join_parked(tp, is_appended=True)
            sessions = self._resting.pop(tp, None)
            if sessions is None:
                continue
            if only_followers:
                consumers = {session: None for session in sessions if session.replica_id < 0}
                if consumers:
                    self._resting[tp] = consumers
                    sessions = {session: None for session in sessions if session not in consumers}
            for session in sessions:
                session.wake(tp, is_appended=only_followers)

    def wake_all_of(self, replica_id: int) -> None:
        """Wakes all partitions of that follower's sessions, so that its next requests read them and are checked."""
        for session in tuple(self._of_followers.get(replica_id, ())):
            session.wake_all()


class FetchContext:
    """The partitions that one request reads, and the topics of its answer. `session` is None for a request without a session.

    `entries` are the partitions to read, in the order of the answer. Partitions that are woken while the fetch is parked are appended.
    """

    __slots__ = ("_partitions", "_unknown", "entries", "is_incremental", "session")

    def __init__(
        self, session: FetchSession | None, partitions: Iterable[FetchedPartition], *, is_incremental: bool = False
    ) -> None:
        self.session = session
        self.is_incremental = is_incremental
        known: list[FetchedPartition] = []
        entries: list[FetchEntry] = []
        unknown: list[FetchedPartition] = []
        for partition in partitions:
            if partition.tp is None:
                unknown.append(partition)
            else:
                known.append(partition)
                entries.append((partition.tp, partition.wanted))
        self.entries = entries
        self._partitions = known
        self._unknown = unknown

    @property
    def session_id(self) -> int:
        return NO_SESSION_ID if self.session is None else self.session.id

    @property
    def some_partition(self) -> TopicPartition | None:
        """A partition of the session, also if none is read. None without a session, or if no partition is known."""
        if self.session is None:
            return None
        return next((partition.tp for partition in self.session.partitions.values() if partition.tp is not None), None)

    def is_news_of_high_watermark(self, index: int, read: PartitionRead) -> bool:
        """Whether the read of an entry has another high watermark than the session's last answer for that partition."""
        if self.session is None or read.data.error:
            return False
        if index < len(self._partitions):
            partition: FetchedPartition | None = self._partitions[index]
        else:
            partition = self.session.woken(self.entries[index][0])
        return partition is not None and read.data.high_watermark != partition.high_watermark

    @property
    def has_unknown_topics(self) -> bool:
        """Whether some topic ids of the request are unknown to this broker."""
        return bool(self._unknown)

    def answer(self, reads: Sequence[PartitionRead], *, may_rest: bool) -> FetchedTopics:
        """The topics of the response: all, or only those with news if it is incremental. `reads` are in the order of `entries`."""
        topics: FetchedTopics = []
        session = self.session
        partitions = self._partitions
        if len(reads) > len(partitions):
            partitions, reads = self._with_woken(reads)
        for partition, read in zip(partitions, reads, strict=True):
            if session is not None:
                is_news = session.take_answer(partition, read, may_rest=may_rest)
                if self.is_incremental and not is_news:
                    continue
            _add(topics, partition.key, read.data)
        for partition in self._unknown:
            data = FetchPartitionData(partition.wanted.partition, ErrorCode.UNKNOWN_TOPIC_ID, aborted_transactions=())
            partition.take_news(data)
            _add(topics, partition.key, data)
        return topics

    def _with_woken(self, reads: Sequence[PartitionRead]) -> tuple[list[FetchedPartition], list[PartitionRead]]:
        """The context's partitions, then those that joined while the fetch was parked, with their reads."""
        assert self.session is not None
        asked = len(self._partitions)
        partitions, found = list(self._partitions), list(reads[:asked])
        for (tp, _), read in zip(self.entries[asked:], reads[asked:], strict=True):
            partition = self.session.take_woken(tp)
            if partition is not None:
                partitions.append(partition)
                found.append(read)
        return partitions, found


def _add(topics: FetchedTopics, key: TopicKey, data: FetchPartitionData) -> None:
    if topics and topics[-1][0] == key:
        topics[-1][1].append(data)
    else:
        topics.append((key, [data]))
