"""Starts a term (CTL-2, Kafka's onControllerFailover). The multi that won the election has already raised the epoch."""

from __future__ import annotations

import asyncio
import logging

from controller.announcements import Announcement
from controller.decisions import leader_election
from controller.decisions.bounces import Bounces
from controller.reactions import reassignments, topic_deletions, topic_ids
from controller.reactions.leader_elections import bring_online, on_preferred_election, take_out_of_isr
from controller.reactions.topic_changes import load_topics
from controller.term import Term
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.znodes import ReassignPartitionsZNode

log = logging.getLogger(__name__)


ANSWERED_WITHIN_S = 1.0
"""How long to wait for brokers that did not bounce. If one of them answers, it leads instead of the bounced broker."""


async def take_office(term: Term) -> None:
    """Watches and loads the whole cluster, elects where needed, and sends every live broker everything.

    The states and the registrations show what happened before the term. If a broker died and came back, its registration is newer than
    the states that nobody has written since then: see `elect_after_unseen_bounces`.
    """
    cluster, store, watches = term.cluster, term.store, term.watches
    now = asyncio.get_running_loop().time
    begin = now()
    # 1. Each read also sets a watch, so a later change is an event. ISR changes that were announced before are in the states,
    #    which are read afterwards.
    await store.exists(ReassignPartitionsZNode.PATH, watches.reassignments)
    preferred_election = await store.preferred_election(watches.preferred_election)
    announced, _ = await store.isr_changes(watches.isr_changes)
    # The brokers' answers to step 4 will name the replicas on failed disks.
    disk_failures, _ = await store.log_dir_events(watches.log_dir_events)
    names = await store.topic_names(watches.topics)
    topics = await load_topics(term, names)
    cluster.unreadable_topics.update(set(names) - topics.keys())
    to_delete = await topic_deletions.requested(term)
    topics, _ = await topic_ids.complete(term, topics)
    brokers = await store.brokers(watches.brokers)
    _step(
        term, 2, "watches set", topics=len(topics), brokers=sorted(brokers), deletions=term.settings.delete_topic_enable
    )
    for broker in brokers.values():
        cluster.broker_came(broker)
        term.channels.add(broker)
    async for topic, (topic_id, assignment) in term.in_slices(topics.items(), lambda item: len(item[1][1])):
        cluster.set_assignment(topic, topic_id, assignment)
    metadata = term.announcement()
    bounces = Bounces(cluster.brokers.values())
    async for states, old in store.states_in_slices(list(cluster.partitions()), bounces.newest):
        term.load(states)
        bounces.note(states, old)
        metadata.pack(states)  # now, while ZooKeeper reads the next slice
    topic_deletions.take_over(term, to_delete)
    # 2. Send every live broker the whole cluster before any LeaderAndIsr.
    metadata.full_metadata(cluster.brokers)
    loaded = now()
    _step(
        term, 3, "cluster read", topics=len(topics), partitions=len(cluster.leadership), brokers=sorted(cluster.brokers)
    )
    await term.announce(metadata, is_repeated=True)
    metadata_sent = now()
    _step(term, 4, "brokers informed", brokers=sorted(cluster.brokers))
    # 3. Start the state machines, and react to what happened while there was no controller.
    cluster.start_state_machines()
    _step(term, 5, "state machines started", waiting_for_leader=len(cluster.waiting_for_leader()))
    announcement = term.announcement()
    await elect_after_unseen_bounces(term, bounces, announcement)
    await bring_online(term, cluster.waiting_for_leader(), announcement, reason="controller failover")
    isrs = {state.isr for state in cluster.leadership.values()}
    dead = {member for isr in isrs for member in isr} - cluster.brokers.keys()
    if dead:
        with_dead: list[TopicPartition] = [
            tp for tp, state in cluster.leadership.items() if not dead.isdisjoint(state.isr)
        ]
        await take_out_of_isr(term, with_dead, dead, announcement, reason="controller failover", reads=False)
    await reassignments.take_over(term, announcement)
    decided = now()
    # 4. Send every partition's leadership to the live brokers. A broker that stepped down accepts even an unchanged epoch.
    announcement.full_leadership(cluster.brokers)
    announcement.metadata(())
    await term.announce(announcement)
    announced_at = now()
    _step(term, 6, "leaderships sent", brokers=sorted(cluster.brokers))
    # 5. Handle earlier requests and announcements.
    await reassignments.resume(term)
    await reassignments.on_requested(term)
    await on_preferred_election(term, preferred_election)
    await topic_deletions.queue(term, to_delete)
    await topic_deletions.resume(term, cluster.brokers)
    _step(
        term,
        7,
        "earlier work continued",
        reassignments=len(cluster.reassigning),
        preferred_elections=len(preferred_election or ()),
        deletions=len(cluster.topics_to_delete),
    )
    await store.delete([*announced, *disk_failures])
    term.events.write(
        "controller_in_office",
        controller_epoch=cluster.epoch,
        partitions=len(cluster.leadership),
        written=store.states_written,
        load_ms=1000 * (loaded - begin),
        elect_ms=1000 * (decided - metadata_sent - store.writing_s),
        write_ms=1000 * store.writing_s,
        announce_ms=1000 * (announced_at - decided + metadata_sent - loaded),
    )
    log.info(
        "in office: controller epoch %d, %d brokers, %d topics, %d partitions",
        cluster.epoch,
        len(cluster.brokers),
        len(cluster.topics),
        len(cluster.leadership),
    )


def _step(term: Term, step: int, what: str, **fields: object) -> None:
    """Writes a step of CTL-2 to the event log. Step 1, the new epoch, is the event `controller_elected`."""
    term.events.write("controller_step", controller_epoch=term.cluster.epoch, step=step, what=what, **fields)


async def elect_after_unseen_bounces(term: Term, bounces: Bounces, announcement: Announcement) -> None:
    """CTL-5 for members of the ISR that died and came back while no controller could react (BUG-16, FLT-23).

    A leader that lost records in a power failure and kept leading in the same epoch would write other records at the same offsets
    (INV-5). `leader_election.after_unseen_bounces` decides what to do.

    A *follower's* bounce is missed if somebody who did not know of it wrote the state after it and before this term: the last controller
    just before its death, or the leader in another ISR change. Such a follower stays in the ISR. INV-5 still holds: a controller's write
    starts a new epoch, and a bounced leader writes nothing before its new life gets a LeaderAndIsr.
    """
    if not bounces:
        return
    cluster = term.cluster
    decisive = {(cluster.leadership[tp].isr, bounces.since(tp)) for tp in bounces if tp in cluster.leadership}
    live = cluster.live
    steady = {member for isr, bounced in decisive for member in isr if member not in bounced} & live
    answering = await term.channels.answering(steady, ANSWERED_WITHIN_S)
    await term.store.others_turn()
    log.info(
        "%d partitions have bounced brokers in the ISR; other live brokers: %s, of these answered: %s",
        len(bounces),
        sorted(steady),
        sorted(answering),
    )

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        return leader_election.after_unseen_bounces(
            state, cluster.assignment(tp).replicas, live, bounces.since(tp), answering, cluster.epoch
        )

    await term.change(bounces, decide, announcement, reason="bounced before this term")
