"""Taking office (CTL-2, Kafka's onControllerFailover). The epoch is raised already, in the multi that won the election."""

from __future__ import annotations

import logging

from controller.reactions.leader_elections import bring_online, on_preferred_election, take_out_of_isr
from controller.reactions.topic_changes import load_topics
from controller.term import Term
from protocol.types import TopicPartition
from protocol.zk.znodes import TopicZNode

log = logging.getLogger(__name__)


async def take_office(term: Term) -> None:
    """Watches and loads the whole cluster, elects what needs it, and tells every live broker everything."""
    cluster, store, watches = term.cluster, term.store, term.watches
    # 1. Watch, and with the same reads load: whatever changes after a read fires its watch. ISR changes announced up to
    #    here are in the states that are read afterwards.
    preferred_election = await store.preferred_election(watches.preferred_election)
    announced, _ = await store.isr_changes(watches.isr_changes)
    topics = await load_topics(term, await store.children(TopicZNode.PARENT, watches.topics))
    for broker in (await store.brokers(watches.brokers)).values():
        cluster.broker_came(broker)
        term.channels.add(broker)
    for topic, (topic_id, assignment) in topics.items():
        cluster.set_assignment(topic, topic_id, assignment)
    term.adopt(await store.states(list(cluster.partitions())))
    # 2. All live brokers learn the whole cluster before anybody is told to lead or follow.
    metadata = term.announcement()
    metadata.full_metadata(cluster.brokers)
    term.announce(metadata)
    # 3. The state machines; what happened while nobody was controller is made good.
    cluster.start_state_machines()
    announcement = term.announcement()
    await bring_online(term, cluster.waiting_for_leader(), announcement, reason="controller failover")
    dead = {member for state in cluster.leadership.values() for member in state.isr} - cluster.brokers.keys()
    if dead:
        with_dead: list[TopicPartition] = [
            tp for tp, state in cluster.leadership.items() if not dead.isdisjoint(state.isr)
        ]
        await take_out_of_isr(term, with_dead, dead, announcement, reason="controller failover")
    # 4. Every partition's leadership to the live brokers. Those that stepped down take also an epoch that did not change.
    announcement.full_leadership(cluster.brokers)
    announcement.metadata(())
    term.announce(announcement)
    # 5. What was asked for or announced before.
    await on_preferred_election(term, preferred_election)
    await store.delete(announced)
    log.info(
        "in office: controller epoch %d, %d brokers, %d topics, %d partitions",
        cluster.epoch,
        len(cluster.brokers),
        len(cluster.topics),
        len(cluster.leadership),
    )
