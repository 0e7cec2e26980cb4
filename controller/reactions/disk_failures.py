"""Log directories that failed on live brokers (LOG-6, FLT-28, FLT-29; Kafka's processLogDirEventNotification).

1. The broker writes `/log_dir_event_notification/log_dir_event_<seq>`, which says no more than who it is.
2. It gets a LeaderAndIsr for all that it hosts, without anything new in it. What it cannot serve it answers with
   KAFKA_STORAGE_ERROR. So it does with any other LeaderAndIsr: in its next life, or to the next controller, which also sends
   everything once; nothing of this needs to be stored.
3. Those replicas are OfflineReplica from now on: they are not elected, leave the ISR, and clients see them as offline. Only the
   broker's next life, whose answers are heard anew, brings them back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.partition_states import PartitionState
from controller.reactions import reassignments
from controller.reactions.leader_elections import elect_after_failure, take_out_of_isr
from controller.term import Term
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_A_LINE = 10


async def on_log_dirs_failed(term: Term) -> None:
    """Step 2. The notification is removed once the question is on its way: a later controller asks by itself."""
    paths, brokers = await term.store.log_dir_events(term.watches.log_dir_events)
    if not paths:
        return
    asked = sorted(brokers & term.cluster.brokers.keys())
    log.warning("brokers %s have failed log directories", asked)
    term.events.write("log_dir_event", brokers=sorted(brokers))
    announcement = term.announcement()
    announcement.full_leadership(asked)
    term.announce(announcement)
    await term.store.delete(paths)


async def on_replicas_failed(
    term: Term, broker_id: int, broker_epoch: int, partitions: Sequence[TopicPartition]
) -> None:
    """Step 3. An answer of an earlier life of the broker counts for nothing."""
    cluster = term.cluster
    broker = cluster.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return
    hosted = cluster.replicas_on(broker_id)
    failed = [tp for tp in partitions if tp in hosted and cluster.is_online(tp, broker_id)]
    if not failed:
        return
    named = ", ".join(map(str, failed[:PARTITIONS_IN_A_LINE]))
    log.warning("broker %d: %d replicas are offline: %s", broker_id, len(failed), named)
    term.events.write("replicas_offline", broker=broker_id, partitions=[str(tp) for tp in failed])
    announcement = term.announcement()
    announcement.metadata(failed)
    for tp in failed:
        cluster.replica_failed(tp, broker_id)
    with_state = [tp for tp in failed if tp in cluster.leadership]
    led = [tp for tp in with_state if cluster.leadership[tp].leader == broker_id]
    for tp in led:
        cluster.move_partition(tp, PartitionState.OFFLINE)
    await elect_after_failure(term, led, announcement, reason="log directory failure")
    await take_out_of_isr(term, set(with_state) - set(led), {broker_id}, announcement, reason="log directory failure")
    term.announce(announcement)
    await reassignments.resume(term)
