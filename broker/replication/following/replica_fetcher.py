"""Copies partitions from one leader (REP-1, REP-6, REP-9).

Two loops share the partitions; `followed_partitions` has their phases.

1. `truncate_once` works on TRUNCATING partitions. It asks the leader where epochs end, and cuts the log so that both logs
   agree.
2. `fetch_once` works on all others. It places WAITING partitions in the fetch session if they are due and there is room,
   sends one Fetch, and appends the records of the answer. Each partition is fetched from its own log end offset.

After every await a loop checks three things again (BUG-12): the fetcher still holds the same `FollowedPartition`, the broker
still follows in this leader epoch, and the log still ends where the request said.

A partition that fails is set aside and retried later. The others continue.

A fetch at an offset claims that this replica has everything below. So a partition whose log owes a flush (`Log.claimable_end`) is
*held* in WAITING until the flush is done. The next fetch waits for it, but not for long: on a slow disk, the other partitions
are fetched without it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from enum import Enum
from itertools import islice

from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.following import truncation
from broker.replication.following.followed_partitions import FollowedPartition, FollowedPartitions, OutOfRange, Phase
from broker.replication.following.follower_session import ADDED_AT_ONCE, FetchPosition
from broker.replication.following.leader_endpoint import (
    EARLIEST,
    LATEST,
    EpochAnswer,
    EpochQuestion,
    LeaderEndpoint,
    LeaderUnavailable,
)
from broker.replication.following.truncation import EpochEnd
from broker.storage.log import Log
from protocol.errors import ErrorCode, KafkaError, error_name
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.record_batch import in_pieces
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

QUESTIONS_AT_ONCE = 200
"""Limit of partitions in a request for the ends of epochs. The next request has the other partitions."""
TAKEN_WITHOUT_A_PAUSE = 20
"""Partitions that a round handles without a pause. Before each further partition it asks the loop budget."""
PIECE_BYTES = 64 * 1024
"""Size of the pieces in which records are appended."""
RETRY_S_MIN = 0.02
REFRESH_EVERY_S = 0.5
REFRESHES_UNTIL_ALL = 64
FLUSH_WAIT_S = 0.02
"""How long a fetch waits for flushes. Kafka's fetchers wait until they are done."""
FAILURES_IN_PASSING = 4
"""Failures after which a partition is still expected to be fetched soon. A new leader may answer this many times, within a third
of a second, that it does not lead yet."""


class Work(Enum):
    """The two loops of a fetcher."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"


class ReplicaFetcher:
    """Pauses after errors start at RETRY_S_MIN and double up to `retry_s_max`, which is `replica.fetch.backoff.ms`."""

    def __init__(
        self,
        name: str,
        endpoint: LeaderEndpoint,
        clock: Clock,
        events: EventLog,
        *,
        retry_s_max: float,
        partition_max_bytes: int,
        throttle: ReplicationThrottle,
        budget: LoopBudget,
    ) -> None:
        self._throttle = throttle
        self.name = name
        self._endpoint = endpoint
        self._clock = clock
        self._events = events
        self._retry_s_max = retry_s_max
        self._partition_max_bytes = partition_max_bytes
        self._followed = FollowedPartitions()
        self._positions = self._followed.positions
        self._held: dict[TopicPartition, FollowedPartition] = {}
        """Partitions that were held when they were last looked at."""
        self._to_refresh: list[TopicPartition] = []
        self._refreshed_at = clock.monotonic()
        self._changed = asyncio.Event()
        self._budget = budget
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, followed: FollowedPartition) -> None:
        self._followed.add(followed)
        self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        """A loop that is working on the partition notices the removal after its await."""
        self._followed.remove(tp)

    def more_claimable(self) -> None:
        """A flush of some log has ended."""
        self._changed.set()

    def followed(self) -> list[FollowedPartition]:
        """A copy."""
        return list(self._followed)

    def phase_of(self, tp: TopicPartition) -> Phase | None:
        followed = self._followed.get(tp)
        return followed.phase if followed is not None else None

    def start(self) -> None:
        for work in Work:
            self._tasks.append(asyncio.create_task(self._run(work), name=f"{self.name}-{work.value}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._endpoint.close()

    # -- the loops ------------------------------------------------------------------------------------------------

    async def _run(self, work: Work) -> None:
        failures = 0
        while True:
            self._changed.clear()
            pause_s = self._pause(work)
            if pause_s is None or pause_s > 0:
                await _at_most(self._changed, pause_s)
                continue
            try:
                await (self.truncate_once() if work is Work.TRUNCATING else self.fetch_once())
            except LeaderUnavailable as error:
                failures += 1
                retry_s = self._retry_s(failures)
                log.info("%s: leader unavailable, next try in %.2f s: %s", self.name, retry_s, error)
                # A partition that is added during this pause, for example after the leader's return, ends it.
                await _at_most(self._changed, retry_s)
            except Exception:
                # The task's boundary: a bug must neither end replication nor make this loop spin.
                log.exception("%s: %s failed", self.name, work.value)
                await asyncio.sleep(self._retry_s_max)
            else:
                failures = 0

    def _pause(self, work: Work) -> float | None:
        """Seconds until a partition is due for that work; 0: now; None: it has no partition."""
        waiting = self._followed.truncating
        if work is Work.FETCHING:
            waiting = self._followed.unsettled
            if self._followed.in_sync:
                return 0.0
        now = self._clock.monotonic()
        free_at = now + min(self._throttle.free_in(), self._retry_s_max)
        due = None
        for followed in waiting.values():
            if _is_held(followed):
                continue  # `more_claimable` follows
            at = self._due_at(followed, free_at)
            if at <= now:
                return 0.0
            due = at if due is None else min(due, at)
        return None if due is None else due - now

    def _due_at(self, followed: FollowedPartition, free_at: float) -> float:
        """When the next step may be taken. A throttled partition is not fetched until the throttle is free again."""
        if followed.phase is not Phase.TRUNCATING and self._is_throttled(followed):
            return max(followed.not_before, free_at)
        return followed.not_before

    def _is_throttled(self, followed: FollowedPartition) -> bool:
        """KIP-73. A partition in sync is never throttled: producers with acks=all wait for it."""
        if followed.is_in_sync:
            return False
        partition_log = followed.log()
        return partition_log is not None and self._throttle.applies_to(
            partition_log.config, followed.partition.tp.partition
        )

    def _will_more_join(self) -> bool:
        """Whether some partition is likely to join the fetch soon. If the leader parked a fetch without it, it would have to wait."""
        return bool(self._held) or any(
            followed.failures <= FAILURES_IN_PASSING for followed in self._followed.truncating.values()
        )

    def _retry_s(self, failures: int) -> float:
        return float(min(RETRY_S_MIN * 2 ** min(failures - 1, 20), self._retry_s_max))

    def _set_aside(self, followed: FollowedPartition, reason: object) -> None:
        """REP-9. Pauses the partition after an error: until the pause is over, it is not fetched and its epochs are not asked for.
        A partition that is no longer followed, for example because its disk failed, is ignored.
        """
        if not self._followed.holds(followed):
            return
        followed.failures += 1
        if followed.is_copied:
            self._followed.move(followed, Phase.WAITING)
        pause_s = self._retry_s(followed.failures)
        followed.not_before = self._clock.monotonic() + pause_s
        # The first failure is common: the leader does not know yet that it leads.
        level = logging.DEBUG if followed.failures == 1 else logging.INFO
        log.log(level, "%s: %s set aside for %.2f s: %s", self.name, followed.partition.tp, pause_s, reason)
        self._changed.set()

    # -- truncation -----------------------------------------------------------------------------------------------

    async def truncate_once(self) -> None:
        """Asks once for the epoch ends of the partitions that are due, at most QUESTIONS_AT_ONCE, and cuts their logs."""
        questions: dict[TopicPartition, EpochQuestion] = {}
        asked: dict[TopicPartition, FollowedPartition] = {}
        now = self._clock.monotonic()
        due = (followed for followed in self._followed.truncating.values() if followed.not_before <= now)
        for followed in list(islice(due, QUESTIONS_AT_ONCE)):
            await self._budget.pause()
            if not self._followed.holds(followed):
                continue
            partition_log = followed.log()
            if partition_log is None:
                self.remove(followed.partition.tp)
                continue
            await partition_log.appendable()
            if not self._followed.holds(followed):
                continue
            if followed.out_of_range is not None:
                found, followed.out_of_range = followed.out_of_range, None
                await self._return_to_range(followed, found)
                continue
            epoch = partition_log.leader_epochs.latest_epoch()
            if epoch == truncation.UNDEFINED_EPOCH:
                await self._apply_truncation(followed, truncation.UNDEFINED)
                continue
            questions[followed.partition.tp] = EpochQuestion(followed.leader_epoch, epoch)
            asked[followed.partition.tp] = followed
        if not questions:
            return
        answers = await self._endpoint.epoch_ends(questions)
        for tp, followed in asked.items():
            await self._take_answer(followed, questions[tp], answers.get(tp))
            await self._budget.pause()

    async def _take_answer(
        self, followed: FollowedPartition, question: EpochQuestion, answer: EpochAnswer | None
    ) -> None:
        partition_log = followed.log()
        if not self._followed.holds(followed) or followed.phase is not Phase.TRUNCATING or partition_log is None:
            return
        if partition_log.leader_epochs.latest_epoch() != question.leader_epoch:
            return
        if answer is None or answer.error is not ErrorCode.NONE:
            self._set_aside(followed, "no answer" if answer is None else answer.error.name)
            return
        await self._apply_truncation(followed, answer.end)

    async def _apply_truncation(self, followed: FollowedPartition, leader_end: EpochEnd) -> None:
        partition = followed.partition
        partition_log = followed.log()
        if partition_log is None:
            return
        decision = truncation.decide(
            leader_end,
            log_end_offset=partition_log.log_end_offset,
            high_watermark=partition.high_watermark,
            local_end_of=partition.end_of_epoch,
        )
        end = partition_log.log_end_offset
        is_long = decision.offset < end and partition_log.is_long_cut(decision.offset)
        if is_long and followed.is_copied:
            # The other loop cuts: this one copies other partitions meanwhile.
            self._followed.move(followed, Phase.TRUNCATING)
            self._changed.set()
            return
        try:
            if is_long:
                partition.note_truncation(decision.offset)
                if not await self._cut_down(followed, partition_log, decision.offset):
                    return
            partition.truncate(decision.offset, is_noted=is_long)
        except KafkaError as error:
            self._set_aside(followed, error)
            return
        # After a cut, a checkpoint may have to be written before the next append. Then the partition is in TRUNCATING again: the
        # next round waits for the checkpoint, asks the leader again, and finds nothing to cut.
        is_settled = partition_log.log_end_offset == end or not partition_log.is_point_behind
        self._followed.move(followed, Phase.WAITING if decision.is_complete and is_settled else Phase.TRUNCATING)
        followed.failures = 0
        followed.not_before = 0.0
        self._changed.set()

    async def _cut_down(self, followed: FollowedPartition, partition_log: Log, offset: int) -> bool:
        """Cuts the log in parts, until the rest of a cut at `offset`, -1: of everything, takes a moment.

        False: in a pause something else changed the log or the role. If the partition is still followed in this epoch, the leader is
        asked again. Raises KafkaError.
        """
        while True:
            step, end, cuts = partition_log.next_cut(offset), partition_log.log_end_offset, partition_log.cuts
            await partition_log.read_for_cut(step)
            await self._budget.pause()
            is_as_before = partition_log.log_end_offset == end and partition_log.cuts == cuts
            if not (is_as_before and self._followed.holds(followed) and followed.log() is partition_log):
                return False
            if step == offset:
                return True
            followed.partition.cut_part(step)

    # -- fetching -------------------------------------------------------------------------------------------------

    async def fetch_once(self) -> None:
        """Sends one Fetch for the partitions that are due, and appends the records of the answer."""
        if self._held:
            await self._await_flushes()
        all_are_placed = await self._place_unsettled()
        self._refresh_some()
        if not self._positions:
            return
        self._positions.begin_request()
        is_short = not all_are_placed or self._will_more_join()
        answers = await self._endpoint.fetch(self._positions, is_short=is_short)
        # Producers wait for partitions in sync: they come before the many partitions that catch up after a failover.
        in_order = sorted(answers, key=self._followed.unsettled.__contains__)
        for at, tp in enumerate(in_order):
            # The answer for a partition that was moved or removed since the request is void (BUG-12).
            if self._positions.is_as_asked(tp):
                followed = self._followed[tp]
                await self._take_data(followed, self._positions[tp].wanted.fetch_offset, answers[tp])
                if followed.is_copied and self._followed.holds(followed):
                    self._place(followed)
            if at >= TAKEN_WITHOUT_A_PAUSE:
                await self._budget.pause()

    async def _place_unsettled(self) -> bool:
        """Adds the WAITING partitions that are due to the fetch, and removes those that the throttle slows.

        False: some partitions were not checked, because the request is full or the check took long. The Fetch is sent without
        them, and the next round continues with them.
        """
        now = self._clock.monotonic()
        free_at = now + self._throttle.free_in()
        for at, (tp, followed) in enumerate(list(self._followed.unsettled.items())):
            is_full = len(self._positions.added) > ADDED_AT_ONCE
            if not self._positions:
                await self._budget.pause()
            elif is_full or (at >= TAKEN_WITHOUT_A_PAUSE and self._budget.is_spent()):
                return False
            if not self._followed.holds(followed):
                continue
            self._followed.put_last(tp)
            if _is_held(followed):
                self._hold(followed)
            elif self._due_at(followed, free_at) > now:
                self._followed.move(followed, Phase.WAITING)
            elif followed.phase is Phase.WAITING:
                self._followed.move(followed, Phase.IN_SYNC if followed.is_in_sync else Phase.CATCHING_UP)
                self._place(followed)
        return True

    def _hold(self, followed: FollowedPartition) -> None:
        self._held[followed.partition.tp] = followed
        self._followed.move(followed, Phase.WAITING)

    async def _await_flushes(self) -> None:
        """Waits until no partition is held, for at most FLUSH_WAIT_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_S):
                while True:
                    self._changed.clear()
                    self._held = {
                        tp: followed
                        for tp, followed in self._held.items()
                        if self._followed.holds(followed) and _is_held(followed)
                    }
                    if not self._held:
                        return
                    await self._changed.wait()

    def _place(self, followed: FollowedPartition) -> None:
        """Sets the partition's position: its next fetch starts at its log end offset. Removes a partition that is no longer followed."""
        partition_log = followed.log()
        if partition_log is None:
            self.remove(followed.partition.tp)
        elif partition_log.owes_flush:
            self._hold(followed)
        else:
            self._positions[followed.partition.tp] = self._position(followed, partition_log)

    def _refresh_some(self) -> None:
        """Renews some positions, so that the leader learns within half a minute which log starts retention has moved here."""
        now = self._clock.monotonic()
        if now - self._refreshed_at < REFRESH_EVERY_S:
            return
        self._refreshed_at = now
        self._to_refresh = self._to_refresh or list(self._positions)
        for _ in range(min(len(self._to_refresh), len(self._positions) // REFRESHES_UNTIL_ALL + 1)):
            tp = self._to_refresh.pop()
            if tp in self._positions:
                self._place(self._followed[tp])

    def _position(self, followed: FollowedPartition, partition_log: Log) -> FetchPosition:
        wanted = FetchRequestPartition(
            partition=followed.partition.tp.partition,
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=partition_log.log_end_offset,
            last_fetched_epoch=partition_log.leader_epochs.latest_epoch(),
            log_start_offset=partition_log.log_start_offset,
            partition_max_bytes=self._partition_max_bytes,
        )
        return FetchPosition(followed.topic_id, wanted)

    async def _take_data(self, followed: FollowedPartition, fetch_offset: int, data: FetchPartitionData) -> None:
        partition_log = followed.log()
        if not self._followed.holds(followed) or partition_log is None:
            return
        if partition_log.log_end_offset != fetch_offset:
            return
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(followed, fetch_offset)
        elif data.error != ErrorCode.NONE:
            self._set_aside(followed, error_name(data.error))
        elif data.diverging_epoch is not None:
            # The log is cut, and the high watermark of the answer does not count.
            await self._apply_truncation(followed, EpochEnd(*data.diverging_epoch))
        else:
            await self._append(followed, data)

    async def _append(self, followed: FollowedPartition, data: FetchPartitionData) -> None:
        """Appends in pieces, with pauses: ten megabytes of small batches take a quarter of a second.

        After each pause it discards the rest if the partition is no longer followed in this epoch, or if something else moved
        its log end offset (BUG-12).
        """
        if self._is_throttled(followed):
            self._throttle.record(sum(map(len, data.records)))
        partition_log = followed.log()
        pieces = [piece for records in data.records for piece in in_pieces(memoryview(records), PIECE_BYTES)]
        for piece in pieces or (None,):
            assert partition_log is not None
            try:
                followed.partition.append_as_follower(piece, data.high_watermark, data.log_start_offset)
            except KafkaError as error:
                self._set_aside(followed, error)
                return
            if len(pieces) <= 1:
                break
            end = partition_log.log_end_offset
            await self._budget.pause()
            partition_log = followed.log()
            if not self._followed.holds(followed) or partition_log is None or partition_log.log_end_offset != end:
                return
        followed.failures = 0
        followed.leader_high_watermark = data.high_watermark
        is_in_sync = partition_log is not None and partition_log.log_end_offset >= data.high_watermark
        if is_in_sync is not followed.is_in_sync:
            self._followed.move(followed, Phase.IN_SYNC if is_in_sync else Phase.CATCHING_UP)

    async def _out_of_range(self, followed: FollowedPartition, fetch_offset: int) -> None:
        """The leader's log does not contain this log's end offset. Asks the leader for its log start and log end.

        If this log ends below the leader's log start, it is emptied and starts at that offset. If it ends above the leader's log
        end, it is cut at that offset. Then the partition is TRUNCATING again.
        """
        tp = followed.partition.tp
        try:
            start = await self._endpoint.list_offset(tp, followed.leader_epoch, EARLIEST)
            end = await self._endpoint.list_offset(tp, followed.leader_epoch, LATEST)
        except LeaderUnavailable as error:
            if self._followed.holds(followed):
                self._set_aside(followed, error)
            return
        found = OutOfRange(fetch_offset, start, end)
        partition_log = followed.log()
        if partition_log is None or not partition_log.is_long_cut(found.end if fetch_offset > end else -1):
            await self._return_to_range(followed, found)
        elif self._followed.holds(followed):
            # The other loop cuts: this one copies other partitions meanwhile.
            followed.out_of_range = found
            self._followed.move(followed, Phase.TRUNCATING)
            self._changed.set()

    async def _return_to_range(self, followed: FollowedPartition, found: OutOfRange) -> None:
        partition, partition_log = followed.partition, followed.log()
        if not self._followed.holds(followed) or partition_log is None or partition_log.log_end_offset != found.offset:
            return
        is_behind = found.offset < found.start
        offset = -1 if is_behind else found.end
        is_long = (is_behind or found.offset > found.end) and partition_log.is_long_cut(offset)
        try:
            if is_long:
                partition.note_truncation(found.start if is_behind else found.end, fully=is_behind)
                if not await self._cut_down(followed, partition_log, offset):
                    return
            if is_behind:
                partition.restart_at(found.start, is_noted=is_long)
            elif found.offset > found.end:
                partition.truncate(found.end, is_noted=is_long)
        except KafkaError as error:
            self._set_aside(followed, error)
            return
        self._events.write(
            "out_of_range",
            partition=str(partition.tp),
            offset=found.offset,
            leader_start=found.start,
            leader_end=found.end,
        )
        self._followed.move(followed, Phase.TRUNCATING)
        self._set_aside(followed, f"offset {found.offset} is not in the leader's {found.start}..{found.end}")


def _is_held(followed: FollowedPartition) -> bool:
    partition_log = followed.log()
    return partition_log is not None and partition_log.owes_flush


async def _at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Waits for the event, for at most `seconds`. None: without a limit."""
    # Not asyncio.wait_for: in Python 3.11 it loses a cancellation that arrives together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
