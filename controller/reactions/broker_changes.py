"""Brokers that came, went, bounced or are about to stop (CTL-5, STA-1, STA-2, FLT-23)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from controller import leader_election
from controller.announcements import Announcement
from controller.partition_states import PartitionState
from controller.reactions.leader_elections import bring_online, elect_after_failure
from controller.replica_states import ReplicaState
from controller.term import Term
from protocol.types import BrokerInfo, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)


async def compare_brokers(term: Term, found: dict[int, BrokerInfo]) -> None:
    """Reacts to the difference between the brokers that are registered now and those that were.

    A broker whose znode has another czxid has died and started again in between: failure, then startup (BUG-16).
    """
    known = term.cluster.brokers
    bounced = {b for b in found.keys() & known.keys() if found[b].epoch != known[b].epoch}
    gone = (known.keys() - found.keys()) | bounced
    came = (found.keys() - known.keys()) | bounced
    if gone or came:
        term.events.write("brokers_changed", gone=sorted(gone), came=sorted(came), bounced=sorted(bounced))
    if gone:
        for broker in gone:
            term.channels.remove(broker)
            term.cluster.brokers.pop(broker)
            term.cluster.stopping.discard(broker)
        await on_broker_failure(term, gone)
    if came:
        for broker in came:
            term.cluster.brokers[broker] = found[broker]
            term.channels.add(found[broker])
        await on_broker_startup(term, came)


async def on_broker_failure(term: Term, dead: Collection[int]) -> None:
    """CTL-5. One LeaderAndIsr per broker for all its partitions, then UpdateMetadata to all."""
    cluster = term.cluster
    hosted = {tp for broker in dead for tp in cluster.replicas_on(broker)}
    led = {tp for broker in dead for tp in cluster.led_by(broker)}
    for tp in led:
        cluster.move_partition(tp, PartitionState.OFFLINE)
    announcement = term.announcement()
    announcement.metadata(hosted)  # also without an election, their offline replicas have changed
    await elect_after_failure(term, led, announcement, reason="broker failure")
    await take_out_of_isr(term, hosted - led, dead, announcement, reason="follower failure")
    term.announce(announcement)
    for broker in dead:
        for tp in cluster.replicas_on(broker):
            if (tp, broker) in cluster.replica_states:
                cluster.move_replica(tp, broker, ReplicaState.OFFLINE)


async def take_out_of_isr(
    term: Term, partitions: Iterable[TopicPartition], gone: Collection[int], announcement: Announcement, *, reason: str
) -> None:
    """Followers on these brokers leave the ISR, with a new leader epoch so that the leader takes it over (BUG-6)."""

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        return leader_election.without_replicas(state, gone, term.cluster.epoch)

    await term.change(partitions, decide, announcement, reason=reason)


async def on_broker_startup(term: Term, came: Collection[int]) -> None:
    """STA-1: the whole metadata, then all its replicas' leadership, then what has waited for the broker."""
    cluster = term.cluster
    for broker in came:
        for tp in cluster.replicas_on(broker):
            cluster.move_replica(tp, broker, ReplicaState.ONLINE)
    announcement = term.announcement()
    announcement.full_metadata(came)
    announcement.full_leadership(came)
    announcement.metadata(tp for broker in came for tp in cluster.replicas_on(broker))
    term.announce(announcement)
    await bring_online(term, cluster.waiting_for_leader(), reason="broker startup")


async def on_controlled_shutdown(term: Term, broker: int) -> tuple[list[TopicPartition], Announcement]:
    """STA-2: its leaderships move away, its followers leave the ISR and stop. Returns what it still leads.

    The announcement is for the caller to send: the answer waits until the new leaders have heard.
    """
    cluster = term.cluster
    cluster.stopping.add(broker)
    announcement = term.announcement()
    replicated = [tp for tp in cluster.replicas_on(broker) if len(cluster.assignment(tp).replicas) > 1]
    led = [tp for tp in replicated if cluster.leadership.get(tp) and cluster.leadership[tp].leader == broker]

    def move(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        if state.leader != broker:
            return None
        return leader_election.before_shutdown(
            state, cluster.assignment(tp).replicas, cluster.brokers.keys(), cluster.stopping, cluster.epoch
        )

    await term.change(led, move, announcement, reason="controlled shutdown")
    followed = [tp for tp in replicated if cluster.leadership.get(tp) and cluster.leadership[tp].leader != broker]
    await take_out_of_isr(term, followed, {broker}, announcement, reason="controlled shutdown")
    for tp in followed:
        announcement.stop(broker, tp, delete=False)
    remaining = sorted(cluster.led_by(broker))
    term.events.write("controlled_shutdown", broker=broker, moved=len(led), remaining=[str(tp) for tp in remaining])
    return remaining, announcement
