"""Elects leaders: for new partitions, after a failure, and for balance (CTL-5, CTL-6, CTL-12)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from controller.announcements import Announcement
from controller.decisions import leader_election
from controller.partition_status import PartitionStatus
from controller.replica_status import ReplicaStatus
from controller.term import Term
from protocol.types import LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UNCLEAN_KEY = "unclean.leader.election.enable"


async def elect_after_failure(
    term: Term, partitions: Iterable[TopicPartition], announcement: Announcement, *, reason: str
) -> None:
    """CTL-5 for partitions without a leader. A topic's settings are read only if no member of an ISR is live (INV-18).

    A leader that lost its log (FLT-33) has not led in its epoch, so the ISR before its election counts.
    """
    cluster = term.cluster
    live = cluster.live
    unclean: dict[str, bool] = {}

    async def read_settings(waiting: Sequence[TopicPartition]) -> None:
        stuck = {tp.topic for tp in waiting if cluster.with_disk(tp, live).isdisjoint(cluster.leadership[tp].isr)}
        topics = stuck - unclean.keys()
        for topic, config in (await term.store.topic_configs(topics)).items():
            own = config.get(UNCLEAN_KEY)
            unclean[topic] = term.settings.unclean_leader_election_enable if own is None else own.lower() == "true"

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        if cluster.is_online(tp, state.leader):
            return None  # it has a leader by now
        if state.leader in cluster.emptied_replicas.get(tp, ()) and tp in cluster.isr_before:
            epoch, isr = cluster.isr_before[tp]
            state = state._replace(isr=isr) if epoch == state.leader_epoch else state
        replicas, able = cluster.assignment(tp).replicas, cluster.with_disk(tp, live)
        new = leader_election.after_failure(
            state, replicas, able, cluster.epoch, unclean_allowed=unclean.get(tp.topic, False)
        )
        if new is not None and leader_election.is_unclean(state, new):
            log.warning("%s: unclean election of broker %d, the ISR was %s", tp, new.leader, state.isr)
            term.stats.unclean_elections += 1
            term.events.write("unclean_election", partition=str(tp), leader=new.leader, isr_before=list(state.isr))
        return new

    def usual(some: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        if cluster.failed_replicas or cluster.emptied_replicas:
            return {}
        states = zip(some, map(cluster.leadership.__getitem__, some), strict=True)
        without_leader = (
            (tp, state, cluster.assignment(tp).replicas) for tp, state in states if state.leader not in cluster.brokers
        )
        return leader_election.each_after_failure(without_leader, live, cluster.epoch)

    await term.change(partitions, decide, announcement, reason=reason, prepare=read_settings, usual=usual)


async def take_out_of_isr(
    term: Term,
    partitions: Iterable[TopicPartition],
    gone: Collection[int],
    announcement: Announcement,
    *,
    reason: str,
    reads: bool = True,
) -> None:
    """Removes these brokers and all failed replicas, except leaders, from the ISRs, in a new leader epoch (BUG-6).

    With `reads`, if nothing would change, it decides again on ZooKeeper's state: the leader may just have added one of these brokers.
    Pass False if the states were just read.
    """

    all_gone = frozenset(gone)
    failed_replicas, epoch = term.cluster.failed_replicas, term.cluster.epoch

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        failed = failed_replicas.get(tp) if failed_replicas else None
        return leader_election.without_replicas(state, all_gone if failed is None else all_gone.union(failed), epoch)

    def usual(some: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        if failed_replicas:
            return {}
        states = zip(some, map(term.cluster.leadership.__getitem__, some), strict=True)
        return leader_election.each_without_replicas(states, all_gone, epoch)

    await term.change(partitions, decide, announcement, reason=reason, usual=usual, reads=reads)


async def bring_online(
    term: Term, partitions: Iterable[TopicPartition], announcement: Announcement, *, reason: str
) -> None:
    """Elects the first leader of new partitions and a new leader of offline ones, where a suitable broker is live."""
    cluster = term.cluster
    by_state: dict[PartitionStatus, list[TopicPartition]] = {PartitionStatus.NEW: [], PartitionStatus.OFFLINE: []}
    for tp in partitions:
        by_state.setdefault(cluster.partition_status(tp), []).append(tp)
    await _first_leaders(term, by_state[PartitionStatus.NEW], announcement)
    await elect_after_failure(term, by_state[PartitionStatus.OFFLINE], announcement, reason=reason)


async def _first_leaders(term: Term, partitions: Sequence[TopicPartition], announcement: Announcement) -> None:
    """CTL-6. If a state znode exists already, written by a controller that died, its state is adopted."""
    cluster = term.cluster
    live = cluster.live

    async def decide(some: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        decided: dict[TopicPartition, LeaderAndIsr] = {}
        for tp in some:
            able = cluster.with_disk(tp, live)
            state = leader_election.first_leader(cluster.assignment(tp).replicas, able, cluster.epoch)
            if state is None:
                log.warning("%s: none of its replicas %s is live, so it waits", tp, cluster.assignment(tp).replicas)
            else:
                decided[tp] = state
        return decided

    leaderless = []
    async for written in term.write_in_slices(partitions, decide, term.store.create_states):
        term.apply(written.done, "new partition")
        announcement.leadership(written.done, is_new=True)
        announcement.pack(written.done)
        found = term.adopt(written.conflicts)
        announcement.leadership(found)
        for tp in (*written.done, *found):
            for replica in cluster.assignment(tp).replicas:
                is_online = cluster.is_online(tp, replica)
                cluster.move_replica(tp, replica, ReplicaStatus.ONLINE if is_online else ReplicaStatus.OFFLINE)
        for tp in found:
            is_led = cluster.is_online(tp, cluster.leadership[tp].leader)
            cluster.move_partition(tp, PartitionStatus.ONLINE if is_led else PartitionStatus.OFFLINE)
            if not is_led:
                leaderless.append(tp)
    await elect_after_failure(term, leaderless, announcement, reason="found without a live leader")


async def elect_preferred(term: Term, partitions: Iterable[TopicPartition], *, reason: str) -> None:
    """CTL-12: makes the first replica the leader, if it is live, in the ISR, and reachable."""
    cluster = term.cluster
    live = term.channels.reached(cluster.live)
    announcement = term.announcement()

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        able = cluster.with_disk(tp, live)
        return leader_election.preferred(state, cluster.assignment(tp).replicas, able, cluster.epoch)

    await term.change(partitions, decide, announcement, reason=reason)
    await term.announce(announcement)


async def on_preferred_election(term: Term, partitions: Sequence[TopicPartition] | None) -> None:
    """Handles `/admin/preferred_replica_election`, then removes the node, so that the admin can make another request."""
    if partitions is None:
        return
    cluster = term.cluster
    known = [tp for tp in partitions if tp in cluster.leadership and tp.topic not in cluster.topics_to_delete]
    left_out = [str(tp) for tp in partitions if tp not in known]
    if left_out:
        log.warning("preferred election: unknown or deleted partitions left out: %s", ", ".join(left_out))
    await elect_preferred(term, known, reason="preferred election")
    await term.store.delete_preferred_election()


async def on_unclean_elections_allowed(term: Term, topic: str | None) -> None:
    """INV-18: elects again for offline partitions of this topic, or of all topics (None), with the new setting."""
    cluster = term.cluster
    waiting = [
        tp
        for tp in cluster.waiting_for_leader(cluster.live)
        if topic in (None, tp.topic) and cluster.partition_status(tp) is PartitionStatus.OFFLINE
    ]
    announcement = term.announcement()
    await elect_after_failure(term, waiting, announcement, reason="unclean elections are allowed now")
    await term.announce(announcement)


async def rebalance(term: Term) -> None:
    """CTL-12: brokers that lead too few of the partitions that prefer them become leaders of these partitions again."""
    partitions = await term.carry_out(
        term.cluster.finding_imbalanced(term.settings.leader_imbalance_per_broker_percentage)
    )
    if partitions:
        await elect_preferred(term, partitions, reason="rebalance")
