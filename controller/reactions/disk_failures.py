"""Reacts to log directories that failed on live brokers (LOG-6, FLT-28, FLT-29; Kafka's processLogDirEventNotification).

1. The broker writes `/log_dir_event_notification/log_dir_event_<seq>`, which contains only its id.
2. The controller sends the broker an unchanged LeaderAndIsr for all its replicas. The broker answers KAFKA_STORAGE_ERROR for the
   replicas that it cannot serve. Nothing of this needs to be stored, because the broker gives the same answer to every LeaderAndIsr,
   and each of its lives and each controller starts with a full one.
3. These replicas become OfflineReplica: they are not elected, leave the ISR, and clients see them as offline. They come back only
   with the next life of the broker.

If a disk was emptied or replaced (FLT-33, INV-1), the broker answers REPLICA_NOT_AVAILABLE for replicas that are in the ISR but
missing on disk. Such a replica is offline too, but once it is out of the ISR it starts empty, like a new follower. If it is the only
live member of the ISR, nobody leads until another member is back, or a person requests an unclean election (`elections_by_request`).
The setting that allows unclean elections does not elect it: an empty replica is worse than any other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.announcements import Announcement
from controller.partition_status import PartitionStatus
from controller.reactions import reassignments
from controller.reactions.leader_elections import elect_after_failure, take_out_of_isr
from controller.term import PARTITIONS_IN_AN_EVENT, Term
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_A_LINE = 10


async def on_log_dirs_failed(term: Term) -> None:
    """Step 2. The notification is removed once the request is queued, because a later controller sends the request anyway."""
    paths, brokers = await term.store.log_dir_events(term.watches.log_dir_events)
    if not paths:
        return
    asked = sorted(brokers & term.cluster.brokers.keys())
    log.warning("brokers %s have failed log directories", asked)
    term.events.write("log_dir_event", brokers=sorted(brokers))
    announcement = term.announcement()
    announcement.full_leadership(asked)
    await term.announce(announcement)
    await term.store.delete(paths)


async def on_replicas_failed(
    term: Term, broker_id: int, broker_epoch: int, partitions: Sequence[TopicPartition]
) -> None:
    """Step 3. An answer from an earlier life of the broker is ignored."""
    cluster = term.cluster
    broker = cluster.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return
    failed = [tp for tp in partitions if _is_online_replica(term, tp, broker_id)]
    if not failed:
        return
    announcement = term.announcement()
    for tp in failed:
        cluster.replica_failed(tp, broker_id)
    await _lead_without(term, broker_id, failed, announcement, reason="log directory failure")
    await term.announce(announcement)
    await reassignments.resume(term)


async def on_logs_missing(
    term: Term, broker_id: int, broker_epoch: int, partitions: Sequence[tuple[TopicPartition, int]]
) -> None:
    """Handles an emptied disk. An answer for an older leader epoch is ignored, because the broker also answers for the newest.

    The leader may have removed the replica from its ISR meanwhile, in the same epoch. In this case the broker gets the request again.
    """
    cluster = term.cluster
    broker = cluster.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return
    refused = [
        tp
        for tp, epoch in partitions
        if _is_online_replica(term, tp, broker_id)
        and tp in cluster.leadership
        and cluster.leadership[tp].leader_epoch == epoch
    ]
    if not refused:
        return
    announcement = term.announcement()
    missing = [tp for tp in refused if broker_id in cluster.leadership[tp].isr]
    for tp in missing:
        cluster.mark_log_missing(tp, broker_id)
    if missing:
        await _lead_without(term, broker_id, missing, announcement, reason="log missing")
    for tp in refused:
        if broker_id not in cluster.leadership[tp].isr:
            announcement.repeat_leadership(tp, broker_id)
    await term.announce(announcement)
    await reassignments.resume(term)


def _is_online_replica(term: Term, tp: TopicPartition, broker: int) -> bool:
    return tp in term.cluster.replicas_on(broker) and term.cluster.is_online(tp, broker)


async def _lead_without(
    term: Term, broker_id: int, failed: Sequence[TopicPartition], announcement: Announcement, *, reason: str
) -> None:
    """Elects other leaders, and removes these replicas, which are already marked as failed, from the ISRs."""
    cluster = term.cluster
    named = ", ".join(map(str, failed[:PARTITIONS_IN_A_LINE]))
    log.warning("broker %d: %d replicas are offline, %s: %s", broker_id, len(failed), reason, named)
    names = [str(tp) for tp in failed[:PARTITIONS_IN_AN_EVENT]]
    more = len(failed) - len(names)
    term.events.write("replicas_offline", broker=broker_id, reason=reason, partitions=names, more=more)
    announcement.metadata(failed)
    with_state = [tp for tp in failed if tp in cluster.leadership]
    led = [tp for tp in with_state if cluster.leadership[tp].leader == broker_id]
    for tp in led:
        cluster.move_partition(tp, PartitionStatus.OFFLINE)
    await elect_after_failure(term, led, announcement, reason=reason)
    await take_out_of_isr(term, set(with_state) - set(led), {broker_id}, announcement, reason=reason)
