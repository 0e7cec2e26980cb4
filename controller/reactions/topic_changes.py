"""Topics that were made, got more partitions, or whose node is gone (CTL-6, CTL-8)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from controller.events import AssignmentChanged
from controller.partition_states import PartitionState
from controller.reactions.leader_elections import bring_online
from controller.replica_states import ReplicaState
from controller.term import Term
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import WatchCallback, WatchEvent

log = logging.getLogger(__name__)


async def load_topics(term: Term, names: Iterable[str]) -> dict[str, tuple[str | None, dict[int, Assignment]]]:
    """Reads these topics; each is watched from then on."""
    return await term.store.topics(list(names), _on_topic_event(term))


def _on_topic_event(term: Term) -> WatchCallback:
    def on_watch(event: WatchEvent) -> None:
        topic = event.path.rpartition("/")[2]
        term.watch(AssignmentChanged(topic))(event)

    return on_watch


async def compare_topics(term: Term, names: Iterable[str]) -> None:
    """Reacts to the difference between the topics that are there now and those that were."""
    cluster = term.cluster
    there = set(names)
    gone = cluster.topics.keys() - there
    came = there - cluster.topics.keys()
    if gone:
        announcement = term.announcement()
        for topic in gone:
            announcement.deleted(cluster.remove_topic(topic))
        term.events.write("topics_gone", topics=sorted(gone))
        term.announce(announcement)
    if came:
        await take_assignments(term, await load_topics(term, came))


async def take_assignments(term: Term, topics: Mapping[str, tuple[str | None, dict[int, Assignment]]]) -> None:
    """Takes over new topics and new partitions of known ones, and brings those online. Existing data stays where it is."""
    cluster = term.cluster
    new: list[TopicPartition] = []
    for topic, (topic_id, assignment) in topics.items():
        known = cluster.topics.get(topic, {})
        added = {partition: a for partition, a in assignment.items() if partition not in known}
        if known and not added:
            continue
        cluster.set_assignment(topic, topic_id, {**known, **added})
        new += [TopicPartition(topic, partition) for partition in added]
    for tp in new:
        cluster.move_partition(tp, PartitionState.NEW)
        for replica in cluster.assignment(tp).replicas:
            cluster.move_replica(tp, replica, ReplicaState.NEW)
    if new:
        await bring_online(term, new, reason="new partition")
