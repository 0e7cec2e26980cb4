"""One replica of one partition on this broker: its role, epoch, ISR and high watermark.

The log belongs to the storage; parked requests belong to the replica manager. All methods run on the loop without awaits, so
no other code sees a half-changed state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.process.topic_stats import BrokerTopicStats
from broker.replication import replica_state
from broker.replication.appending.refused_batches import REMEMBERED_S, RefusedBatches
from broker.replication.following.truncation import EpochEnd, has_diverged
from broker.replication.isr_updates import IsrOutcome, IsrProposal, IsrResult, IsrWriter
from broker.replication.replica_state import NEVER, FollowerState
from broker.settings.config import TopicConfig
from broker.storage.log import AppendInfo, Log
from broker.storage.log_types import AppendOrigin
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance, PlainBatch
from broker.storage.producers.producer_state import ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import PartitionState
from protocol.types import NO_EPOCH, NO_LEADER, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UP_TO_HIGH_WATERMARK: Final = -1
"""The offset in DeleteRecords that means the HW."""


class Role(Enum):
    """What this broker is for the partition."""

    STOPPED = "neither leads nor follows: no LeaderAndIsr yet, stopped by StopReplica, or the session is lost"
    LEADER = "leads"
    FOLLOWER = "copies from the leader, if there is one"
    OFFLINE = "its log directory failed"


class LeaderHint(NamedTuple):
    """The broker that a refused client should ask: `current_leader` in Produce and Fetch responses."""

    leader: int
    leader_epoch: int


NO_HINT: Final = LeaderHint(NO_LEADER, NO_EPOCH)
"""Of an error that asking another broker does not help."""


class Standstill:
    """When this process last stood still. Followers could not fetch during that time: their lag time starts again at `at` (FLT-5)."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("-inf")


class IsrStats:
    """Writes of the ISR by the leaders of this broker, for the metrics."""

    __slots__ = ("expands", "failed_updates", "shrinks")

    def __init__(self) -> None:
        self.shrinks = 0
        self.expands = 0
        self.failed_updates = 0

    def note(self, outcome: IsrOutcome, before: int, after: int) -> None:
        """`before`, `after`: the number of members."""
        self.failed_updates += outcome is not IsrOutcome.COMMITTED
        if outcome is IsrOutcome.COMMITTED:
            self.shrinks += after < before
            self.expands += after > before


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What all partitions of a broker share, and whom they inform. `lag_time_max_s` is `replica.lag.time.max.ms`."""

    own_id: int
    clock: Clock
    metadata: MetadataCache
    isr_writer: IsrWriter
    events: EventLog
    lag_time_max_s: float
    is_suspect: Callable[[], bool]
    high_watermark_moved: Callable[[TopicPartition], None]
    log_start_moved: Callable[[TopicPartition], None]
    follower_moved: Callable[[TopicPartition], None] = lambda tp: None
    """The high watermark of a follower moved, or its log was cut below it: consumers may read there (KIP-392)."""
    refused: RefusedBatches = field(default_factory=RefusedBatches)
    standstill: Standstill = field(default_factory=Standstill)
    topic_stats: BrokerTopicStats = field(default_factory=BrokerTopicStats)
    isr_stats: IsrStats = field(default_factory=IsrStats)


class Partition:
    """See the module. `generation` counts changes of role and leader epoch: a read or copy of an earlier one is void (BUG-12)."""

    def __init__(self, tp: TopicPartition, context: PartitionContext) -> None:
        self.tp = tp
        self._context = context
        self.role = Role.STOPPED
        self.topic_id: str | None = None
        self.log: Log | None = None
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.controller_epoch = NO_EPOCH
        self.generation = 0
        self.epoch_start_offset = 0
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.zk_version = -1
        self.high_watermark = 0
        self.followers: dict[int, FollowerState] = {}
        self.accepts_equal_epoch = False
        self.is_reassigning = False
        self.stats = context.topic_stats.replica_added(tp.topic)
        self._counted_end = 0
        self._counted_bytes = 0
        self._role_since = 0
        """The `generation` in which `role` began."""
        self._took_over_at_s: float | None = None
        """When this broker became leader after another one, or after an earlier life of its own. None: more than a minute ago."""
        self._proposal: IsrProposal | None = None
        self._proposals = 0
        self._isr_is_stale = False

    # -- who may ask ----------------------------------------------------------------------------------------------

    @property
    def hint(self) -> LeaderHint:
        return LeaderHint(self.leader, self.leader_epoch)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """REP-8. Compares with the leader epoch that the request names; -1: it names none. Raises KafkaError."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """The log, if this broker leads in that epoch. Raises KafkaError (REP-8)."""
        if self.role is Role.OFFLINE:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        self.check_epoch(current_leader_epoch)
        if self.role is not Role.LEADER or self.log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log

    def replica_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """The log, if this broker leads or follows in that epoch: for consumers that may read from a follower (KIP-392).

        Raises KafkaError (REP-8).
        """
        if self.role is not Role.FOLLOWER:
            return self.leader_log(current_leader_epoch)
        self.check_epoch(current_leader_epoch)
        if self.log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log

    def any_log(self) -> Log:
        """The log, whatever this broker is for the partition: for those who look at logs. Raises KafkaError."""
        if self.role is Role.OFFLINE:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log

    def removed(self) -> None:
        """This broker has no replica of the partition any more."""
        self._context.refused.forget(self.tp)
        self._context.topic_stats.replica_removed(self.tp.topic)

    # -- changes of role (LAI-4) ----------------------------------------------------------------------------------

    def attach(self, partition_log: Log, topic_id: str | None, high_watermark: int) -> None:
        """Gives the partition its log and its checkpointed high watermark."""
        self.replace_log(partition_log)
        self.topic_id = topic_id
        self._set_high_watermark(high_watermark)

    def replace_log(self, partition_log: Log) -> None:
        self.count_appended()
        self.log = partition_log
        self._begin_counting()

    def make_leader(self, state: PartitionState) -> None:
        """Leads from now on in `state.leader_epoch`, which starts at the LEO. Moves the HW if possible (BUG-22).

        The log is changed first and the epoch is published last, so the same request can be repeated after a failure (BUG-21).
        The log notes an epoch even if it never gets a record (BUG-15). The next flush writes its file.
        """
        assert self.log is not None
        self.log.leader_epochs.assign(state.leader_epoch, self.log.log_end_offset)
        now = self._context.clock.monotonic()
        if self.role is not Role.LEADER and state.leader_epoch > 0:
            self._took_over_at_s = now
        end = self.log.log_end_offset
        followers = {}
        for replica in state.replicas:
            if replica == self._context.own_id:
                continue
            follower = self.followers.get(replica, FollowerState())
            follower.start_epoch(in_isr=replica in state.isr, now=now)
            followers[replica] = follower
        self.followers = followers
        self.epoch_start_offset = end
        self._publish(state, Role.LEADER)
        self.advance_high_watermark()

    def make_follower(self, state: PartitionState) -> None:
        """Follows `state.leader`, or waits if there is no leader. The fetcher truncates the log (REP-6)."""
        self.followers = {}
        self._publish(state, Role.FOLLOWER)

    def stop(self, role: Role = Role.STOPPED) -> None:
        """Neither leads nor follows until the next LeaderAndIsr; OFFLINE: until the broker starts again."""
        self.count_appended()
        self.role = role
        self.leader = NO_LEADER
        self.generation += 1
        self._proposal = None
        self.followers = {}
        if role is Role.OFFLINE:
            self.log = None

    def count_appended(self) -> None:
        """Adds what producers have appended since the last call to the metrics."""
        if self.role is Role.LEADER and self.log is not None:
            end, size = self.log.log_end_offset, self.log.appended_bytes
            self.stats.messages_in += end - self._counted_end
            self.stats.bytes_in += size - self._counted_bytes
            self._counted_end, self._counted_bytes = end, size

    def _begin_counting(self) -> None:
        if self.log is not None:
            self._counted_end, self._counted_bytes = self.log.log_end_offset, self.log.appended_bytes

    def _publish(self, state: PartitionState, role: Role) -> None:
        self.count_appended()
        self._begin_counting()
        self.generation += 1
        self._proposal = None
        self._isr_is_stale = False
        self.accepts_equal_epoch = False
        self.leader = state.leader
        self.replicas = state.replicas
        self.is_reassigning = bool(state.adding or state.removing)
        self.isr = state.isr
        self.zk_version = state.zk_version
        self.controller_epoch = state.controller_epoch
        if role is not self.role:
            self._role_since = self.generation
        self.role = role
        self.leader_epoch = state.leader_epoch

    # -- the leader's side ----------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        *,
        acks: int,
        allowance: Allowance | None = None,
        accepted: AcceptedBefore | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Appends a batch of a client or a coordinator.

        Raises KafkaError (INV-17: nothing below min.insync.replicas), LogDirFailed, TakesLong.
        """
        partition_log = self.leader_log()
        if acks == -1 and len(self.isr) < partition_log.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} in-sync replicas, {partition_log.config.min_insync_replicas} needed",
            )
        if (self._context.refused or self._took_over_at_s is not None) and origin is AppendOrigin.CLIENT:
            producers, now = partition_log.producers.state, self._context.clock.monotonic()
            self._context.refused.check(self.tp, records, producers, now)
            if self._has_just_taken_over(now):
                self._context.refused.check_early(self.tp, records, producers, now)
        info = partition_log.append_as_leader(records, self.leader_epoch, allowance, accepted, origin)
        if len(self.isr) == 1:
            self.advance_high_watermark()
        return info

    def append_plain(self, batches: Sequence[PlainBatch], *, needs_all: bool, config: TopicConfig) -> Sequence[int]:
        """Appends batches of clients that are plain for `config` (`produced_batches.plain`), with one write.

        `needs_all`: one of them has acks=all. Returns the base offsets of those that are appended, the first ones, perhaps none. The
        next one needs `append_as_leader`, which may refuse it. Raises KafkaError and LogDirFailed: nothing is appended.
        """
        partition_log = self.leader_log()
        if partition_log.config is not config:
            return ()
        if needs_all and len(self.isr) < config.min_insync_replicas:
            return ()
        if self._context.refused or self._took_over_at_s is not None:
            batches = self._undoubted(batches, partition_log.producers.state)
        offsets = partition_log.append_plain(batches, self.leader_epoch)
        if offsets and len(self.isr) == 1:
            self.advance_high_watermark()
        return offsets

    def _has_just_taken_over(self, now: float) -> bool:
        if self._took_over_at_s is not None and now - self._took_over_at_s > REMEMBERED_S:
            self._took_over_at_s = None
        return self._took_over_at_s is not None

    def _undoubted(self, batches: Sequence[PlainBatch], producers: ProducerState) -> Sequence[PlainBatch]:
        """The first batches, up to one that may have to wait for an earlier one. `append_as_leader` decides about that one."""
        noted = self._context.refused.producers(self.tp)
        has_taken_over = self._has_just_taken_over(self._context.clock.monotonic())
        for at, (_, _, _, _, producer) in enumerate(batches):
            if producer is None:
                continue
            producer_id, _, sequence = producer
            is_unknown = has_taken_over and sequence > 0 and producer_id not in producers.producers
            if is_unknown or producer_id in noted:
                return batches[:at]
        return batches

    def last_stable_offset(self) -> int:
        """Up to where readers of committed records may read (LOG-7): the HW, or the start of the first transaction that may still change.

        It moves only with the HW and the log start. The partition has a log.
        """
        assert self.log is not None
        return self.log.last_stable_offset(self.high_watermark)

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The leader's answer to OffsetForLeaderEpoch; both -1 for an unknown epoch."""
        assert self.log is not None
        found = self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)
        return EpochEnd(*found)

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the fetcher's log diverges from this one. None: they agree, or the fetch does not have the epoch of its last record.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) if this log does not know the epoch.
        """
        if last_fetched_epoch == NO_EPOCH:
            return None
        end = self.end_of_epoch(last_fetched_epoch)
        if end.epoch == NO_EPOCH or end.end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return end if has_diverged(last_fetched_epoch, fetch_offset, end) else None

    def check_follower(self, replica: int, broker_epoch: int) -> bool:
        """Whether `record_follower_fetch` may be called for a fetch of this follower. Raises KafkaError.

        Only an assigned replica on a live broker may fetch as a follower, in the broker's current life (BUG-23, BAD-28). The
        metadata has the valid broker epoch. A broker may know its new epoch before this broker does, so a fetch with a newer epoch
        is served. But any client can claim a newer epoch: such a fetch is not recorded, and gets committed records only.
        """
        live = self._context.metadata.broker(replica)
        if replica not in self.followers or live is None or broker_epoch < live.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return broker_epoch == live.epoch

    def record_follower_fetch(self, replica: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """REP-1 steps 4 to 6, for a fetch in the current epoch without an error or a divergence (INV-12).

        To be called only if `check_follower` is True for the fetch.
        """
        assert self.log is not None
        follower = self.followers[replica]
        now = self._context.clock.monotonic()
        follower.record_fetch(fetch_offset, self.log.log_end_offset, now, broker_epoch)
        if log_start_offset != follower.log_start_offset:
            follower.log_start_offset = log_start_offset
            self._context.log_start_moved(self.tp)
        if replica not in self.isr:
            self._expand_if_possible()
        self.advance_high_watermark()

    def maximal_isr(self) -> tuple[int, ...]:
        """Committed plus proposed members (INV-10)."""
        if self._proposal is None:
            return self.isr
        return tuple(dict.fromkeys(self.isr + self._proposal.state.isr))

    def is_followed_since(self, since: float) -> bool:
        """Whether every other member of the ISR has fetched from this leader at `since` or later."""
        return all(heard_at >= since for heard_at in self.heard_of_isr().values())

    def heard_of_isr(self) -> Mapping[int, float]:
        """When each other member of the ISR has last fetched from this leader; NEVER without a fetch."""
        others = {replica: self.followers.get(replica) for replica in self.maximal_isr()}
        others.pop(self._context.own_id, None)
        return {replica: NEVER if state is None else state.heard_at for replica, state in others.items()}

    def advance_high_watermark(self) -> bool:
        """Moves the HW as far as the maximal ISR allows. If it moved, returns True and calls `high_watermark_moved`.

        This replica counts up to the `claimable_end` of its log.
        """
        if self._isr_is_stale or self.log is None or self.role is not Role.LEADER:
            return False
        maximal = self.isr if self._proposal is None else self.maximal_isr()
        reached = end = self.log.claimable_end
        if self.followers or end < self.high_watermark:
            reached = replica_state.high_watermark(
                current=self.high_watermark,
                leader_end_offset=end,
                followers=self.followers,
                maximal_isr=maximal,
                joining=() if len(maximal) > len(self.followers) else self._joining(maximal, self.log.log_end_offset),
            )
        if reached == self.high_watermark:
            return False
        self.high_watermark = reached
        if self.log.producers.state.unreplicated:
            self.log.last_stable_offset(reached)
        self._context.high_watermark_moved(self.tp)
        return True

    def _joining(self, maximal: tuple[int, ...], end: int) -> list[int]:
        now = self._context.clock.monotonic()
        return [
            replica
            for replica, follower in self.followers.items()
            if replica not in maximal
            and follower.is_caught_up(end, now, self._context.lag_time_max_s)
            and self._is_current_life(replica, follower)
        ]

    def acknowledgement(self, required_offset: int, generation: int) -> ErrorCode | None:
        """The answer to a producer with acks=all that waits for the HW to reach `required_offset`; None: it still waits.

        A producer of an earlier leadership is never acknowledged: its record may have been cut and replaced (BUG-10).
        """
        partition_log = self._still_led(generation)
        if isinstance(partition_log, ErrorCode):
            return partition_log
        if self.high_watermark < required_offset:
            return None
        if len(self.isr) < partition_log.config.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def leader_acknowledgement(self, required_offset: int, generation: int) -> ErrorCode | None:
        """As `acknowledgement`, for acks=1: waits for the log's `claimable_end` to reach `required_offset`."""
        partition_log = self._still_led(generation)
        if isinstance(partition_log, ErrorCode):
            return partition_log
        return ErrorCode.NONE if partition_log.claimable_end >= required_offset else None

    def _still_led(self, generation: int) -> Log | ErrorCode:
        """The log, if this broker has led since before that generation."""
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.role is not Role.LEADER or self.log is None or generation < self._role_since:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.log

    def delete_records(self, before: int) -> int:
        """Stops serving records below `before` (-1: the HW) (LOG-1). Returns the offset, also for -1.

        Raises KafkaError: OFFSET_OUT_OF_RANGE above the HW or below -1, POLICY_VIOLATION for a topic that is only compacted, and
        the errors of `leader_log`; LogDirFailed.
        """
        partition_log = self.leader_log()
        if "delete" not in partition_log.config.cleanup_policy:
            policy = partition_log.config.cleanup_policy
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{self.tp}: cleanup.policy={policy} does not contain delete")
        offset = self.high_watermark if before == UP_TO_HIGH_WATERMARK else before
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp}: offset {offset} is not in 0..{self.high_watermark}, the high watermark",
            )
        partition_log.increment_log_start(offset)
        return offset

    def low_watermark(self) -> int:
        """The least log start of the leader and its live followers; -1 if a live follower has not fetched yet. Raises KafkaError."""
        starts = [follower.log_start_offset for replica, follower in self.followers.items() if self._lives(replica)]
        return min([self.leader_log().log_start_offset, *starts])

    def _lives(self, replica: int) -> bool:
        return self._context.metadata.broker(replica) is not None

    # -- ISR changes (REP-3) --------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether `shrink_if_lagging` and `look_again` have nothing to do here, however much time has passed.

        The ISR has every replica, each is at the log end, and so is the HW. It is asked of each partition every few seconds.
        """
        if self.role is not Role.LEADER:
            return True
        partition_log, followers, isr = self.log, self.followers, self.isr
        if partition_log is None or len(isr) != len(followers) + 1:
            return False
        end = partition_log.log_end_offset
        if self.high_watermark != end:
            return False
        if followers:
            own_id = self._context.own_id
            for member in isr:
                if member != own_id:
                    follower = followers.get(member)
                    if follower is None or follower.log_end_offset != end:
                        return False
        return True

    def shrink_if_lagging(self) -> bool:
        """Proposes the ISR without the members that have lagged for too long. Returns whether there was such a proposal."""
        if self.role is not Role.LEADER or self.log is None or not self._may_propose():
            return False
        lagging = replica_state.lagging_members(
            self.isr,
            self.followers,
            own_id=self._context.own_id,
            leader_end_offset=self.log.log_end_offset,
            now=self._context.clock.monotonic(),
            lag_time_max_s=self._context.lag_time_max_s,
            stood_still_at=self._context.standstill.at,
        )
        if not lagging:
            return False
        self._propose_without(lagging)
        return True

    def look_again(self) -> None:
        """To be called when time has passed or the live brokers changed: more followers may join, or the HW may move."""
        if self.role is Role.LEADER:
            self._expand_if_possible()
            self.advance_high_watermark()

    def _may_propose(self) -> bool:
        return self._proposal is None and not self._isr_is_stale and not self._context.is_suspect()

    def _is_current_life(self, replica: int, follower: FollowerState) -> bool:
        """INV-14: the broker is live, and the follower's last fetch was in this life of the broker."""
        live = self._context.metadata.broker(replica)
        return live is not None and live.epoch == follower.broker_epoch

    def _expand_if_possible(self) -> None:
        """Proposes the ISR with all followers that may join. A follower whose last fetch is older than the lag time may not."""
        if len(self.isr) > len(self.followers) or not self._may_propose():
            return
        fetched_since = self._context.clock.monotonic() - self._context.lag_time_max_s
        newcomers = {
            replica: follower.broker_epoch
            for replica, follower in self.followers.items()
            if replica not in self.isr
            and follower.fetched_at >= fetched_since
            and replica_state.has_reached_isr(
                follower, high_watermark=self.high_watermark, epoch_start_offset=self.epoch_start_offset
            )
            and self._is_current_life(replica, follower)
        }
        if newcomers:
            self._propose((*self.isr, *newcomers), newcomers)

    def _propose_without(self, leaving: tuple[int, ...]) -> None:
        self._propose(tuple(member for member in self.isr if member not in leaving), {})

    def _propose(self, isr: tuple[int, ...], newcomers: dict[int, int]) -> None:
        assert self._context.own_id in isr
        state = LeaderAndIsr(self.leader, self.leader_epoch, isr, self.controller_epoch, self.zk_version)
        # The closures hold a number and not the proposal: a proposal that refers to itself is freed only by the garbage
        # collector, and there may be ten thousand.
        number = self._proposals = self._proposals + 1
        proposal = IsrProposal(
            self.tp,
            state,
            newcomers,
            is_wanted=lambda: self._is_under_way(number),
            on_result=lambda result: self._isr_answered(number, result),
            isr_before=self.isr,
        )
        log.info("%s: ISR %s -> %s proposed in epoch %d", self.tp, self.isr, isr, self.leader_epoch)
        self._proposal = proposal
        self._context.isr_writer.propose(proposal)

    def _is_under_way(self, number: int) -> bool:
        return self._proposal is not None and self._proposals == number

    def _isr_answered(self, number: int, result: IsrResult) -> None:
        if not self._is_under_way(number):
            return
        self._proposal = None
        self._context.isr_stats.note(result.outcome, len(self.isr), len(result.state.isr))
        if result.outcome is IsrOutcome.CONFLICT:
            self._isr_is_stale = True
            return
        if result.outcome is IsrOutcome.COMMITTED:
            self.isr = result.state.isr
            self.zk_version = result.state.zk_version
            doubtful = tuple(member for member in result.doubtful if member in self.isr)
            if doubtful and self._may_propose():
                self._propose_without(doubtful)
            else:
                self._expand_if_possible()
        self.advance_high_watermark()

    # -- the follower's side --------------------------------------------------------------------------------------

    def follows(self, leader_epoch: int, generation: int) -> Log | None:
        """The log, if this broker still follows in that epoch and generation. None: the fetched records are void."""
        if self.role is Role.FOLLOWER and self.leader_epoch == leader_epoch and self.generation == generation:
            return self.log
        return None

    def append_as_follower(self, records: memoryview | None, leader_high_watermark: int, leader_log_start: int) -> None:
        """REP-1 steps 8 and 9. The caller has called `follows` and compared the LEO with the fetched offset."""
        assert self.log is not None
        if records is not None and len(records):
            self.log.append_as_follower(records)
            self._context.topic_stats.replication_bytes_in += len(records)
        if leader_log_start > self.log.log_start_offset and leader_log_start <= self.log.log_end_offset:
            self.log.increment_log_start(leader_log_start)
        before = self.high_watermark
        self._set_high_watermark(leader_high_watermark)
        if self.high_watermark != before:
            self._context.follower_moved(self.tp)

    def truncate(self, offset: int, *, is_noted: bool = False) -> None:
        """Cuts the log at `offset`: the leader does not have the later records. `is_noted`: `note_truncation` was called."""
        assert self.log is not None
        end = self.log.log_end_offset
        if offset >= end:
            # This log may have an epoch without records, which starts at its end. The leader may not have it.
            self.log.leader_epochs.truncate_from_end(end)
            return
        if not is_noted:
            self.note_truncation(offset)
        if offset < self.log.log_start_offset:
            self.log.truncate_fully_and_start_at(offset)
        else:
            self.log.truncate_to(offset)
        self._follow_log_end()

    def cut_part(self, offset: int) -> None:
        """Cuts the log at `Log.next_cut`, on the way to a truncation."""
        assert self.log is not None
        self.log.truncate_to(offset)
        self._follow_log_end()

    def restart_at(self, offset: int, *, is_noted: bool = False) -> None:
        """Empties the log, which ends below the leader's log start, and continues at that offset."""
        assert self.log is not None
        if not is_noted:
            self.note_truncation(offset, fully=True)
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset
        self._context.follower_moved(self.tp)

    def note_truncation(self, offset: int, *, fully: bool = False) -> None:
        """Writes the event of a truncation. A cut below the HW, possible only after an unclean election, is logged as an error."""
        assert self.log is not None
        if fully:
            self._context.events.write(
                "truncation",
                partition=str(self.tp),
                leader_epoch=self.leader_epoch,
                from_offset=self.log.log_end_offset,
                to_offset=offset,
                fully=True,
            )
            return
        self._context.events.write(
            "truncation",
            partition=str(self.tp),
            leader_epoch=self.leader_epoch,
            from_offset=self.log.log_end_offset,
            to_offset=offset,
            high_watermark=self.high_watermark,
        )
        if offset < self.high_watermark:
            log.error("%s: truncating to %d, below the high watermark %d", self.tp, offset, self.high_watermark)

    def _follow_log_end(self) -> None:
        assert self.log is not None
        if self.log.log_end_offset < self.high_watermark:
            self.high_watermark = self.log.log_end_offset
            self._context.follower_moved(self.tp)

    def _set_high_watermark(self, offset: int) -> None:
        """Sets the HW, never backward and never outside of [log start, LEO] (INV-11)."""
        assert self.log is not None
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset, min(offset, self.log.log_end_offset))
        if self.log.producers.state.unreplicated:
            self.log.last_stable_offset(self.high_watermark)
