"""Elections that an admin requests through the API (CTL-12, Kafka's processReplicaLeaderElection).

A preferred election makes the first replica the leader, if it is live and in the ISR. An unclean election elects, for a partition
without a leader, the first live replica in the ISR, or the first live replica if there is none in the ISR (INV-18). It may lose
records, and ignores the topic's setting. If all live replicas have lost their logs (FLT-33), one of them leads and starts empty: only
a person can decide that the records are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Set

from controller.cluster_state import ClusterState
from controller.decisions import leader_election
from controller.term import Term
from protocol.errors import ErrorCode, KafkaError
from protocol.types import LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

Results = dict[TopicPartition, KafkaError | None]
"""Partition -> None if it has a new leader, else the reason why not."""


async def elect(term: Term, partitions: Collection[TopicPartition] | None, *, unclean: bool) -> Results:
    """Elects, persists, announces. If `partitions` is None, all are checked, and the results have only those that needed an election."""
    cluster = term.cluster
    wanted = list(cluster.leadership) if partitions is None else sorted(partitions)
    results: Results = {}
    electable = []
    for tp in wanted:
        refusal = _refusal(cluster, tp, unclean=unclean)
        if refusal is None:
            electable.append(tp)
        else:
            results[tp] = refusal
    kind = "unclean" if unclean else "preferred"
    announcement = term.announcement()
    reached = term.channels.reached(cluster.live)
    begins_empty: dict[TopicPartition, int] = {}

    def decide(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        new = _unclean(cluster, tp, state) if unclean else _preferred(cluster, tp, state, reached)
        if new is None:
            return None
        is_empty = new.leader in cluster.emptied_replicas.get(tp, ())
        if is_empty:
            begins_empty[tp] = new.leader
        if is_empty or leader_election.is_unclean(state, new):
            what = "whose log is lost, " if is_empty else ""
            log.warning("%s: unclean election of broker %d, %sthe ISR was %s", tp, new.leader, what, state.isr)
            term.stats.unclean_elections += 1
            term.events.write(
                "unclean_election",
                partition=str(tp),
                leader=new.leader,
                isr_before=list(state.isr),
                **({"begins_empty": True} if is_empty else {}),
            )
        return new

    changed = await term.change(electable, decide, announcement, reason=f"{kind} election by request")
    for tp, leader in begins_empty.items():
        if tp in changed and cluster.leadership[tp].leader == leader:
            cluster.forget_failure(tp, leader)
            announcement.new_replicas(tp, (leader,))
    await term.announce(announcement)
    for tp in electable:
        results[tp] = _outcome(cluster, tp, reached, unclean=unclean)
    if partitions is None:
        return {tp: error for tp, error in results.items() if _needed_election(error)}
    return results


def _needed_election(error: KafkaError | None) -> bool:
    return error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED


def _refusal(cluster: ClusterState, tp: TopicPartition, *, unclean: bool) -> KafkaError | None:
    """The reason why no election is held; None if one is held."""
    if not cluster.assignment(tp).replicas:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if tp.topic in cluster.topics_to_delete:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    if tp not in cluster.leadership:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return KafkaError(code, f"{tp} never had a leader: none of its replicas has been live since its creation")
    if _has_wanted_leader(cluster, tp, unclean=unclean):
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    return None


def _has_wanted_leader(cluster: ClusterState, tp: TopicPartition, *, unclean: bool) -> bool:
    leader = cluster.leadership[tp].leader
    return cluster.is_online(tp, leader) if unclean else leader == cluster.assignment(tp).replicas[0]


def _preferred(
    cluster: ClusterState, tp: TopicPartition, state: LeaderAndIsr, reached: Set[int]
) -> LeaderAndIsr | None:
    able = cluster.with_disk(tp, reached)
    return leader_election.preferred(state, cluster.assignment(tp).replicas, able, cluster.epoch)


def _unclean(cluster: ClusterState, tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
    """Never returns a state without a leader: the reaction to the broker's failure writes it."""
    if cluster.is_online(tp, state.leader):
        return None
    replicas, able = cluster.assignment(tp).replicas, cluster.with_disk(tp, cluster.live)
    if able.isdisjoint(replicas):
        emptied = cluster.emptied_replicas.get(tp, ())
        able = frozenset([replica for replica in replicas if replica in emptied and replica in cluster.live][:1])
    new = leader_election.after_failure(state, replicas, able, cluster.epoch, unclean_allowed=True)
    return new if new is not None and new.leader in cluster.brokers else None


def _outcome(cluster: ClusterState, tp: TopicPartition, reached: Set[int], *, unclean: bool) -> KafkaError | None:
    """The partition's result, after the writes."""
    if _has_wanted_leader(cluster, tp, unclean=unclean):
        return None
    replicas = list(cluster.assignment(tp).replicas)
    state = cluster.leadership[tp]
    if unclean:
        reason = f"Failed to elect leader for partition {tp}: none of its replicas {replicas} is live"
        return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, reason)
    able = cluster.with_disk(tp, cluster.live)
    why = "is not live"
    if replicas[0] in able:
        why = f"is not in the ISR {list(state.isr)}"
        if replicas[0] not in reached:
            why = "is live, but the controller cannot reach it"
    reason = f"Failed to elect leader for partition {tp}: the preferred replica {replicas[0]} {why}"
    return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, reason)
