"""Fetches of consumers and followers: read at once, or parked until there is enough (REP-1, REP-2, REP-5).

Nothing here waits. Partitions of a session that rest are not among a fetch's entries; they join it when they are woken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from broker.process.clock import Clock
from broker.process.loop_budget import LoopBudget
from broker.purgatory import Purgatory, Timers
from broker.replication.fetching import large_fetches
from broker.replication.fetching.delayed_fetch import DelayedFetch, is_decisive
from broker.replication.fetching.fetch_reads import FetchEntry, FetchParams, FetchReads, FetchResponder, PartitionRead
from broker.replication.fetching.large_fetches import LargeFetch, WaitingFetch
from broker.replication.fetching.quiet_partitions import QuietIndex, QuietPartitions
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.replica_state import FollowerState
from protocol.types import TopicPartition


class Fetches:
    """`after_reads` is called when a follower's fetch may have moved high watermarks."""

    def __init__(
        self,
        hosted: HostedPartitions,
        reads: FetchReads,
        timers: Timers,
        clock: Clock,
        throttle: ReplicationThrottle,
        is_suspect: Callable[[], bool],
        after_reads: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        budget: LoopBudget,
        client_budget: LoopBudget,
    ) -> None:
        """`budget` is for followers."""
        self._hosted = hosted
        self._reads = reads
        self._clock = clock
        self._throttle = throttle
        self._is_suspect = is_suspect
        self._after_reads = after_reads
        self._spawn = spawn
        self._budget = budget
        self._parked_followers: Purgatory[TopicPartition] = Purgatory(timers, clock.monotonic)
        self._parked_consumers: Purgatory[TopicPartition] = Purgatory(timers, clock.monotonic)
        self._client_budget = client_budget
        self._parked_of_follower: dict[int, dict[DelayedFetch, None]] = {}
        self._large: dict[LargeFetch, None] = {}
        self.quiet = QuietIndex(self._in_sync_follower)

    def __len__(self) -> int:
        """Fetches that are parked now."""
        return len(self._parked_followers) + len(self._parked_consumers)

    def begin(self, quiet: QuietPartitions, replica_epoch: int) -> None:
        """A request of that session came; what was touched before is awake."""
        self.quiet.begin_fetch(quiet, replica_epoch, self._clock.monotonic(), looks_at_all=self._is_suspect())

    def fetch(
        self,
        params: FetchParams,
        partitions: Sequence[FetchEntry],
        respond: FetchResponder,
        quiet: QuietPartitions | None = None,
    ) -> WaitingFetch | None:
        """As `ReplicaManager.fetch`."""
        entries = list(partitions)
        bounded = params.bounded()
        if len(entries) > large_fetches.LARGE:
            params.room.reserve(max(bounded.max_bytes, 0))
            large = LargeFetch(self._reads, bounded, entries)
            self._spawn(self._read_in_slices(large, params, entries, respond, quiet))
            return large
        reads = self._reads.read_all(bounded, entries)
        self._after_reads()
        return self._answer_or_park(params, bounded.min_bytes, entries, reads, respond, quiet)

    async def _read_in_slices(
        self,
        large: LargeFetch,
        params: FetchParams,
        entries: list[FetchEntry],
        respond: FetchResponder,
        quiet: QuietPartitions | None,
    ) -> None:
        self._large[large] = None
        budget = self._budget if params.is_follower else self._client_budget
        try:
            while True:
                is_done = large.read_some()
                self._after_reads()
                if is_done:
                    break
                await budget.pause()
        finally:
            del self._large[large]
            large.is_completed = True
        if large.is_hurried:
            params = params._replace(max_wait_ms=0)
        large.parked = self._answer_or_park(params, large.min_bytes, entries, large.reads, respond, quiet)

    def _answer_or_park(
        self,
        params: FetchParams,
        min_bytes: int,
        entries: list[FetchEntry],
        reads: list[PartitionRead],
        respond: FetchResponder,
        quiet: QuietPartitions | None,
    ) -> WaitingFetch | None:
        """In the turn of the last read, so that nothing is missed in between."""
        rests = quiet is not None and len(quiet) > 0

        def finish(asked: list[FetchEntry], found: list[PartitionRead]) -> None:
            self._finish(params, asked, found, respond, quiet)

        total = sum(read.size for read in reads)
        is_empty = not entries and not rests
        # What is awake and not among the entries is for the next request.
        is_short = quiet is not None and bool(quiet.woken)
        if params.max_wait_ms <= 0 or is_short or is_empty or total >= min_bytes or any(map(is_decisive, reads)):
            finish(entries, reads)
            return None
        params.room.reserve(0)  # it holds no records while it is parked
        operation = DelayedFetch(params, entries, reads, self._reads, finish)
        if quiet is not None:
            quiet.parked = operation
        return self._park(params, operation, entries)

    def touched(self, partitions: Collection[TopicPartition]) -> None:
        """Something happened to these: whoever waits for them looks again, once."""
        self.appended(partitions)
        self.quiet.wake(partitions)
        self._parked_consumers.check_all(partitions)

    def appended(self, partitions: Collection[TopicPartition]) -> None:
        """As `touched`, for followers only: what is above the high watermark is no news for consumers."""
        for large in self._large:
            large.note(partitions)
        self.quiet.wake(partitions, only_followers=True)
        self._parked_followers.check_all(partitions)

    def wake(self, partitions: Collection[TopicPartition], *, only_followers: bool = False) -> None:
        """Those that rest among these rest no more; `touched`, or `appended`, will follow."""
        self.quiet.wake(partitions, only_followers=only_followers)

    def look_at_followers(self, replicas: Collection[int]) -> None:
        """Whether these may still fetch may have changed: nothing of theirs rests, and they ask again."""
        for replica in replicas:
            self.quiet.wake_all_of(replica)
            self.answer_follower(replica)

    def answer_follower(self, replica: int) -> None:
        """Its parked fetches are answered now: it has partitions to add to the next."""
        for parked in self._parked_of_follower.pop(replica, ()):
            parked.complete_now()

    def answer_followers(self, partitions: Collection[TopicPartition]) -> None:
        """All fetches of followers that are parked now, with what is new of these partitions."""
        self.quiet.wake(partitions)
        parked, self._parked_of_follower = self._parked_of_follower, {}
        for fetch in [fetch for fetches in parked.values() for fetch in fetches if not fetch.is_completed]:
            fetch.try_complete(partitions)
            fetch.complete_now()

    def _park(self, params: FetchParams, operation: DelayedFetch, entries: list[FetchEntry]) -> DelayedFetch:
        parked = self._parked_followers if params.is_follower else self._parked_consumers
        parked.watch(operation, (tp for tp, _ in entries), params.max_wait_ms / 1000)
        if params.is_follower:
            others = self._parked_of_follower.setdefault(params.replica_id, {})
            for done in [other for other in others if other.is_completed]:
                del others[done]
            others[operation] = None
        return operation

    def _finish(
        self,
        params: FetchParams,
        entries: list[FetchEntry],
        reads: list[PartitionRead],
        respond: FetchResponder,
        quiet: QuietPartitions | None,
    ) -> None:
        if all(read.cold is None for read in reads):
            if quiet is not None:
                quiet.idle = [entry[0] for entry, read in zip(entries, reads, strict=True) if read.is_idle]
            self._answer(entries, reads, respond)
            return
        # What happens while the disk is asked touches nobody: nothing may rest after that.
        params.room.reserve(sum(read.size for read in reads))
        self._spawn(self._finish_cold(params, entries, reads, respond))

    async def _finish_cold(
        self, params: FetchParams, entries: list[FetchEntry], reads: list[PartitionRead], respond: FetchResponder
    ) -> None:
        for index, read in enumerate(reads):
            if not params.room.is_open:
                return
            if read.cold is not None:
                tp, wanted = entries[index]
                reads[index] = await self._reads.read_cold(tp, wanted, read)
        self._answer(entries, reads, respond)

    def _answer(self, entries: list[FetchEntry], reads: list[PartitionRead], respond: FetchResponder) -> None:
        self._throttle.record(sum(read.throttled_size for read in reads))
        respond([(tp, read.data) for (tp, _), read in zip(entries, reads, strict=True)])

    def _in_sync_follower(self, tp: TopicPartition, replica: int) -> FollowerState | None:
        partition = self._hosted.get(tp)
        return partition.followers.get(replica) if partition is not None and replica in partition.isr else None
