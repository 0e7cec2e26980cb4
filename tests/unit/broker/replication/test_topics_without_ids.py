"""Topics that the controller does not know by an id: what brokers report of them, and how an id reaches replicas that have none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.replication.leadership_changes import TOPIC_DELETED_EPOCH
from broker.storage.directories import topic_ids
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.rpc.messages import (
    NO_TOPIC_ID,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.topic_ids import topic_id_uuid
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster


def id_on_disk(cluster: Cluster, broker: int) -> str | None:
    return topic_ids.read(FileSystem(), str(Path(cluster.nodes[broker].log().directory)))


async def test_an_id_reaches_leader_and_follower_in_their_epoch(cluster: Cluster) -> None:
    """Without it nothing can be copied, and the follower leaves the ISR."""
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), topic_id=None)
    cluster.produce(1, "a")
    await cluster.settle()
    assert cluster.nodes[2].records() == []
    answers = cluster.lead(1, 0, (1,), topic_id=TOPIC_ID, is_new=False)
    assert [answer.partitions for answer in answers.values()] == [(), ()]
    await cluster.settle()
    assert cluster.nodes[2].records() == ["a"]
    assert cluster.nodes[1].partition().isr == (1, 2)
    for broker in (1, 2):
        assert id_on_disk(cluster, broker) == cluster.nodes[broker].log().topic_id == TOPIC_ID
        assert cluster.nodes[broker].manager.partitions.resolve(topic_id_uuid(TOPIC_ID), 0) == TP
    repeated = cluster.lead(1, 0, (1, 2), topic_id=TOPIC_ID, is_new=False)[2]
    assert [row.error for row in repeated.partitions] == [ErrorCode.STALE_CONTROLLER_EPOCH], "LAI-2"


async def test_an_id_reaches_a_replica_with_a_newer_epoch(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), topic_id=None)
    cluster.produce(1, "a")
    cluster.lead(2, 1, (1, 2), topic_id=TOPIC_ID, is_new=False)
    cluster.produce(2, "b")
    await cluster.settle()
    assert cluster.nodes[1].records() == cluster.nodes[2].records() == ["b"]


async def test_a_replica_whose_log_has_an_id_is_copied_without_the_controllers(pair: Cluster) -> None:
    """The leader has restarted, and no metadata has told it the id."""
    await pair.settle()
    pair.kill(1)
    await pair.start_broker(1)
    pair.lead(1, 1, (1,), topic_id=None, is_new=False)
    assert pair.nodes[1].manager.partitions.resolve(topic_id_uuid(TOPIC_ID), 0) == TP
    pair.produce(1, "a")
    await pair.settle()
    assert pair.nodes[2].records() == ["a"]


@pytest.mark.parametrize(
    ("log_has_id", "metadata_has_id", "isr", "reported"),
    [
        (True, False, (1, 2), {TP.topic: TOPIC_ID}),
        (False, True, (1, 2), {TP.topic: TOPIC_ID}),
        (False, False, (1, 2), {TP.topic: NO_TOPIC_ID}),
        (True, True, (1,), {}),
    ],
    ids=["log", "metadata", "neither", "out of the ISR"],
)
async def test_what_an_in_sync_replica_reports(
    cluster: Cluster, log_has_id: bool, metadata_has_id: bool, isr: tuple[int, ...], reported: dict[str, str]
) -> None:
    await cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), topic_id=TOPIC_ID if log_has_id else None)
    cluster.kill(2)
    node = await cluster.start_broker(2)
    if metadata_has_id:
        state = PartitionState(TP.topic, TP.partition, 1, 1, 0, (1, 2), 0, (1, 2))
        node.carry_out(UpdateMetadataRequest(9, 1, node.epoch, (state,), {TP.topic: TOPIC_ID}, cluster.brokers()))
    assert cluster.lead(1, 1, isr, topic_id=None, is_new=False)[2].topic_ids == reported
    assert cluster.lead(1, 2, isr, topic_id=TOPIC_ID, is_new=False)[2].topic_ids == {}


async def test_a_move_between_directories_survives_that_the_topic_gets_an_id(cluster: Cluster) -> None:
    """KIP-113: the copy belongs to the log."""
    cluster.disks = 2
    await cluster.start(1)
    cluster.lead(1, 0, (1,), topic_id=None)
    cluster.produce(1, "a")
    node = cluster.nodes[1]
    (other,) = [path for path in node.logs.directories if path != node.log().log_dir]
    node.manager.moves.move(TP, other)
    cluster.lead(1, 0, (1,), topic_id=TOPIC_ID, is_new=False)
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    assert node.log().log_dir == other
    assert node.records() == ["a"]
    assert id_on_disk(cluster, 1) == TOPIC_ID


@pytest.mark.parametrize("epoch", [0, 3])
async def test_the_log_of_an_earlier_topic_without_an_id_is_not_a_new_topics(cluster: Cluster, epoch: int) -> None:
    """FLT-36: a person removed the topic's node in ZooKeeper before the topic got an id. The log is kept aside."""
    await cluster.start(1)
    cluster.lead(1, epoch, (1,), topic_id=None, is_new=epoch == 0)
    cluster.produce(1, "a")
    node = cluster.nodes[1]
    stop = StopReplicaPartition(TP.topic, TP.partition, TOPIC_DELETED_EPOCH, False)
    node.carry_out(StopReplicaRequest(9, cluster.controller_epoch, node.epoch, (stop,), {}))
    assert cluster.lead(1, 0, (1,), topic_id=TOPIC_ID, is_new=True)[1].partitions == ()
    assert node.records() == []
    assert cluster.produce(1, "b")
    assert node.records() == ["b"]
    assert id_on_disk(cluster, 1) == TOPIC_ID
