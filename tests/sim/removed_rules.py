"""The rules against the classic bugs, each removed from the real code: a unit test or the simulation must notice each removal.

Each function of `REMOVALS` patches one rule away. What the rule says is in docs/RULES.md under "Classic bugs".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.replication import replica_state
from broker.replication.following import truncation
from broker.replication.following.followed_partitions import FollowedPartition, FollowedPartitions, Phase
from broker.replication.following.replica_fetcher import ReplicaFetcher
from broker.replication.following.truncation import EpochEnd, Truncation
from broker.replication.leadership_changes import LeadershipChanges
from broker.replication.partition import Partition
from broker.storage.leader_epochs import LeaderEpochCache
from controller.decisions import leader_election
from controller.decisions.bounces import Bounces
from protocol.errors import ErrorCode
from protocol.rpc.messages import PartitionState
from protocol.types import LeaderAndIsr


def _fetches_find_no_divergence(patch: pytest.MonkeyPatch) -> None:
    """Each fetch is a second look at where the logs agree: it alone makes good what a truncation left out."""
    patch.setattr(Partition, "divergence", lambda *args: None)


Removal = Callable[[pytest.MonkeyPatch], None]


def bug_1_truncation_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts to its own HW, whatever the leader's epochs say."""

    def decide(leader: EpochEnd, *, log_end_offset: int, high_watermark: int, local_end_of: Any) -> Truncation:
        return Truncation(min(high_watermark, log_end_offset), True)

    patch.setattr(truncation, "decide", decide)


def bug_2_the_isr_shrinks_in_memory(patch: pytest.MonkeyPatch) -> None:
    """The HW is taken over the proposed ISR, before ZooKeeper has it."""

    def maximal_isr(partition: Partition) -> tuple[int, ...]:
        return partition.isr if partition._proposal is None else partition._proposal.state.isr

    patch.setattr(Partition, "maximal_isr", maximal_isr)


def bug_3_fetches_without_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """The leader looks neither in which epoch a follower believes to be, nor of which epoch its last record is."""
    patch.setattr(Partition, "check_epoch", lambda partition, current_leader_epoch: None)
    _fetches_find_no_divergence(patch)


def half_of_bug_3_no_fencing(patch: pytest.MonkeyPatch) -> None:
    """Only the first half: that the logs diverged is still found."""
    patch.setattr(Partition, "check_epoch", lambda partition, current_leader_epoch: None)


def bug_9_joining_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """The start of the leader's epoch does not count for those who join the ISR."""

    def has_reached_isr(state: Any, *, high_watermark: int, epoch_start_offset: int) -> bool:
        return bool(state.log_end_offset >= high_watermark)

    patch.setattr(replica_state, "has_reached_isr", has_reached_isr)


def bug_13_the_same_leader_needs_no_truncation(patch: pytest.MonkeyPatch) -> None:
    """A new epoch of the leader that was followed last: it goes on where it was, and no fetch finds what it left."""
    original = LeadershipChanges._apply
    last_followed: dict[Partition, tuple[int, Phase]] = {}

    def apply(changes: LeadershipChanges, partition: Partition, state: PartitionState) -> None:
        before = _followed(changes, partition)
        if before is not None:
            last_followed[partition] = partition.leader, before[0].phase
        original(changes, partition, state)
        if state.leader == partition._context.own_id:
            last_followed.pop(partition, None)
        now, last = _followed(changes, partition), last_followed.get(partition)
        if now is not None and last is not None and last[0] == partition.leader and last[1] is not Phase.TRUNCATING:
            now[1]._followed.move(now[0], Phase.WAITING)

    patch.setattr(LeadershipChanges, "_apply", apply)
    _fetches_find_no_divergence(patch)


def _followed(changes: LeadershipChanges, partition: Partition) -> tuple[FollowedPartition, ReplicaFetcher] | None:
    """How far the partition is followed, and by whom."""
    fetcher = changes._fetchers._fetcher_of.get(partition.tp)
    return None if fetcher is None else (fetcher._followed[partition.tp], fetcher)


def bug_14_truncation_once(patch: pytest.MonkeyPatch) -> None:
    """One answer of the leader is taken for all, and no fetch finds what it left."""
    decide = truncation.decide
    patch.setattr(truncation, "decide", lambda *args, **kwargs: decide(*args, **kwargs)._replace(is_complete=True))
    _fetches_find_no_divergence(patch)


def bug_15_epochs_without_records_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An epoch is noted with its first record only."""
    make_leader = Partition.make_leader

    def forgetful(partition: Partition, state: PartitionState) -> None:
        assert partition.log is not None
        epochs = partition.log.leader_epochs
        partition.log.leader_epochs = LeaderEpochCache()
        make_leader(partition, state)
        partition.log.leader_epochs = epochs

    patch.setattr(Partition, "make_leader", forgetful)


def bug_6_isr_writes_after_a_conflict(patch: pytest.MonkeyPatch) -> None:
    """The controller repairs a state without a new leader epoch, so the leader does not take it and can never write again."""

    def without_epoch(state: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
        epoch = state.leader_epoch + (leader != state.leader)
        return LeaderAndIsr(leader, epoch, isr, controller_epoch, state.zk_version)

    patch.setattr(leader_election, "_next", without_epoch)


def bug_10_any_record_at_the_offset_counts(patch: pytest.MonkeyPatch) -> None:
    """A waiting producer is acknowledged when its offset is reached, in any leadership."""
    original = Partition.acknowledgement

    def acknowledgement(partition: Partition, required_offset: int, generation: int) -> ErrorCode | None:
        found = original(partition, required_offset, partition.generation)
        return None if found is ErrorCode.NOT_LEADER_OR_FOLLOWER else found

    patch.setattr(Partition, "acknowledgement", acknowledgement)


def bug_12_late_answers_are_taken(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks again after an await whether the partition is still followed in that epoch, and no fetch finds what came of it."""
    _fetches_find_no_divergence(patch)
    patch.setattr(FollowedPartition, "log", lambda followed: followed.partition.log)
    patch.setattr(FollowedPartitions, "holds", lambda partitions, followed: True)


def bug_16_bounces_before_a_term_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    """A new controller takes a leader that died and came back for one that has always been there."""
    patch.setattr(Bounces, "note", lambda bounces, states, mzxids: None)


def flt_33_an_emptied_disk_stands_for_the_records(patch: pytest.MonkeyPatch) -> None:
    """A member of the ISR that finds no log makes an empty one."""
    patch.setattr(LeadershipChanges, "is_log_missing", lambda changes, state: False)


REMOVALS: dict[str, Removal] = {
    function.__name__: function
    for function in (
        bug_1_truncation_to_the_high_watermark,
        bug_2_the_isr_shrinks_in_memory,
        bug_3_fetches_without_an_epoch,
        half_of_bug_3_no_fencing,
        bug_9_joining_at_the_high_watermark,
        bug_13_the_same_leader_needs_no_truncation,
        bug_14_truncation_once,
        bug_15_epochs_without_records_are_forgotten,
        bug_6_isr_writes_after_a_conflict,
        bug_10_any_record_at_the_offset_counts,
        bug_12_late_answers_are_taken,
        bug_16_bounces_before_a_term_are_not_seen,
        flt_33_an_emptied_disk_stands_for_the_records,
    )
}
