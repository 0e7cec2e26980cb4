"""Reacts to brokers that registered, died, bounced or are about to stop (CTL-5, STA-1, STA-2, FLT-23)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from controller.announcements import Announcement
from controller.decisions import leader_election
from controller.partition_status import PartitionStatus
from controller.reactions import reassignments, topic_deletions
from controller.reactions.leader_elections import bring_online, elect_after_failure, take_out_of_isr
from controller.replica_status import ReplicaStatus
from controller.term import PARTITIONS_IN_AN_EVENT, Term
from protocol.types import BrokerInfo, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

LEADERS_FIRST_MIN = 1000
"""Number of partitions without a leader from which on their new leaders are announced before the ISRs of others are written."""


async def compare_brokers(term: Term, found: Mapping[int, BrokerInfo]) -> None:
    """Reacts to the difference between the brokers registered now and those registered before.

    1. A broker whose znode has another czxid has bounced: it is handled as a failure, then as a startup (BUG-16).
    2. New brokers can lead the partitions of dead brokers at once. Bounced brokers can lead only after their failure is written, so that
       each of their leaderships gets a new epoch.
    3. All announcements are sent together: new brokers first get the whole cluster (STA-1), then all brokers get the changes. If no
       broker came and many partitions lost their leader, the new leaders are announced before the other ISRs are written.
    """
    cluster = term.cluster
    known = cluster.brokers
    bounced = {broker for broker in found.keys() & known.keys() if found[broker].epoch != known[broker].epoch}
    gone = (known.keys() - found.keys()) | bounced
    came = (found.keys() - known.keys()) | bounced
    if not gone and not came:
        return
    term.events.write("brokers_changed", gone=sorted(gone), came=sorted(came), bounced=sorted(bounced))
    log.info("brokers gone: %s, new: %s, of these bounced: %s", sorted(gone), sorted(came), sorted(bounced))
    announcement = term.announcement()
    announcement.metadata(())  # all brokers need at least the new set of live brokers
    for broker in gone:
        term.end_life(broker)
        announcement.metadata(cluster.failed_on(broker))
        cluster.broker_went(broker)
    for broker in came - bounced:
        _add(term, found[broker])
    if gone:
        announcement = await _fail_over(term, gone, announcement, leaders_first=not came)
    for broker in bounced:
        _add(term, found[broker])
    if came:
        announcement.full_metadata(came)
        announcement.full_leadership(came)
        await bring_online(term, cluster.waiting_for_leader(came), announcement, reason="broker startup")
    await term.announce(announcement)
    await reassignments.resume(term)
    await topic_deletions.resume(term, came)


def _add(term: Term, broker: BrokerInfo) -> None:
    term.cluster.broker_came(broker)
    term.channels.add(broker)


async def _fail_over(
    term: Term, dead: Collection[int], announcement: Announcement, *, leaders_first: bool
) -> Announcement:
    """CTL-5: elects leaders for the partitions that the dead brokers led, and removes these brokers from the other ISRs.

    With `leaders_first`, many new leaders are announced at once, and the announcement that is returned has only the other changes. No
    partition is in both, so each broker learns a partition's states in their order.
    """
    cluster = term.cluster
    led = frozenset[TopicPartition]().union(*map(cluster.led_by, dead))
    followed = frozenset[TopicPartition]().union(*map(cluster.replicas_on, dead)) - led
    async for some in term.in_pieces(list(led)):
        cluster.move_partitions(some, PartitionStatus.OFFLINE)
    await elect_after_failure(term, cluster.by_topic(led), announcement, reason="broker failure")
    if leaders_first and len(led) >= LEADERS_FIRST_MIN and followed:
        await term.announce(announcement)
        announcement = term.announcement()
    await take_out_of_isr(term, cluster.by_topic(followed), dead, announcement, reason="follower failure")
    return announcement


async def on_controlled_shutdown(term: Term, broker: int) -> tuple[list[TopicPartition], Announcement]:
    """STA-2: moves the broker's leaderships to other brokers. Its replicas leave the ISRs and stop.

    Returns the replicated partitions that the broker still leads, and the announcement, which the caller must send.
    """
    cluster = term.cluster
    cluster.stopping.add(broker)
    announcement = term.announcement()
    replicated = [
        tp
        async for tp in term.in_slices(cluster.replicas_on(broker))
        if tp in cluster.leadership and len(cluster.assignment(tp).replicas) > 1
    ]
    led = [tp for tp in replicated if cluster.leadership[tp].leader == broker]
    reached = term.channels.reached(cluster.brokers.keys())

    def move(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        if state.leader != broker:
            return None
        replicas, able = cluster.assignment(tp).replicas, cluster.with_disk(tp, cluster.brokers.keys())
        new = leader_election.before_shutdown(state, replicas, able & reached, cluster.stopping, cluster.epoch)
        # If no reachable replica can lead, elect an unreachable one: it must lead anyway once this broker has stopped.
        return new or leader_election.before_shutdown(state, replicas, able, cluster.stopping, cluster.epoch)

    await term.change(led, move, announcement, reason="controlled shutdown", reads=True)
    remaining = [tp for tp in replicated if cluster.leadership[tp].leader == broker]
    followed = [tp for tp in replicated if cluster.leadership[tp].leader != broker]
    await take_out_of_isr(term, followed, {broker}, announcement, reason="controlled shutdown")
    async for tp in term.in_slices(followed):
        cluster.move_replica(tp, broker, ReplicaStatus.OFFLINE)
        announcement.stop(broker, tp, delete=False)
    named = [str(tp) for tp in remaining[:PARTITIONS_IN_AN_EVENT]]
    more = len(remaining) - len(named)
    term.events.write("controlled_shutdown", broker=broker, moved=len(led) - len(remaining), remaining=named, more=more)
    return remaining, announcement
