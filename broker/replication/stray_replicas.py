"""What becomes of a replica on this broker's disk that a full LeaderAndIsr does not name (LAI-6, FLT-36). Pure.

Its topic was deleted, perhaps made again, or it was reassigned while this broker was away. But a topic is also unnamed when
the controller cannot read its node, and then its records must not be lost. So a replica is removed only on evidence, which
is the metadata that the same controller sent before: that others lead this partition of the same topic and this broker is
none of its replicas. It is set aside, as Kafka does, when the topic of this name is another one now or has no node at all, has
no id to tell it by, or nobody leads the partition now: renamed to `<topic>-<partition>.<hex>-stray` and never removed by us.
A topic id stands on the disk without a CRC, and in a ZooKeeper that may have been restored from a copy: a wrong one must not
cost records. In any other case it stays where it is, until the next full LeaderAndIsr decides.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from protocol.rpc.messages import PartitionState
from protocol.types import NO_LEADER, TopicPartition


class StrayAction(Enum):
    """What to do with a replica that is not named."""

    KEEP = "in doubt, or still to be told of: it stays where it is"
    SET_ASIDE = "its topic is not there any more, or others should have it: renamed, for a person to look at"
    DELETE = "others have it now"


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
    """`own_topic_id` is the log's. `is_known`, `known_topic_id`, `state`: what the controller told of topic and partition.

    `other_topics` are those that it has but did not tell of, or not wholly.
    """
    if not is_known:
        return StrayAction.KEEP if tp.topic in other_topics else StrayAction.SET_ASIDE
    has_ids = own_topic_id is not None and known_topic_id is not None
    if has_ids and own_topic_id != known_topic_id:
        return StrayAction.SET_ASIDE
    if state is None or own_id in state.replicas or own_id in state.isr:
        return StrayAction.KEEP
    return StrayAction.DELETE if has_ids and state.leader != NO_LEADER else StrayAction.SET_ASIDE
