"""Copies partitions from one leader (REP-1, REP-6, REP-9).

Two loops share the states of the partitions: one asks where epochs end and truncates, the other fetches. A partition
begins in TRUNCATING with every new leader epoch (BUG-13), stays there until the epochs match (BUG-14), and is then
fetched from its own LEO. After every await three things are looked at again (BUG-12): is this still my state of the
partition, does the broker still follow in that epoch, is the LEO still where the fetch began.

A partition that fails is set aside and tried again later; the others go on.

A partition that is copied stands in `_positions`, of which a request has the changes only. `_unsettled` are those that have
conditions: they are not in sync, or set aside. So a round costs as much as there are changes, however many are followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.loop_budget import LoopBudget
from broker.replication.fetching.replication_throttle import ReplicationThrottle
from broker.replication.following import truncation
from broker.replication.following.fetch_session import NEWS_AT_ONCE
from broker.replication.following.leader_endpoint import (
    EARLIEST,
    LATEST,
    EpochAnswer,
    EpochQuestion,
    FetchPosition,
    FetchPositions,
    LeaderEndpoint,
    LeaderUnavailable,
)
from broker.replication.following.truncation import EpochEnd
from broker.replication.partition import Partition
from broker.storage.log import Log
from protocol.errors import ErrorCode, KafkaError, error_name
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequestPartition
from protocol.kafka.record_batch import in_pieces
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

QUESTIONS_AT_ONCE = 200
"""Partitions in a request for the ends of epochs; the others follow with the next. The leader answers in one turn of its loop."""
TAKEN_WITHOUT_A_PAUSE = 20
"""Partitions of an answer that do not share the budget of long work."""
PIECE_BYTES = 64 * 1024
"""Of records that are appended at a time."""
RETRY_S_MIN = 0.02
REFRESH_EVERY_S = 0.5
REFRESHES_UNTIL_ALL = 64
FAILURES_IN_PASSING = 4
"""So often, within a third of a second, a leader may not know yet that it leads."""


class Phase(Enum):
    """Where a followed partition is."""

    TRUNCATING = "finding where the logs agree"
    FETCHING = "copying"


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """A partition in one leader epoch. Another epoch makes another object: identity is the ownership check."""

    partition: Partition
    topic_id: uuid.UUID
    leader_epoch: int
    generation: int
    phase: Phase = Phase.TRUNCATING
    not_before: float = 0.0
    failures: int = 0
    is_in_sync: bool = False
    """It had all below the leader's HW after its last fetch; before the first one, it is in the ISR."""

    def log(self) -> Log | None:
        """The log, while this epoch is still followed."""
        return self.partition.follows(self.leader_epoch, self.generation)


class ReplicaFetcher:
    """`retry_s_max` is `replica.fetch.backoff.ms`; pauses start short and double up to it."""

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
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._truncating: dict[TopicPartition, FollowedPartition] = {}
        self._unsettled: dict[TopicPartition, FollowedPartition] = {}
        self._positions = FetchPositions()
        self._to_refresh: list[TopicPartition] = []
        self._refreshed_at = clock.monotonic()
        self._changed = asyncio.Event()
        self._budget = budget
        self._unavailable = {Phase.TRUNCATING: 0, Phase.FETCHING: 0}
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, followed: FollowedPartition) -> None:
        tp = followed.partition.tp
        self.remove(tp)
        self._followed[tp] = followed
        self._truncating[tp] = followed
        self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        """What is under way for it will find that it is not owned any more."""
        if self._followed.pop(tp, None) is not None:
            self._truncating.pop(tp, None)
            self._unsettled.pop(tp, None)
            self._positions.drop(tp)

    def phase_of(self, tp: TopicPartition) -> Phase | None:
        followed = self._followed.get(tp)
        return followed.phase if followed is not None else None

    def start(self) -> None:
        for phase in Phase:
            self._tasks.append(asyncio.create_task(self._run(phase), name=f"{self.name}-{phase.name.lower()}"))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._endpoint.close()

    # -- the loops ------------------------------------------------------------------------------------------------

    async def _run(self, phase: Phase) -> None:
        while True:
            self._changed.clear()
            pause_s = self._pause(phase)
            if pause_s is None or pause_s > 0:
                await _at_most(self._changed, pause_s)
                continue
            try:
                await (self.truncate_once() if phase is Phase.TRUNCATING else self.fetch_once())
            except LeaderUnavailable as error:
                self._unavailable[phase] += 1
                retry_s = self._retry_s(self._unavailable[phase])
                log.info("%s: leader unavailable, next try in %.2f s: %s", self.name, retry_s, error)
                # What is added meanwhile, as after the leader's return, is not to wait for an old pause.
                await _at_most(self._changed, retry_s)
            except Exception:
                # The task's boundary: a bug must not stop replication for good, nor spin.
                log.exception("%s: %s failed", self.name, phase.name)
                await asyncio.sleep(self._retry_s_max)
            else:
                self._unavailable[phase] = 0

    def _pause(self, phase: Phase) -> float | None:
        """Seconds until some partition of that phase is due; 0: now; None: there is none."""
        waiting = self._truncating
        if phase is Phase.FETCHING:
            waiting = self._unsettled
            if len(self._followed) > len(self._truncating) + len(self._unsettled):
                return 0.0
        now = self._clock.monotonic()
        free_at = now + min(self._throttle.free_in(), self._retry_s_max)
        due = None
        for followed in waiting.values():
            at = self._due_at(followed, free_at)
            if at <= now:
                return 0.0
            due = at if due is None else min(due, at)
        return None if due is None else due - now

    def _due_at(self, followed: FollowedPartition, free_at: float) -> float:
        """A throttled partition is not fetched before the throttle is free again."""
        if followed.phase is Phase.FETCHING and self._is_throttled(followed):
            return max(followed.not_before, free_at)
        return followed.not_before

    def _is_throttled(self, followed: FollowedPartition) -> bool:
        """KIP-73: what is in sync is never held up, or the throttle would hold up producers."""
        if followed.is_in_sync:
            return False
        partition_log = followed.log()
        return partition_log is not None and self._throttle.applies_to(
            partition_log.config, followed.partition.tp.partition
        )

    def _are_more_to_come(self) -> bool:
        """Some partition will be fetched in a moment: a fetch that is parked without it would hold it up."""
        return any(followed.failures <= FAILURES_IN_PASSING for followed in self._truncating.values())

    def _is_mine(self, followed: FollowedPartition) -> bool:
        return self._followed.get(followed.partition.tp) is followed

    def _retry_s(self, failures: int) -> float:
        return float(min(RETRY_S_MIN * 2 ** min(failures - 1, 20), self._retry_s_max))

    def _set_aside(self, followed: FollowedPartition, reason: object) -> None:
        """REP-9. A partition whose disk failed is not followed any more."""
        if not self._is_mine(followed):
            return
        followed.failures += 1
        if followed.phase is Phase.FETCHING:
            self._positions.drop(followed.partition.tp)
            self._unsettled[followed.partition.tp] = followed
        pause_s = self._retry_s(followed.failures)
        followed.not_before = self._clock.monotonic() + pause_s
        # The first time it is ordinary: the leader has not heard yet that it leads.
        level = logging.DEBUG if followed.failures == 1 else logging.INFO
        log.log(level, "%s: %s set aside for %.2f s: %s", self.name, followed.partition.tp, pause_s, reason)
        self._changed.set()

    def _enter(self, followed: FollowedPartition, phase: Phase) -> None:
        self._move_to(followed, phase)
        followed.failures = 0
        followed.not_before = 0.0
        self._changed.set()

    def _move_to(self, followed: FollowedPartition, phase: Phase) -> None:
        tp = followed.partition.tp
        followed.phase = phase
        self._positions.drop(tp)
        left, entered = self._unsettled, self._truncating
        if phase is Phase.FETCHING:
            left, entered = entered, left
        left.pop(tp, None)
        entered[tp] = followed

    # -- truncation -----------------------------------------------------------------------------------------------

    async def truncate_once(self) -> None:
        """One round of questions for the partitions that are due."""
        questions: dict[TopicPartition, EpochQuestion] = {}
        asked: dict[TopicPartition, FollowedPartition] = {}
        now = self._clock.monotonic()
        due = (followed for followed in self._truncating.values() if followed.not_before <= now)
        for followed in list(islice(due, QUESTIONS_AT_ONCE)):
            await self._budget.pause()
            if self._truncating.get(followed.partition.tp) is not followed:
                continue
            partition_log = followed.log()
            if partition_log is None:
                self.remove(followed.partition.tp)
                continue
            await partition_log.appendable()
            if not self._is_mine(followed):
                continue
            epoch = partition_log.leader_epochs.latest_epoch()
            if epoch == truncation.UNDEFINED_EPOCH:
                self._apply_truncation(followed, truncation.UNDEFINED)
                continue
            questions[followed.partition.tp] = EpochQuestion(followed.leader_epoch, epoch)
            asked[followed.partition.tp] = followed
        if not questions:
            return
        answers = await self._endpoint.epoch_ends(questions)
        for tp, followed in asked.items():
            self._take_answer(followed, questions[tp], answers.get(tp))
            await self._budget.pause()

    def _take_answer(self, followed: FollowedPartition, question: EpochQuestion, answer: EpochAnswer | None) -> None:
        partition_log = followed.log()
        if not self._is_mine(followed) or followed.phase is not Phase.TRUNCATING or partition_log is None:
            return
        if partition_log.leader_epochs.latest_epoch() != question.leader_epoch:
            return
        if answer is None or answer.error is not ErrorCode.NONE:
            self._set_aside(followed, "no answer" if answer is None else answer.error.name)
            return
        self._apply_truncation(followed, answer.end)

    def _apply_truncation(self, followed: FollowedPartition, leader_end: EpochEnd) -> None:
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
        try:
            partition.truncate(decision.offset)
        except KafkaError as error:
            self._set_aside(followed, error)
            return
        # What is to be written down before the next append is waited for before the next question, which finds nothing to cut.
        is_settled = partition_log.log_end_offset == end or not partition_log.is_point_behind
        self._enter(followed, Phase.FETCHING if decision.is_complete and is_settled else Phase.TRUNCATING)

    # -- fetching -------------------------------------------------------------------------------------------------

    async def fetch_once(self) -> None:
        """One Fetch for the partitions that are due, and its appends."""
        all_are_placed = await self._place_unsettled()
        self._refresh_some()
        if not self._positions:
            return
        self._positions.begin_request()
        is_short = not all_are_placed or self._are_more_to_come()
        answers = await self._endpoint.fetch(self._positions, is_short=is_short)
        # Producers wait for those that are in sync: they come before the many that catch up after a failover.
        in_order = sorted(answers, key=self._unsettled.__contains__)
        for at, tp in enumerate(in_order):
            # One that was moved, or given up, since it was asked for is asked for anew (BUG-12).
            if self._positions.is_as_asked(tp):
                followed = self._followed[tp]
                await self._take_data(followed, self._positions[tp].wanted.fetch_offset, answers[tp])
                if self._is_mine(followed) and tp in self._positions:
                    self._place(followed)
            if at >= TAKEN_WITHOUT_A_PAUSE:
                await self._budget.pause()

    async def _place_unsettled(self) -> bool:
        """Those that may be fetched now are; who is in sync and well stays with the others until it has news.

        False: some were not looked at. A request takes a hundred new ones, so the fetch of what is copied already does not wait
        for more; the next round goes on where this one ended.
        """
        now = self._clock.monotonic()
        free_at = now + self._throttle.free_in()
        for at, (tp, followed) in enumerate(list(self._unsettled.items())):
            if not self._positions:
                await self._budget.pause()
            elif len(self._positions.new) > NEWS_AT_ONCE or (at >= TAKEN_WITHOUT_A_PAUSE and self._budget.is_spent()):
                return False
            if self._unsettled.get(tp) is not followed:
                continue
            del self._unsettled[tp]
            if self._due_at(followed, free_at) > now:
                self._positions.drop(tp)
            elif tp not in self._positions:
                self._place(followed)
            if self._is_mine(followed) and not (followed.is_in_sync and tp in self._positions):
                self._unsettled[tp] = followed
        return True

    def _place(self, followed: FollowedPartition) -> None:
        """Its next fetch begins at its LEO."""
        partition_log = followed.log()
        if partition_log is None:
            self.remove(followed.partition.tp)
        else:
            self._positions[followed.partition.tp] = self._position(followed, partition_log)

    def _refresh_some(self) -> None:
        """What this broker did by itself, as retention, is told to the leader within half a minute."""
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
        if not self._is_mine(followed) or followed.phase is not Phase.FETCHING or partition_log is None:
            return
        if partition_log.log_end_offset != fetch_offset:
            return
        if data.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._out_of_range(followed, fetch_offset)
        elif data.error != ErrorCode.NONE:
            self._set_aside(followed, error_name(data.error))
        elif data.diverging_epoch is not None:
            # Before anything else in the answer (BUG-19).
            self._apply_truncation(followed, EpochEnd(*data.diverging_epoch))
        else:
            await self._append(followed, data)

    async def _append(self, followed: FollowedPartition, data: FetchPartitionData) -> None:
        """Piece by piece: ten megabytes of small batches take a quarter of a second. The rest comes to nothing when, in
        between, the partition is not followed any more in this epoch, or somebody else has moved its LEO (BUG-12)."""
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
            if not self._is_mine(followed) or partition_log is None or partition_log.log_end_offset != end:
                return
        followed.failures = 0
        followed.is_in_sync = partition_log is not None and partition_log.log_end_offset >= data.high_watermark
        if not followed.is_in_sync:
            self._unsettled[followed.partition.tp] = followed

    async def _out_of_range(self, followed: FollowedPartition, fetch_offset: int) -> None:
        """The LEO lies outside of the leader's log.

        Behind its start: what lies between was deleted there, so begin at its start. Beyond its end, or nowhere that
        its epochs explain: look for where the logs agree, again.
        """
        tp = followed.partition.tp
        try:
            start = await self._endpoint.list_offset(tp, followed.leader_epoch, EARLIEST)
            end = await self._endpoint.list_offset(tp, followed.leader_epoch, LATEST)
        except LeaderUnavailable as error:
            if self._is_mine(followed):
                self._set_aside(followed, error)
            return
        partition_log = followed.log()
        if not self._is_mine(followed) or partition_log is None or partition_log.log_end_offset != fetch_offset:
            return
        try:
            if fetch_offset < start:
                followed.partition.restart_at(start)
            elif fetch_offset > end:
                followed.partition.truncate(end)
        except KafkaError as error:
            self._set_aside(followed, error)
            return
        self._events.write("out_of_range", partition=str(tp), offset=fetch_offset, leader_start=start, leader_end=end)
        self._set_aside(followed, f"offset {fetch_offset} is not in the leader's {start}..{end}")
        self._move_to(followed, Phase.TRUNCATING)


async def _at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Waits for the event, but not longer."""
    # Not asyncio.wait_for: Python 3.11's loses a cancellation that comes together with the event.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
