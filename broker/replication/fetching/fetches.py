"""The leader's side of a fetch, for consumers and followers: answers it now, or parks it until there is enough (REP-1, REP-2, REP-5).

The walk of a fetch (`Fetches.fetch`):

1. `FetchSessionCache.open` finds or opens the session, and returns the partitions that the request reads (`FetchContext`).
2. `FetchReads` reads each of them; very many are read in slices (`LargeFetch`).
3. With enough bytes, or a result that cannot wait (an error, a divergence), the fetch is answered. Otherwise it is parked
   (`DelayedFetch`).
4. An append, a move of the high watermark or a change of leadership *touches* a partition. All partitions that the requests of one
   turn of the loop touched are handled together, at the end of that turn (`look`): it wakes those that rest, and answers the parked
   fetches that watch them and have enough. So a follower's answer has the records of all these requests.
5. `FetchContext.answer` picks the partitions of the answer. Partitions of the session with nothing to read rest from then on.

A consumer's fetch of one partition, without a session, is tried by `answer_at_once` first. It does only the second step, and answers if
there is nothing to say but records.

No function here waits for records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from broker.process.loop_budget import LoopBudget
from broker.process.topic_stats import BrokerTopicStats
from broker.purgatory import Purgatory, Timers
from broker.replication.fetching import large_fetches
from broker.replication.fetching.delayed_fetch import DelayedFetch, is_decisive
from broker.replication.fetching.fetch_reads import AnswerRoom, FetchParams, FetchReads, PartitionRead, Throttle
from broker.replication.fetching.fetch_session import NO_SESSION_ID, FetchContext, FetchedTopics
from broker.replication.fetching.large_fetches import LargeFetch, WaitingFetch
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.fetching.session_cache import FINAL_EPOCH, FetchSessionCache
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.fetch_codec import FetchRequest
from protocol.kafka.framing import Part
from protocol.kafka.single_fetch import SingleFetch
from protocol.types import TopicPartition

EXPECTED_ERRORS: Final = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)
"""Errors that are not counted as failed fetch requests (Kafka's `ReplicaManager.readFromLog`)."""
PARTITION_SIZE: Final = 64
"""About the bytes that an answer has for a partition besides its records."""
TOUCHED_IN_A_TURN: Final = 400
"""Limit of touched partitions that one turn of the loop handles. If all leaderships end at once, ten thousand are touched."""

FetchResponder = Callable[[ErrorCode, int, FetchedTopics], None]
"""Gets the request's error, the session id and the topics. It is called once, or never if the connection is closed."""


class FetchLoop(NamedTuple):
    """The loop that serves fetches. `budget` is for large fetches of followers, `client_budget` for those of consumers."""

    timers: Timers
    monotonic: Callable[[], float]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    budget: LoopBudget
    client_budget: LoopBudget


class Fetches:
    """See the module. `complete_produces` is called when a follower's fetch may have moved high watermarks."""

    def __init__(
        self,
        sessions: FetchSessionCache,
        reads: FetchReads,
        throttle: ReplicationThrottle,
        loop: FetchLoop,
        is_suspect: Callable[[], bool],
        complete_produces: Callable[[], None],
        consumer_bytes_max: int,
        stats: BrokerTopicStats,
        note_appended: Callable[[dict[TopicPartition, None]], None],
        *,
        tells_high_watermarks: bool = False,
    ) -> None:
        """`note_appended` is called once per turn of the loop, with the partitions to which records were appended.

        `tells_high_watermarks`: a follower's fetch is answered as soon as a high watermark moved, because consumers read from it
        (KIP-392). Otherwise it learns of the move with the next records, or when its fetch has waited long enough.
        """
        self._tells_high_watermarks = tells_high_watermarks
        self._note_appended = note_appended
        self._stats = stats
        self._sessions = sessions
        self._reads = reads
        self._throttle = throttle
        self._timers = timers = loop.timers
        self._is_suspect = is_suspect
        self._complete_produces = complete_produces
        self._spawn = loop.spawn
        self._budget = loop.budget
        self._client_budget = loop.client_budget
        self._consumer_bytes_max = consumer_bytes_max
        self._resting = sessions.resting
        self._parked_followers: Purgatory[TopicPartition] = Purgatory(timers, loop.monotonic)
        self._parked_consumers: Purgatory[TopicPartition] = Purgatory(timers, loop.monotonic)
        self._parked_of_follower: dict[int, dict[DelayedFetch, None]] = {}
        self._large: dict[LargeFetch, None] = {}
        self._soon: Callable[[Callable[[], None]], object] = timers.call_soon
        self._touched: dict[TopicPartition, None] = {}
        self._moved: dict[TopicPartition, None] = {}
        self._appended: dict[TopicPartition, None] = {}
        self.is_turn_due = False
        """True while touched partitions wait for a later turn of the loop."""

    def look_with(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon` schedules `look`, after the requests that the loop handles now. Without it, the next turn of the loop looks."""
        self._soon = soon

    def __len__(self) -> int:
        """Fetches that are parked now."""
        return len(self._parked_followers) + len(self._parked_consumers)

    @property
    def purgatories(self) -> dict[str, Purgatory[TopicPartition]]:
        """By who fetches, in Kafka's words."""
        return {"follower": self._parked_followers, "consumer": self._parked_consumers}

    # -- a request ----------------------------------------------------------------------------------------------------

    def fetch(
        self, params: FetchParams, request: FetchRequest, respond: FetchResponder, *, uses_topic_ids: bool
    ) -> WaitingFetch | None:
        """Answers the fetch, or parks it until there are `min_bytes`.

        Returns the fetch if it is not answered yet: the caller ends it with `complete_now` when its connection closes.
        """
        in_session = request.session_epoch != FINAL_EPOCH
        if in_session:
            self._wake_touched()
        try:
            context = self._sessions.open(
                request,
                uses_topic_ids=uses_topic_ids,
                connection=params.room,
                looks_at_all=in_session and self._is_suspect(),
            )
        except KafkaError as error:
            # As in Kafka, the answer to who is over a quota has no error: a client without a session opens a new one.
            is_over_quota = params.throttle is not None and params.throttle(_size(())) > 0
            respond(ErrorCode.NONE if is_over_quota else error.code, NO_SESSION_ID, [])
            return None
        if context.has_unknown_topics and params.max_wait_ms:
            params = params._replace(max_wait_ms=0)  # An error is answered at once.
        if params.max_bytes > self._consumer_bytes_max and not params.is_follower:
            params = params._replace(max_bytes=self._consumer_bytes_max)
        bounded = params.bounded()
        if len(context.entries) > large_fetches.LARGE:
            params.room.reserve(max(bounded.max_bytes, 0))
            large = LargeFetch(self._reads, bounded._replace(may_be_stored=False), context.entries)
            self._spawn(self._read_in_slices(large, params, context, respond))
            return large
        reads = self._reads.read_all(bounded, context.entries)
        self._complete_produces()
        return self._answer_or_park(params, bounded.min_bytes, context, reads, respond)

    def answer_at_once(
        self,
        single: SingleFetch,
        offset: int,
        correlation_id: int,
        room: AnswerRoom,
        listener: str,
        throttle: Throttle | None = None,
    ) -> Sequence[Part] | None:
        """The answer to a consumer's fetch of one partition, without a session, if it can be given now with records only.

        None: nothing is counted, and `fetch` is to be called. Empty: `throttle` says that the client is over its quota.
        """
        if single.max_bytes > min(room.answer_room(), self._consumer_bytes_max):
            return None
        tp = self._reads.find(single.key, single.wanted.partition)
        if tp is None:
            return None
        found = self._reads.answer_single(single, tp, offset, correlation_id, listener)
        if found is None:
            return None
        answer, size = found
        if throttle is not None and throttle(size + PARTITION_SIZE):
            return ()
        stats = self._stats.get(tp.topic)
        if stats is not None:
            stats.bytes_out += size
        return answer

    async def _read_in_slices(
        self, large: LargeFetch, params: FetchParams, context: FetchContext, respond: FetchResponder
    ) -> None:
        self._large[large] = None
        budget = self._budget if params.is_follower else self._client_budget
        try:
            while True:
                is_done = large.read_some()
                self._complete_produces()
                if is_done:
                    break
                await budget.pause()
        finally:
            del self._large[large]
            large.is_completed = True
        if large.is_hurried:
            params = params._replace(max_wait_ms=0)
        large.parked = self._answer_or_park(params, large.min_bytes, context, large.reads, respond)

    def _answer_or_park(
        self,
        params: FetchParams,
        min_bytes: int,
        context: FetchContext,
        reads: list[PartitionRead],
        respond: FetchResponder,
    ) -> WaitingFetch | None:
        """To be called in the same turn of the loop as the last read: partitions that are touched later check the parked fetch."""
        session = context.session
        tells = self._tells_high_watermarks and params.is_follower
        is_urgent = context.is_news_of_high_watermark if tells else None
        if (
            params.max_wait_ms <= 0
            # Woken partitions wait for the next request, so this request must not be parked.
            or (session is not None and session.is_behind)
            or not (context.entries or (session is not None and session.resting))
            or sum(read.size for read in reads) >= min_bytes
            or any(map(is_decisive, reads))
            or (is_urgent is not None and any(is_urgent(index, read) for index, read in enumerate(reads)))
        ):
            self._finish(params, context, reads, respond)
            return None
        params.room.reserve(0)  # a parked fetch holds no records
        params = params._replace(may_be_stored=False)
        fetch = DelayedFetch(
            params,
            context.entries,
            reads,
            self._reads,
            lambda found: self._finish(params, context, found, respond),
            is_urgent,
        )
        if session is not None:
            session.park(fetch)
        self._park(params, fetch)
        return fetch

    def _park(self, params: FetchParams, fetch: DelayedFetch) -> None:
        parked = self._parked_followers if params.is_follower else self._parked_consumers
        parked.watch(fetch, fetch.partitions(), params.max_wait_ms / 1000)
        if params.is_follower:
            others = self._parked_of_follower.setdefault(params.replica_id, {})
            for done in [other for other in others if other.is_completed]:
                del others[done]
            others[fetch] = None

    def _finish(
        self, params: FetchParams, context: FetchContext, reads: list[PartitionRead], respond: FetchResponder
    ) -> None:
        if all(read.cold is None for read in reads):
            self._answer(params, context, reads, respond, may_rest=True)
            return
        params.room.reserve(sum(read.size for read in reads))
        if params.may_be_stored:
            reads = [self._reads.in_memory(entry, read) for entry, read in zip(context.entries, reads, strict=True)]
        self._spawn(self._finish_cold(params, context, reads, respond))

    async def _finish_cold(
        self, params: FetchParams, context: FetchContext, reads: list[PartitionRead], respond: FetchResponder
    ) -> None:
        for index, read in enumerate(reads):
            if not params.room.is_open:
                return
            if read.cold is not None:
                tp, wanted = context.entries[index]
                reads[index] = await self._reads.read_cold(tp, wanted, read)
        # A touch during the disk read did not wake a partition of this fetch, because none was resting. So none may rest now.
        self._answer(params, context, reads, respond, may_rest=False)

    def _answer(
        self,
        params: FetchParams,
        context: FetchContext,
        reads: list[PartitionRead],
        respond: FetchResponder,
        *,
        may_rest: bool,
    ) -> None:
        self._throttle.record(sum(read.throttled_size for read in reads))
        if params.room.is_open:
            if params.throttle is not None and params.throttle(_size(reads)):
                respond(ErrorCode.NONE, self._sessions.throttled(context), [])
                return
            if params.is_follower:
                self._stats.replication_bytes_out += sum(read.size for read in reads)
            else:
                self._count_consumed(context, reads)
            if params.observer is not None:
                params.observer(context.entries, reads, context.some_partition)
            respond(ErrorCode.NONE, context.session_id, context.answer(reads, may_rest=may_rest))

    def _count_consumed(self, context: FetchContext, reads: list[PartitionRead]) -> None:
        for (tp, _), read in zip(context.entries, reads, strict=True):
            stats = self._stats.get(tp.topic)
            if stats is not None:
                stats.bytes_out += read.size
                stats.failed_fetch_requests += read.data.error not in EXPECTED_ERRORS

    # -- what happens to partitions -----------------------------------------------------------------------------------

    def touch(self, tp: TopicPartition) -> None:
        """The partition's leadership changed. Consumers and followers may have to know."""
        self._touched[tp] = None
        self._look_soon()

    def high_watermark_moved(self, tp: TopicPartition) -> None:
        """Consumers may have more to read. Followers learn of it with the next answer: nothing was appended for them."""
        self._moved[tp] = None
        self._look_soon()

    def follower_moved(self, tp: TopicPartition) -> None:
        """Like `touch`, for a partition that this broker follows. Most of these have no consumers here, so this takes a look first."""
        if self._large or tp in self._resting or self._parked_consumers.is_watched(tp):
            self.touch(tp)

    def appended_to(self, tp: TopicPartition) -> None:
        """Records were appended. Only followers read them now, because consumers read up to the high watermark."""
        self._appended[tp] = None
        self._look_soon()

    def look(self) -> None:
        """Handles partitions that were touched, at most TOUCHED_IN_A_TURN of each kind. Runs in one turn of the loop."""
        self.is_turn_due = False
        self._complete_produces()
        touched, appended, moved = _take_first(self._touched), _take_first(self._appended), _take_first(self._moved)
        if self._touched or self._appended or self._moved:
            self._look_soon()
        if appended:
            self._note_appended(appended)
        if self._resting.is_idle and not (self._parked_followers or self._parked_consumers or self._large):
            return  # nobody fetches
        if appended and (only_appended := [tp for tp in appended if tp not in touched]):
            self._look_at_appended(only_appended)
        if touched:
            self._look_at_touched(touched)
        if moved and (only_moved := [tp for tp in moved if tp not in touched]):
            self._look_at_moved(only_moved)

    def look_at_followers(self, replicas: Collection[int]) -> None:
        """These brokers came, left or restarted: wakes their partitions and answers their fetches, so that they fetch and are checked."""
        for replica in replicas:
            self._resting.wake_all_of(replica)
            self.answer_follower(replica)

    def rights_changed(self) -> None:
        """Each session looks at all of its partitions with its next fetch: perhaps it may no longer read some of them."""
        self._sessions.look_at_all()

    def answer_follower(self, replica: int) -> None:
        """Answers the follower's parked fetches now, for example because the follower has partitions to add to its next fetch."""
        for parked in self._parked_of_follower.pop(replica, ()):
            parked.complete_now()

    def answer_followers(self, partitions: Collection[TopicPartition]) -> None:
        """Answers all parked fetches of followers now, after reading these partitions again."""
        self._resting.wake(partitions)
        parked, self._parked_of_follower = self._parked_of_follower, {}
        for fetch in [fetch for fetches in parked.values() for fetch in fetches if not fetch.is_completed]:
            fetch.try_complete(partitions)
            fetch.complete_now()

    def _look_soon(self) -> None:
        if not self.is_turn_due:
            self.is_turn_due = True
            self._soon(self.look)

    def _wake_touched(self) -> None:
        """Wakes the partitions that were touched so far, for a request that arrives before `look` runs."""
        self._resting.wake(self._appended, only_followers=True)
        self._resting.wake(self._touched)
        self._resting.wake(self._moved)

    def _look_at_touched(self, partitions: Collection[TopicPartition]) -> None:
        """Each parked fetch that watches any of these partitions checks them, once."""
        self._look_at_appended(partitions)
        self._resting.wake(partitions)
        self._parked_consumers.check_all(partitions)

    def _look_at_moved(self, partitions: Collection[TopicPartition]) -> None:
        """Like `_look_at_touched`, but a follower's parked fetch that has read everything is not read again before its answer."""
        if self._tells_high_watermarks:
            self._look_at_touched(partitions)
            return
        for large in self._large:
            large.note(partitions)
        self._resting.wake(partitions)
        unread: dict[TopicPartition, None] = {}
        for tp in partitions:
            for fetch in self._parked_followers.watching(tp):
                if not (isinstance(fetch, DelayedFetch) and fetch.read_later(tp)):
                    unread[tp] = None
        if unread:
            self._parked_followers.check_all(unread)
        self._parked_consumers.check_all(partitions)

    def _look_at_appended(self, partitions: Collection[TopicPartition]) -> None:
        """Like `_look_at_touched`, for followers only."""
        for large in self._large:
            large.note(partitions)
        self._resting.wake(partitions, only_followers=True)
        self._parked_followers.check_all(partitions)


def _size(reads: Sequence[PartitionRead]) -> int:
    """About the bytes of an answer with these reads."""
    return sum(read.size + PARTITION_SIZE for read in reads if read.size or read.data.error)


def _take_first(touched: dict[TopicPartition, None]) -> dict[TopicPartition, None]:
    """Takes out at most TOUCHED_IN_A_TURN partitions. Later turns of the loop handle the others."""
    if len(touched) <= TOUCHED_IN_A_TURN:
        some = touched.copy()
        touched.clear()
        return some
    some = dict.fromkeys(islice(touched, TOUCHED_IN_A_TURN))
    for tp in some:
        del touched[tp]
    return some
