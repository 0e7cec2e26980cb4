"""Reacts to topics that were created, got more partitions, or whose node was removed (CTL-6, CTL-8)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from controller.assignment_store import FoundTopic
from controller.partition_status import PartitionStatus
from controller.reactions import topic_ids
from controller.reactions.leader_elections import bring_online
from controller.term import Term
from protocol.types import TopicPartition
from protocol.zk.znodes import DeleteTopicZNode, TopicZNode

log = logging.getLogger(__name__)

Topics = Mapping[str, FoundTopic]


async def compare_topics(term: Term, names: Collection[str]) -> None:
    """Reacts to the difference between the topics that exist now and those that did before."""
    cluster = term.cluster
    known = cluster.topics.keys()
    cluster.unreadable_topics &= set(names)
    await forget_topics(term, known - set(names))
    came = sorted(set(names) - known)
    if came:
        topics = await load_topics(term, came)
        cluster.unreadable_topics.update(set(came) - topics.keys())
        await take_assignments(term, topics)


async def load_topics(term: Term, names: Sequence[str]) -> Topics:
    """Reads these topics and sets a watch on each."""
    return await term.store.topics(names, term.watches.topic)


async def reload_topic(term: Term, topic: str) -> None:
    """Handles a topic whose node was written or removed. A removal is handled now: a later read may find a new topic of the name."""
    topics = await load_topics(term, [topic])
    if not topics and topic in term.cluster.topics:
        if await term.store.exists(TopicZNode.path(topic), term.watches.topic):
            topics = await load_topics(term, [topic])  # created again in between, or unreadable
        else:
            await forget_topics(term, [topic])
    await take_assignments(term, topics)


async def take_assignments(term: Term, topics: Topics) -> None:
    """Adopts new topics and new partitions of known topics, and brings them online. Known partitions keep their assignment."""
    cluster = term.cluster
    topics, created = await topic_ids.complete(term, topics)
    another = [topic for topic, (topic_id, _) in topics.items() if _is_another(term, topic, topic_id)]
    await forget_topics(term, {*another, *(topic for topic in created if topic in cluster.topics)})
    await topic_ids.adopt(
        term, {topic: found[0] for topic, found in topics.items() if topic in cluster.without_id and found[0]}
    )
    cluster.unreadable_topics -= topics.keys()
    new: list[TopicPartition] = []
    for topic, (topic_id, assignment) in topics.items():
        if topic in cluster.topics_to_delete:
            continue  # CTL-9: it gets no new partitions
        known = cluster.topics.get(topic, {})
        if known.keys() - assignment.keys():
            log.error("topic %s: partitions cannot be removed, %d are kept", topic, len(known))
        added = {partition: assigned for partition, assigned in assignment.items() if partition not in known}
        if added or not known:
            cluster.set_assignment(topic, topic_id, {**known, **added})
            new += [TopicPartition(topic, partition) for partition in added]
    async for tp in term.in_slices(new):
        cluster.move_partition(tp, PartitionStatus.NEW)
        cluster.add_replicas(tp)
    if new:
        announcement = term.announcement()
        await bring_online(term, new, announcement, reason="new partition")
        await term.announce(announcement)


def _is_another(term: Term, topic: str, topic_id: str | None) -> bool:
    """Whether the topic of that name was deleted and created again between two reads."""
    known = term.cluster.topic_ids.get(topic)
    return known is not None and topic_id is not None and known != topic_id


async def forget_topics(term: Term, topics: Collection[str]) -> None:
    """Handles topics whose nodes were removed: brokers stop the replicas and forget the topics, but keep the data.

    A request to delete such a topic is removed, because it does not apply to a new topic of that name.
    """
    if not topics:
        return
    requests = [DeleteTopicZNode.path(topic) for topic in topics if topic in term.cluster.topics_to_delete]
    announcement = term.announcement()
    async for topic in term.in_slices(tuple(topics), term.cluster.size_of):
        gone = term.cluster.remove_topic(topic)
        announcement.deleted(gone)
        for tp, assignment in gone.items():
            for replica in assignment.replicas:
                announcement.stop(replica, tp, delete=False)
    term.events.write("topics_gone", topics=sorted(topics))
    log.warning("topics whose nodes were removed: %s", ", ".join(sorted(topics)))
    await term.announce(announcement)
    await term.store.delete(requests)
