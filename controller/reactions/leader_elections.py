"""Elections that no death demanded at this moment: partitions that waited, preferred leaders, the balance (CTL-6, CTL-12)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from controller import leader_election
from controller.announcements import Announcement
from controller.partition_states import PartitionState
from controller.replica_states import ReplicaState
from controller.term import Term
from protocol.types import LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)


async def elect_after_failure(
    term: Term, partitions: Iterable[TopicPartition], announcement: Announcement, *, reason: str
) -> None:
    """CTL-5 for partitions whose leader is gone. The topics' configuration decides whether it may be unclean."""
    cluster = term.cluster
    concerned = set(partitions)
    live = cluster.live
    topics = {tp.topic for tp in concerned if tp in cluster.leadership and not live & set(cluster.leadership[tp].isr)}
    default = str(term.settings.unclean_leader_election_enable).lower()
    unclean = {
        topic
        for topic, config in (await term.store.topic_configs(topics)).items()
        if config.get("unclean.leader.election.enable", default).lower() == "true"
    }

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        if state.leader in cluster.brokers and state.leader not in cluster.stopping:
            return None  # it has a leader by now
        new = leader_election.after_failure(
            state, cluster.assignment(tp).replicas, live, cluster.epoch, unclean_allowed=tp.topic in unclean
        )
        if new is not None and leader_election.is_unclean(state, new):
            log.warning("%s: unclean election of %d, the ISR was %s", tp, new.leader, state.isr)
            term.events.write("unclean_election", partition=str(tp), leader=new.leader, isr_before=list(state.isr))
        return new

    await term.change(concerned, decide, announcement, reason=reason)


async def bring_online(term: Term, partitions: Iterable[TopicPartition], *, reason: str) -> None:
    """New partitions get their first leader, offline ones another, where one lives now."""
    waiting = list(partitions)
    cluster = term.cluster
    announcement = term.announcement()
    new = [tp for tp in waiting if cluster.partition_states.get(tp) is PartitionState.NEW]
    await _first_leaders(term, new, announcement)
    offline = [tp for tp in waiting if cluster.partition_states.get(tp) is PartitionState.OFFLINE]
    await elect_after_failure(term, offline, announcement, reason=reason)
    term.announce(announcement)


async def _first_leaders(term: Term, partitions: Iterable[TopicPartition], announcement: Announcement) -> None:
    """CTL-6. A state znode that is there already (of a controller that died meanwhile) is taken over."""
    cluster = term.cluster
    decided: dict[TopicPartition, LeaderAndIsr] = {}
    for tp in partitions:
        state = leader_election.first_leader(cluster.assignment(tp).replicas, cluster.live, cluster.epoch)
        if state is None:
            log.warning("%s: none of its replicas %s lives, it waits", tp, cluster.assignment(tp).replicas)
        else:
            decided[tp] = state
    written = await term.store.create_states(decided)
    term.apply(written.done, "new partition")
    announcement.leadership(written.done, is_new=True)
    found = {tp: state for tp, state in written.conflicts.items() if state is not None}
    term.apply(found, "found")
    announcement.leadership(found)
    for tp in (*written.done, *found):
        for replica in cluster.assignment(tp).replicas:
            cluster.move_replica(tp, replica, ReplicaState.ONLINE)
    gone = [tp for tp, state in found.items() if state.leader not in cluster.live]
    for tp in gone:
        cluster.move_partition(tp, PartitionState.OFFLINE)
    await elect_after_failure(term, gone, announcement, reason="found without a live leader")


async def elect_preferred(term: Term, partitions: Iterable[TopicPartition], *, reason: str) -> None:
    """CTL-12: the first replica leads again, where it lives and is in the ISR."""
    cluster = term.cluster
    announcement = term.announcement()

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        return leader_election.preferred(state, cluster.assignment(tp).replicas, cluster.live, cluster.epoch)

    await term.change(partitions, decide, announcement, reason=reason)
    term.announce(announcement)


async def rebalance(term: Term) -> None:
    """CTL-12: brokers that lead too few of the partitions that prefer them get those back."""
    partitions = term.cluster.imbalanced(term.settings.leader_imbalance_per_broker_percentage)
    if partitions:
        await elect_preferred(term, partitions, reason="rebalance")
