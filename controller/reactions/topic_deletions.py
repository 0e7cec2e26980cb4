"""Deletes topics (CTL-9, INV-26). The next controller can continue at each step.

1. A name below `/admin/delete_topics` queues the topic. A request for an unknown topic is removed at once, as in Kafka. A request for
   a topic whose node cannot be read is removed too: its replicas are unknown, and nothing could confirm their deletion. From now on
   the topic gets no new partitions, no new reassignment, and no election by request or for balance.
2. The topic is ineligible while one of its partitions is reassigned. The reassignment continues until it is done.
3. The deletion starts: every broker's metadata cache gets LEADER_DURING_DELETE. From now on clients no longer see the topic.
4. The partitions become Offline, then NonExistent. The replicas become Offline, then ReplicaDeletionStarted: each broker gets one
   StopReplica(delete) for all of them. Replicas on dead brokers become ReplicaDeletionIneligible, and with them the topic.
5. The answers arrive as ReplicasDeleted, each matched with its request: a replica becomes ReplicaDeletionSuccessful or, after an error or
   its broker's death, ReplicaDeletionIneligible until the next life of its broker, which gets the request again (step 4).
6. When all replicas are deleted, everything below `/brokers/topics/<topic>` is removed, then this node, `/config/topics/<topic>` and
   `/admin/delete_topics/<topic>` in one multi, so that a new topic of that name is never mixed with the old one.
7. The topic is removed from the cluster state.

ZooKeeper's content shows the next controller where to continue. Until 6 the request exists, and everything is repeated from 1 (a
broker that gets the request twice confirms twice). During 6, nodes below the topic's node may be missing; nobody needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from controller.decisions import topic_deletion
from controller.reactions.topic_changes import load_topics, take_assignments
from controller.replica_status import ReplicaStatus
from controller.term import Term
from protocol.errors import ErrorCode
from protocol.topic_names import shown
from protocol.types import TopicPartition
from protocol.zk.znodes import ConfigZNode, DeleteTopicZNode

log = logging.getLogger(__name__)

TOPICS_IN_A_LINE = 5


async def requested(term: Term) -> list[str]:
    """The names below `/admin/delete_topics`, with a watch for more if deletion is enabled."""
    watch = term.watches.topic_deletions if term.settings.delete_topic_enable else None
    return await term.store.children(DeleteTopicZNode.PARENT, watch)


async def on_deletions_requested(term: Term) -> None:
    """Steps 1 to 4."""
    await queue(term, await requested(term))
    await resume(term)


def take_over(term: Term, names: Collection[str]) -> None:
    """At the start of a term, queues known topics and starts their deletion where possible, before the first announcement."""
    if not term.settings.delete_topic_enable:
        return
    term.cluster.topics_to_delete |= term.cluster.topics.keys() & set(names)
    for topic in topic_deletion.may_begin(term.cluster):
        term.cluster.begin_deletion(topic)


async def queue(term: Term, names: Collection[str]) -> None:
    """Step 1. With `delete.topic.enable=false` every request is removed."""
    if not names:
        return
    cluster = term.cluster
    if not term.settings.delete_topic_enable:
        named = _few(names)
        log.warning("delete.topic.enable is false: %d requests to delete are removed: %s", len(names), named)
        term.events.write("topic_deletions_refused", topics=sorted(names), reason="delete.topic.enable is false")
        await term.store.delete([DeleteTopicZNode.path(topic) for topic in names])
        return
    unknown = sorted(set(names) - cluster.topics.keys())
    if unknown:
        # A topic may have just been created: its event comes later. Settings that are written from now on are those of such a topic.
        paths = [ConfigZNode.path("topics", topic) for topic in unknown]
        nodes = await term.store.get_many(paths)
        settings = {path: node[1].version for path, node in zip(paths, nodes, strict=True) if node is not None}
        readable = term.store.valid_names(DeleteTopicZNode.PARENT, unknown)
        await take_assignments(term, await load_topics(term, readable))
        await _remove_requests(term, [topic for topic in unknown if topic not in cluster.topics], settings)
    new = sorted(cluster.topics.keys() & set(names) - cluster.topics_to_delete)
    if new:
        cluster.topics_to_delete.update(new)
        log.info("topics to be deleted: %s", ", ".join(new))
        term.events.write("topic_deletions_queued", topics=new)


async def _remove_requests(term: Term, topics: Collection[str], settings: Mapping[str, int]) -> None:
    """`settings`: the nodes with topics' settings that were there before the topics were read, with their versions."""
    unreadable = sorted(term.cluster.unreadable_topics & set(topics))
    gone = sorted(set(topics) - term.cluster.unreadable_topics)
    if unreadable:
        log.error("%d topics cannot be deleted, their nodes are not readable: %s", len(unreadable), _few(unreadable))
        term.events.write("topic_deletions_refused", topics=unreadable, reason="its node is not readable")
    if gone:
        log.warning("%d requests to delete unknown topics are removed: %s", len(gone), _few(gone))
    # The settings may still exist: Kafka's controller removes them after the topic, and may have died in between.
    left = [ConfigZNode.path("topics", topic) for topic in gone]
    await term.store.delete([path for path in left if path in settings], settings)
    await term.store.delete([DeleteTopicZNode.path(topic) for topic in (*unreadable, *gone)])


def _few(names: Collection[str]) -> str:
    """The first names, for a log line."""
    return ", ".join(shown(name) for name in sorted(names)[:TOPICS_IN_A_LINE])


async def resume(term: Term, informed: Collection[int] = ()) -> None:
    """Does every step that is possible now: 3 and 4 for topics that may start and brokers that are back, 6 and 7 for finished topics.

    `informed` are brokers that have just been sent a full LeaderAndIsr: they may have stray logs of these topics.
    """
    cluster = term.cluster
    if not cluster.topics_to_delete:
        return
    await _begin(term, topic_deletion.may_begin(cluster))
    announcement = term.announcement()
    unfinished = set()
    async for replica in term.in_slices(topic_deletion.being_deleted(cluster)):
        broker, tp = replica
        if topic_deletion.is_out_of_reach(cluster, replica):
            _mark(term, replica, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE)
        elif topic_deletion.is_to_be_stopped(cluster, replica):
            _mark(term, replica, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED)
            announcement.stop(broker, tp, delete=True)
        if cluster.replica_status(tp, broker) is not ReplicaStatus.DELETION_SUCCESSFUL:
            unfinished.add(tp.topic)
    for broker, tp in topic_deletion.strays_to_stop(cluster, informed):
        announcement.stop(broker, tp, delete=True)
    await term.announce(announcement)
    await _finish(term, sorted(cluster.deletions_begun - unfinished))
    held_up = []
    async for topic in term.in_slices(sorted(cluster.topics_to_delete), cluster.size_of):
        reason = topic_deletion.why_ineligible(cluster, topic)
        if reason is not None:
            held_up.append(f"{topic} ({reason})")
    if held_up:
        log.info("%d topics are not eligible for deletion: %s", len(held_up), ", ".join(held_up[:TOPICS_IN_A_LINE]))


async def _begin(term: Term, topics: Collection[str]) -> None:
    """Step 3, and the partitions' part of step 4."""
    if not topics:
        return
    announcement = term.announcement()
    async for topic in term.in_slices(topics, term.cluster.size_of):
        announcement.deleted(term.cluster.begin_deletion(topic))
    term.events.write("topic_deletions_begun", topics=topics)
    await term.announce(announcement)


def _mark(term: Term, replica: topic_deletion.Replica, *states: ReplicaStatus) -> None:
    broker, tp = replica
    for state in states:
        term.cluster.move_replica(tp, broker, state)


async def on_replicas_deleted(term: Term, broker: int, answers: Collection[tuple[TopicPartition, ErrorCode]]) -> None:
    """Step 5."""
    cluster = term.cluster
    answered = [
        (tp, error)
        for tp, error in answers
        if tp.topic in cluster.deletions_begun and cluster.replica_status(tp, broker) is ReplicaStatus.DELETION_STARTED
    ]
    async for tp, error in term.in_slices(answered):
        is_gone = error is ErrorCode.NONE
        target = ReplicaStatus.DELETION_SUCCESSFUL if is_gone else ReplicaStatus.DELETION_INELIGIBLE
        cluster.move_replica(tp, broker, target)
    failed = [[str(tp), error.name] for tp, error in answered if error is not ErrorCode.NONE]
    if answered:
        term.events.write("replicas_deleted", broker=broker, deleted=len(answered) - len(failed), failed=failed)
        await resume(term)


async def _finish(term: Term, topics: Collection[str]) -> None:
    """Steps 6 and 7."""
    if not topics:
        return
    cluster = term.cluster
    partitions = {topic: tuple(cluster.topics[topic]) for topic in topics}
    await term.store.remove_topics(partitions, cluster.topic_ids)
    async for topic in term.in_slices(topics, cluster.size_of):
        cluster.remove_topic(topic)
    term.events.write("topics_deleted", topics=sorted(topics))
    log.info("topics deleted: %s", ", ".join(sorted(topics)))
