"""An emptied disk of a member of the ISR: no empty log replaces its records (FLT-33, INV-1, REP-7)."""

from __future__ import annotations

import pytest

from broker.replication.leadership_changes import Lookup
from protocol.errors import ErrorCode
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node

OLD, YOUNG = 50, 500
"""Zxids of a partition's creation: before the first life of the broker, and after all of them."""


async def start(cluster: Cluster, *, wipe: bool = False) -> Node:
    node = await cluster.start_broker(1, wipe=wipe)
    node.logs.note_disks(node.epoch)
    node.logs.log_directories.ensure_meta(1, "c")
    return node


def send(node: Node, state: PartitionState, created: int) -> list[ErrorCode]:
    request = LeaderAndIsrRequest(9, 1, node.epoch, (state,), {TP.topic: TOPIC_ID})
    response = node.carry_out(request, Lookup(created={TP: created}))
    return [ErrorCode(row.error) for row in response.partitions]


def state(leader: int, isr: tuple[int, ...], epoch: int, *, is_new: bool = False) -> PartitionState:
    return PartitionState(TP.topic, TP.partition, 1, leader, epoch, isr, epoch, (1, 2), is_new=is_new)


@pytest.mark.parametrize("leader", [1, 2, -1])
async def test_a_member_of_the_isr_does_not_replace_a_lost_log_with_an_empty_log(cluster: Cluster, leader: int) -> None:
    """In any role, and also after a restart, when the disk has a `meta.properties`. Out of the ISR, the replica starts empty."""

    node = await start(cluster, wipe=True)
    refused = state(leader, (1, 2), 3)
    assert send(node, refused, OLD) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert (node.logs.get(TP), node.manager.partitions.get(TP)) == (None, None)
    assert send(node, refused, OLD) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert send(node, state(2, (2,), 4), OLD) == []
    assert node.logs.get(TP) is not None


@pytest.mark.parametrize(("epoch", "is_new"), [(0, True), (0, False), (3, False)])
async def test_the_log_of_a_partition_younger_than_the_disk_was_never_created(
    cluster: Cluster, epoch: int, is_new: bool
) -> None:
    """The broker died between the creation of the topic and its first LeaderAndIsr."""
    await start(cluster)
    cluster.kill(1)
    node = await start(cluster)
    assert send(node, state(1, (1,), epoch, is_new=is_new), YOUNG) == []


async def test_a_missing_log_may_be_in_an_offline_directory(cluster: Cluster) -> None:
    """KIP-112: a failed disk may be repaired, so its records are not given up."""

    cluster.disks = 2
    node = await start(cluster, wipe=True)
    node.logs.fail_directory(node.logs.directories[0])
    assert send(node, state(1, (1,), 3), OLD) == [ErrorCode.KAFKA_STORAGE_ERROR]
