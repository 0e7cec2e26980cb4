"""Decides about a *stray*: a replica on this broker's disk that a full LeaderAndIsr does not name (LAI-6, FLT-36). Pure.

While this broker was down, the topic was deleted and perhaps created again, or the partition was reassigned. But the controller
also leaves out a topic whose znode it cannot read, and the records of that topic must not be lost.

* Delete, only on evidence: the metadata that the same controller sent before has the same topic id, another broker as the leader
  of this partition, and this broker is not among its replicas.
* Set aside, as Kafka does: the topic has no znode, or another id than the log, or the topic or the log has no id, or the partition
  has no leader now. The directory is renamed to `<topic>-<partition>.<hex>-stray`, and the broker never removes it.
* Keep, in all other cases. The next full LeaderAndIsr decides again.

A different topic id alone is no proof for a deletion: an id on the disk has no CRC, and ZooKeeper may have been restored from a
copy. A wrong id must not cost records.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from protocol.rpc.messages import PartitionState
from protocol.types import NO_LEADER, TopicPartition


class StrayAction(Enum):
    """What to do with a stray."""

    KEEP = "in doubt, or the controller may still name it: it stays where it is"
    SET_ASIDE = "its topic no longer exists, or other brokers should have it: renamed, so that a person can look at it"
    DELETE = "other brokers have it now"


def action_for_stray(
    tp: TopicPartition,
    own_topic_id: str | None,
    *,
    own_id: int,
    other_topics: Collection[str],
    is_known: bool,
    known_topic_id: str | None,
    state: PartitionState | None,
) -> StrayAction:
    """`own_topic_id` is the log's. `is_known`, `known_topic_id` and `state` are the controller's view of topic and partition.

    `other_topics` exist, but the controller did not send them, or did not send all their partitions.
    """
    if not is_known:
        return StrayAction.KEEP if tp.topic in other_topics else StrayAction.SET_ASIDE
    has_ids = own_topic_id is not None and known_topic_id is not None
    if has_ids and own_topic_id != known_topic_id:
        return StrayAction.SET_ASIDE
    if state is None or own_id in state.replicas or own_id in state.isr:
        return StrayAction.KEEP
    return StrayAction.DELETE if has_ids and state.leader != NO_LEADER else StrayAction.SET_ASIDE
