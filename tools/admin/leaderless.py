"""Explains why a partition has no leader, by the state of its ISR: only members of the ISR can lead without loss.

Metadata lists the live brokers. DescribeLogDirs shows which of them have a log of the partition: a broker whose disk was emptied,
replaced or has failed must not lead with an empty log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from protocol.types import TopicPartition
from tools.admin.reassign_plan import Replica
from tools.admin.topic_views import PartitionView
from tools.failures import AdminError

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

PARTITIONS_ASKED_MAX = 1000
"""Brokers are asked for the logs of this many partitions. For the others, the cause names only dead brokers."""


def causes(
    partitions: Mapping[TopicPartition, PartitionView],
    live_brokers: Collection[int],
    admin: KafkaAdmin,
) -> dict[TopicPartition, str]:
    """The cause for each partition without a leader."""
    leaderless = {tp: view for tp, view in partitions.items() if view.leader not in live_brokers}
    asked = dict(list(leaderless.items())[:PARTITIONS_ASKED_MAX])
    members = [Replica(tp, broker) for tp, view in asked.items() for broker in view.isr if broker in live_brokers]
    without_log: set[Replica] = set()
    if members:
        with suppress(AdminError):
            without_log = admin.replicas_without_log(members)
    return {tp: cause(tp, view, live_brokers, without_log) for tp, view in leaderless.items()}


def cause(
    tp: TopicPartition, view: PartitionView, live_brokers: Collection[int], without_log: Collection[Replica]
) -> str:
    """The cause in words."""
    found = []
    for member in view.isr:
        if member not in live_brokers:
            found.append(f"broker {member} is down")
        elif Replica(tp, member) in without_log:
            found.append(f"broker {member} has no log of it: its disk was emptied, replaced or has failed")
    text = f"no leader (ISR {','.join(map(str, view.isr))}): {'; '.join(found) or 'a leader may be elected soon'}"
    if any(Replica(tp, member) in without_log for member in view.isr):
        text += (
            ". Bring back a member that has the records, or accept the loss: "
            f"ottla elect --election-type unclean --topic {tp.topic} --partition {tp.partition}"
        )
    return text
