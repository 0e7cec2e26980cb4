"""Decides which topics may be deleted, what to do next, and which are finished (CTL-9, Kafka's TopicDeletionManager). Pure.

A topic is queued when an admin requests its deletion; from then on it is not reassigned or extended. Its deletion starts when no
reassignment of it is in progress. It is finished when every replica has confirmed its deletion (INV-26). States of a replica:

  its broker is dead (ReplicaDeletionIneligible) -> request due (Offline) -> requested (Started) -> deleted (Successful)
       ^-- the broker died or answered with an error: its next life gets the request again --'
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from controller.cluster_state import ClusterState
from controller.replica_status import ReplicaStatus
from protocol.types import TopicPartition

Replica = tuple[int, TopicPartition]
"""(broker, partition)"""

SETTLED = (
    ReplicaStatus.DELETION_STARTED,
    ReplicaStatus.DELETION_SUCCESSFUL,
    ReplicaStatus.DELETION_INELIGIBLE,
)
"""In these states a replica gets no request, or no further one, in this life of its broker."""

SETTLED_ON_DEAD_BROKER = (ReplicaStatus.DELETION_SUCCESSFUL, ReplicaStatus.DELETION_INELIGIBLE)
"""A replica on a dead broker keeps these states; from any other it becomes ineligible."""


def replicas_of(cluster: ClusterState, topic: str) -> Iterator[Replica]:
    for partition, assignment in cluster.topics.get(topic, {}).items():
        for broker in assignment.replicas:
            yield broker, TopicPartition(topic, partition)


def may_begin(cluster: ClusterState) -> list[str]:
    """The queued topics whose deletion can start: no reassignment blocks it."""
    waiting = cluster.topics_to_delete - cluster.deletions_begun
    if not waiting:
        return []
    held_up = {tp.topic for tp in cluster.reassigning}
    return sorted(waiting - held_up)


def being_deleted(cluster: ClusterState) -> Iterator[Replica]:
    """The replicas of topics whose deletion has started."""
    for topic in sorted(cluster.deletions_begun):
        yield from replicas_of(cluster, topic)


def is_to_be_stopped(cluster: ClusterState, replica: Replica) -> bool:
    """Whether the replica's broker is live and must get the request now."""
    broker, tp = replica
    return broker in cluster.brokers and cluster.replica_status(tp, broker) not in SETTLED


def is_out_of_reach(cluster: ClusterState, replica: Replica) -> bool:
    """Whether the replica's broker is dead and the replica must become ineligible."""
    broker, tp = replica
    return broker not in cluster.brokers and cluster.replica_status(tp, broker) not in SETTLED_ON_DEAD_BROKER


def strays_to_stop(cluster: ClusterState, brokers: Collection[int]) -> list[Replica]:
    """The partitions being deleted that are not assigned to these brokers, which may have logs of them nevertheless.

    A reassignment leaves such a log if the broker was dead. The log is deleted with its topic; otherwise a later topic of that name
    would find it.
    """
    return [
        (broker, TopicPartition(topic, partition))
        for topic in sorted(cluster.deletions_begun)
        for partition, assignment in cluster.topics.get(topic, {}).items()
        for broker in sorted(brokers)
        if broker in cluster.brokers and broker not in assignment.replicas
    ]


def why_ineligible(cluster: ClusterState, topic: str) -> str | None:
    """The reason why a queued topic is blocked, for a person; None if the topic only waits for answers."""
    moving = sorted(tp.partition for tp in cluster.reassigning if tp.topic == topic)
    if moving and topic not in cluster.deletions_begun:
        return f"partitions {moving} are being reassigned"
    dead: set[int] = set()
    failed: set[int] = set()
    for broker, tp in replicas_of(cluster, topic):
        if cluster.replica_status(tp, broker) is ReplicaStatus.DELETION_INELIGIBLE:
            (failed if broker in cluster.brokers else dead).add(broker)
    reasons = []
    if dead:
        reasons.append(f"brokers {sorted(dead)} are dead")
    if failed:
        reasons.append(f"brokers {sorted(failed)} could not delete")
    return " and ".join(reasons) or None
