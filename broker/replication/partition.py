"""One replica of one partition on this broker: its role, epoch, ISR and high watermark.

The log is the storage's; who waits for what is the replica manager's. All of it runs on the loop, without awaits: no
state is ever seen half changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from broker.cluster.metadata_cache import MetadataCache
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from broker.replication import replica_state
from broker.replication.appending.refused_batches import RefusedBatches
from broker.replication.following.truncation import EpochEnd, has_diverged
from broker.replication.isr_updates import IsrProposal, IsrResult, IsrWriter, Outcome
from broker.replication.replica_state import FollowerState
from broker.storage.log import AppendInfo, Log
from broker.storage.producers.produced_batches import AcceptedBefore, Allowance
from protocol.errors import ErrorCode, KafkaError
from protocol.rpc.messages import PartitionState
from protocol.types import NO_EPOCH, NO_LEADER, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UP_TO_HIGH_WATERMARK = -1
"""The offset in DeleteRecords that stands for the HW."""


class Role(Enum):
    """What this broker is for the partition."""

    STOPPED = "neither leads nor follows: not told yet, told to stop, or its session is lost"
    LEADER = "leads"
    FOLLOWER = "copies from the leader, if there is one"
    OFFLINE = "its log directory failed"


class LeaderHint(NamedTuple):
    """Whom a refused client should ask: `current_leader` in Produce and Fetch responses."""

    leader: int
    leader_epoch: int


class Forgiveness:
    """When this process last stood still, so that its followers could not fetch: they have the lag time anew from `at` (FLT-5)."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("-inf")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions of a broker share. `lag_time_max_s` is `replica.lag.time.max.ms`."""

    own_id: int
    clock: Clock
    metadata: MetadataCache
    isr_writer: IsrWriter
    events: EventLog
    lag_time_max_s: float
    is_suspect: Callable[[], bool]
    high_watermark_moved: Callable[[TopicPartition], None]
    log_start_moved: Callable[[TopicPartition], None]
    refused: RefusedBatches = field(default_factory=RefusedBatches)
    forgiveness: Forgiveness = field(default_factory=Forgiveness)


class Partition:
    """See the module. `generation` counts changes of leadership: what began in another one is void (BUG-12)."""

    def __init__(self, tp: TopicPartition, surroundings: Surroundings) -> None:
        self.tp = tp
        self._world = surroundings
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
        self._leadership_began = 0
        self._proposal: IsrProposal | None = None
        self._proposals = 0
        self._isr_is_stale = False

    # -- who may ask ----------------------------------------------------------------------------------------------

    @property
    def hint(self) -> LeaderHint:
        return LeaderHint(self.leader, self.leader_epoch)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """REP-8. The epoch that the asker believes in; -1: it does not say."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def leader_log(self, current_leader_epoch: int = NO_EPOCH) -> Log:
        """The log, if this broker leads in that epoch. Raises KafkaError as REP-8 says."""
        if self.role is Role.OFFLINE:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        self.check_epoch(current_leader_epoch)
        if self.role is not Role.LEADER or self.log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log

    # -- changes of role (LAI-4) ----------------------------------------------------------------------------------

    def attach(self, partition_log: Log, topic_id: str | None, high_watermark: int) -> None:
        """Gives the partition its log, with the high watermark of the checkpoint."""
        self.log = partition_log
        self.topic_id = topic_id
        self._set_high_watermark(high_watermark)

    def make_leader(self, state: PartitionState) -> None:
        """Leads from now on, in `state.leader_epoch`, which starts at the LEO; the HW moves if it can (BUG-22).

        The log comes first and the epoch is published last: after a failure the same request can be taken again (BUG-21). An
        epoch is noted even if no record of it ever comes (BUG-15); its file is written soon (`storage/flushing.py`).
        """
        assert self.log is not None
        self.log.leader_epochs.assign(state.leader_epoch, self.log.log_end_offset)
        now = self._world.clock.monotonic()
        end = self.log.log_end_offset
        followers = {}
        for replica in state.replicas:
            if replica == self._world.own_id:
                continue
            follower = self.followers.get(replica, FollowerState())
            follower.start_epoch(in_isr=replica in state.isr, now=now)
            followers[replica] = follower
        self.followers = followers
        self.epoch_start_offset = end
        self._publish(state, Role.LEADER)
        self.advance_high_watermark()

    def make_follower(self, state: PartitionState) -> None:
        """Follows `state.leader`, or waits for a leader if there is none. The fetcher truncates (REP-6)."""
        self.followers = {}
        self._publish(state, Role.FOLLOWER)

    def stop(self, role: Role = Role.STOPPED) -> None:
        """Neither leads nor follows until the next LeaderAndIsr."""
        self.role = role
        self.leader = NO_LEADER
        self.generation += 1
        self._proposal = None
        self.followers = {}
        if role is Role.OFFLINE:
            self.log = None

    def _publish(self, state: PartitionState, role: Role) -> None:
        self.generation += 1
        self._proposal = None
        self._isr_is_stale = False
        self.accepts_equal_epoch = False
        self.leader = state.leader
        self.replicas = state.replicas
        self.isr = state.isr
        self.zk_version = state.zk_version
        self.controller_epoch = state.controller_epoch
        if role is not self.role:
            self._leadership_began = self.generation
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
    ) -> AppendInfo:
        """Appends a producer's batch. Raises KafkaError (INV-17: nothing is appended below min.insync), LogDirFailed, TakesLong."""
        partition_log = self.leader_log()
        if acks == -1 and len(self.isr) < partition_log.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} in-sync replicas, {partition_log.config.min_insync_replicas} needed",
            )
        if self._world.refused:
            producers = partition_log.producers.state
            self._world.refused.check(self.tp, records, producers, self._world.clock.monotonic())
        info = partition_log.append_as_leader(records, self.leader_epoch, allowance, accepted)
        if len(self.isr) == 1:
            self.advance_high_watermark()
        return info

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The leader's answer to OffsetForLeaderEpoch; both -1: no such epoch."""
        assert self.log is not None
        found = self.log.leader_epochs.end_offset_for(epoch, self.log.log_end_offset)
        return EpochEnd(*found)

    def divergence(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where a fetcher's log left this one, if it says which epoch its last record has; None: they agree."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        end = self.end_of_epoch(last_fetched_epoch)
        if end.epoch == NO_EPOCH or end.end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return end if has_diverged(last_fetched_epoch, fetch_offset, end) else None

    def check_follower(self, replica: int, broker_epoch: int) -> bool:
        """Whether a fetch as this follower counts: `record_follower_fetch` may be called for it. Raises KafkaError.

        A fetch as a follower is for assigned replicas on live brokers, in their current life (BUG-23, BAD-28). Only the
        broker epoch that the metadata has counts. A broker may know its new epoch before this one does, so a fetch in a
        newer epoch is served. But any client can claim one, so such a fetch moves nothing, nothing of it is kept, and it gets
        committed records only.
        """
        live = self._world.metadata.broker(replica)
        if replica not in self.followers or live is None or broker_epoch < live.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return broker_epoch == live.epoch

    def record_follower_fetch(self, replica: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """REP-1 steps 4 to 6, for a fetch without error and without divergence in the current epoch (INV-12).

        Only for a fetch that `check_follower` lets count.
        """
        assert self.log is not None
        follower = self.followers[replica]
        now = self._world.clock.monotonic()
        follower.record_fetch(fetch_offset, self.log.log_end_offset, now, broker_epoch)
        if log_start_offset != follower.log_start_offset:
            follower.log_start_offset = log_start_offset
            self._world.log_start_moved(self.tp)
        if replica not in self.isr:
            self._expand_if_possible()
        self.advance_high_watermark()

    def maximal_isr(self) -> tuple[int, ...]:
        """Committed plus proposed members (INV-10)."""
        if self._proposal is None:
            return self.isr
        return tuple(dict.fromkeys(self.isr + self._proposal.state.isr))

    def is_followed_since(self, since: float) -> bool:
        """Has every other member of the ISR fetched from this leader since then? None of them led at that time."""
        others = (self.followers.get(replica) for replica in self.maximal_isr() if replica != self._world.own_id)
        return all(follower is not None and follower.heard_at >= since for follower in others)

    def advance_high_watermark(self) -> bool:
        """Moves the HW as far as the maximal ISR allows; tells the replica manager. True: it moved."""
        if self._isr_is_stale or self.log is None or self.role is not Role.LEADER:
            return False
        maximal = self.maximal_isr()
        end = self.log.log_end_offset
        reached = replica_state.high_watermark(
            current=self.high_watermark,
            leader_end_offset=end,
            followers=self.followers,
            maximal_isr=maximal,
            joining=() if len(maximal) > len(self.followers) else self._joining(maximal, end),
        )
        if reached == self.high_watermark:
            return False
        self.high_watermark = reached
        self._world.high_watermark_moved(self.tp)
        return True

    def _joining(self, maximal: tuple[int, ...], end: int) -> list[int]:
        now = self._world.clock.monotonic()
        return [
            replica
            for replica, follower in self.followers.items()
            if replica not in maximal
            and follower.is_caught_up(end, now, self._world.lag_time_max_s)
            and self._is_current_life(replica, follower)
        ]

    def acknowledgement(self, required_offset: int, generation: int) -> ErrorCode | None:
        """What a producer with acks=all gets that waits for the HW to reach `required_offset`; None: it waits on.

        A producer of another generation is never acknowledged: its record may have been cut and replaced (BUG-10).
        """
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.role is not Role.LEADER or self.log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if generation < self._leadership_began:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.high_watermark < required_offset:
            return None
        if len(self.isr) < self.log.config.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def delete_records(self, before: int) -> int:
        """Records below `before` (-1: the HW) are not served from now on (LOG-1). Returns the offset that -1 stands for.

        Raises KafkaError: OFFSET_OUT_OF_RANGE above the HW, POLICY_VIOLATION for a topic that is compacted only; LogDirFailed.
        """
        partition_log = self.leader_log()
        if "delete" not in partition_log.config.cleanup_policy:
            policy = partition_log.config.cleanup_policy
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{self.tp}: cleanup.policy={policy}, nothing is deleted by offset"
            )
        offset = self.high_watermark if before == UP_TO_HIGH_WATERMARK else before
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp}: {offset}, the high watermark is {self.high_watermark}"
            )
        partition_log.increment_log_start(offset)
        return offset

    def low_watermark(self) -> int:
        """The least log start of the leader and the live followers, -1 while one of these has not fetched yet."""
        starts = [follower.log_start_offset for replica, follower in self.followers.items() if self._lives(replica)]
        return min([self.leader_log().log_start_offset, *starts])

    def _lives(self, replica: int) -> bool:
        return self._world.metadata.broker(replica) is not None

    # -- ISR changes (REP-3) --------------------------------------------------------------------------------------

    def shrink_if_lagging(self) -> bool:
        """Proposes the ISR without the members that lag too long. True: proposed."""
        if self.role is not Role.LEADER or self.log is None or not self._may_propose():
            return False
        lagging = replica_state.lagging_members(
            self.isr,
            self.followers,
            own_id=self._world.own_id,
            leader_end_offset=self.log.log_end_offset,
            now=self._world.clock.monotonic(),
            lag_time_max_s=self._world.lag_time_max_s,
            forgiven_at=self._world.forgiveness.at,
        )
        if not lagging:
            return False
        self._propose_without(lagging)
        return True

    def look_again(self) -> None:
        """Time has passed, or other brokers are live: who may join, and whom the HW waits for, may have changed."""
        if self.role is Role.LEADER:
            self._expand_if_possible()
            self.advance_high_watermark()

    def _may_propose(self) -> bool:
        return self._proposal is None and not self._isr_is_stale and not self._world.is_suspect()

    def _is_current_life(self, replica: int, follower: FollowerState) -> bool:
        """INV-14: the broker is live, and it was this life of it that fetched."""
        live = self._world.metadata.broker(replica)
        return live is not None and live.epoch == follower.broker_epoch

    def _expand_if_possible(self) -> None:
        """Proposes the ISR with all followers that may join. One whose last fetch is too old may not."""
        if len(self.isr) > len(self.followers) or not self._may_propose():
            return
        fetched_since = self._world.clock.monotonic() - self._world.lag_time_max_s
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
        assert self._world.own_id in isr
        state = LeaderAndIsr(self.leader, self.leader_epoch, isr, self.controller_epoch, self.zk_version)
        # Not the proposal itself: it would refer to itself, and ten thousand of them would be left to the garbage collector.
        number = self._proposals = self._proposals + 1
        proposal = IsrProposal(
            self.tp,
            state,
            newcomers,
            is_wanted=lambda: self._is_under_way(number),
            on_result=lambda result: self._isr_answered(number, result),
        )
        log.info("%s: ISR %s -> %s proposed in epoch %d", self.tp, self.isr, isr, self.leader_epoch)
        self._proposal = proposal
        self._world.isr_writer.propose(proposal)

    def _is_under_way(self, number: int) -> bool:
        return self._proposal is not None and self._proposals == number

    def _isr_answered(self, number: int, result: IsrResult) -> None:
        if not self._is_under_way(number):
            return
        self._proposal = None
        if result.outcome is Outcome.CONFLICT:
            self._isr_is_stale = True
            return
        if result.outcome is Outcome.COMMITTED:
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
        """The log, while this broker still follows in that epoch and generation; else what was fetched is void."""
        if self.role is Role.FOLLOWER and self.leader_epoch == leader_epoch and self.generation == generation:
            return self.log
        return None

    def append_as_follower(self, records: memoryview | None, leader_high_watermark: int, leader_log_start: int) -> None:
        """REP-1 steps 8 and 9. The caller has asked `follows` and compared the LEO with the fetched offset."""
        assert self.log is not None
        if records is not None and len(records):
            self.log.append_as_follower(records)
        if leader_log_start > self.log.log_start_offset and leader_log_start <= self.log.log_end_offset:
            self.log.increment_log_start(leader_log_start)
        self._set_high_watermark(leader_high_watermark)

    def truncate(self, offset: int) -> None:
        """Cuts what the leader does not have. Below the HW only after an unclean election, which is told."""
        assert self.log is not None
        end = self.log.log_end_offset
        if offset >= end:
            # An epoch of our own that got no record lies at the end and may not be the leader's.
            self.log.leader_epochs.truncate_from_end(end)
            return
        self._world.events.write(
            "truncation",
            partition=str(self.tp),
            leader_epoch=self.leader_epoch,
            from_offset=end,
            to_offset=offset,
            high_watermark=self.high_watermark,
        )
        if offset < self.high_watermark:
            log.error("%s: truncating to %d, below the high watermark %d", self.tp, offset, self.high_watermark)
        if offset < self.log.log_start_offset:
            self.log.truncate_fully_and_start_at(offset)
        else:
            self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)

    def restart_at(self, offset: int) -> None:
        """Empties the log and goes on at the leader's log start: what lies between is deleted there."""
        assert self.log is not None
        self._world.events.write(
            "truncation",
            partition=str(self.tp),
            leader_epoch=self.leader_epoch,
            from_offset=self.log.log_end_offset,
            to_offset=offset,
            fully=True,
        )
        self.log.truncate_fully_and_start_at(offset)
        self.high_watermark = offset

    def _set_high_watermark(self, offset: int) -> None:
        """Never backward, never outside of [log start, LEO] (INV-11)."""
        assert self.log is not None
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset, min(offset, self.log.log_end_offset))
