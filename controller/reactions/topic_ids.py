"""Gives an id to each topic whose node has none (KIP-516, CTL-6).

Tools before Kafka 2.8 create `/brokers/topics/<topic>` without an id, and remove the id when they write the node, for example to add
partitions. Without an id no replica can be copied, and a later topic of the same name cannot be distinguished from this one. When the
controller reads a node without an id:

1. **A new topic**: nothing exists below the node. It gets a new id before its partitions get states. If the controller knew another
   topic of that name, that topic was deleted.
2. **A known topic** gets the id that the controller knows, and its moves in progress, in one write.
3. **Any other topic** lost its id before this term. It is served without one. Its brokers answer each LeaderAndIsr without an id by
   the id that they know: that of their log (`partition.metadata`), or of their metadata. The first answer of an in-sync replica is
   written. If all live in-sync brokers have answered and none knows an id, the topic gets a new one.
4. The id of step 3 is announced to all brokers. A replica that had none accepts it in its current leader epoch.

A topic whose deletion has started is not asked about: its replicas are also deleted by name.

Every write is conditional on the version that was read: if the old tool writes meanwhile, the node is read again; if it writes later,
the watch starts this again. The next controller finds the id in the node and announces everything, or starts at step 1.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from controller.assignment_store import FoundTopic, write_topic_ids
from controller.decisions.topic_ids import id_by_answers
from controller.term import Term
from protocol.topic_ids import new_topic_id
from protocol.types import Assignment, TopicPartition

log = logging.getLogger(__name__)

ID_BYTES = 16


async def complete(term: Term, topics: Mapping[str, FoundTopic]) -> tuple[dict[str, FoundTopic], set[str]]:
    """Steps 1 and 2. Returns (the topics as they are in ZooKeeper now; those of them that are new)."""
    cluster = term.cluster
    without = [topic for topic, found in topics.items() if found[0] is None]
    if not without:
        return dict(topics), set()
    chosen: dict[str, str | None] = {}
    new: set[str] = set()

    def choose(topic: str, has_states: bool) -> str | None:
        new.discard(topic)
        if has_states:
            chosen[topic] = cluster.topic_ids.get(topic)
        else:
            new.add(topic)
            chosen[topic] = new_topic_id(os.urandom(ID_BYTES))
        return chosen[topic]

    completed = await write_topic_ids(term.store, without, choose, lambda topic: _moves(term, topic))
    for topic, (topic_id, _) in completed.items():
        if topic_id is not None and topic_id == chosen.get(topic):
            _note(term, topic, topic_id, "new topic" if topic in new else "known to the controller")
    kept = {topic: found for topic, found in topics.items() if topic in completed or topic not in without}
    return {**kept, **completed}, new & completed.keys()


def _moves(term: Term, topic: str) -> dict[int, Assignment]:
    """The topic's moves in progress, as ZooKeeper had them."""
    cluster = term.cluster
    partitions = (TopicPartition(topic, partition) for partition in cluster.topics.get(topic, ()))
    return {tp.partition: cluster.move_of(tp) for tp in partitions if tp in cluster.reassigning}


def _note(term: Term, topic: str, topic_id: str, source: str) -> None:
    log.warning("topic %s had no id in ZooKeeper and gets %s: %s", topic, topic_id, source)
    term.events.write("topic_id_written", topic=topic, topic_id=topic_id, source=source)


async def on_reported(term: Term, broker_id: int, broker_epoch: int, topic_ids: Iterable[tuple[str, str]]) -> None:
    """Step 3. An answer from an earlier life of the broker is ignored."""
    cluster = term.cluster
    broker = cluster.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return
    for topic, topic_id in topic_ids:
        if topic in cluster.without_id:
            cluster.without_id[topic][broker_id] = topic_id
    await resume(term)


async def resume(term: Term) -> None:
    """Steps 3 and 4 for each topic whose in-sync brokers have answered. To be called when these have changed."""
    cluster = term.cluster
    decided: dict[str, str] = {}
    async for topic in term.in_slices(list(cluster.without_id), cluster.size_of):
        topic_id = id_by_answers(cluster.without_id[topic], cluster.in_sync_brokers(topic))
        if topic_id is not None:
            decided[topic] = topic_id or new_topic_id(os.urandom(ID_BYTES))
    if not decided:
        return

    def choose(topic: str, has_states: bool) -> str | None:
        return decided[topic] if has_states else None

    found = await write_topic_ids(term.store, decided, choose, lambda topic: _moves(term, topic))
    named = {topic: topic_id for topic, (topic_id, _) in found.items() if topic_id is not None}
    for topic in [topic for topic in named if named[topic] == decided[topic]]:
        topic_id = decided[topic]
        answers = cluster.without_id[topic].items()
        source = next((f"known to broker {broker}" for broker, known in answers if known == topic_id), "no log has one")
        _note(term, topic, topic_id, source)
    await adopt(term, named)


async def adopt(term: Term, topic_ids: Mapping[str, str]) -> None:
    """Step 4, for topics without an id whose nodes have one now."""
    if not topic_ids:
        return
    cluster = term.cluster
    announcement = term.announcement()
    brokers: set[int] = set()
    async for topic in term.in_slices(topic_ids, cluster.size_of):
        cluster.set_topic_id(topic, topic_ids[topic])
        partitions = [TopicPartition(topic, partition) for partition in cluster.topics[topic]]
        announcement.metadata(partitions)
        brokers.update(replica for tp in partitions for replica in cluster.assignment(tp).replicas)
    # A full request: brokers skip what it repeats, and would refuse a single partition that they already know.
    announcement.full_leadership(brokers & cluster.brokers.keys())
    await term.announce(announcement)
