"""A log whose `partition.metadata` has another topic id than the controller: of an earlier topic, or damaged (FLT-27, FLT-36)."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from broker.storage.directories import topic_ids
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.rpc.messages import LeaderAndIsrRequest, PartitionState, UpdateMetadataRequest
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node

OTHER_ID = "qK2jlmhTQcuDVtQ7zJ_nNw"
DISAGREEING = [topic_ids.encode(OTHER_ID), topic_ids.encode(OTHER_ID).replace(b"topic_id", b"topic id")]


@pytest.fixture
def cluster(cluster: Cluster, runner: asyncio.Runner) -> Cluster:
    """Brokers 1 and 2 have two records of TP. Broker 1 leads in epoch 0."""

    async def start() -> None:
        await cluster.start_led(1, 2)
        cluster.produce(1, "a")
        cluster.produce(1, "b")
        await cluster.settle()

    runner.run(start())
    return cluster


def metadata_of(cluster: Cluster, broker: int) -> Path:
    return cluster.directory / f"broker-{broker}-0" / str(TP) / "partition.metadata"


async def restarted_with(cluster: Cluster, broker: int, metadata: bytes) -> Node:
    cluster.kill(broker)
    metadata_of(cluster, broker).write_bytes(metadata)
    return await cluster.start_broker(broker)


def strays(cluster: Cluster, broker: int) -> list[str]:
    return [path.name for path in (cluster.directory / f"broker-{broker}-0").glob("*-stray")]


async def test_no_flipped_bit_costs_a_record(cluster: Cluster) -> None:
    """FLT-27: each bit of the file, on the only replica, which leads; the file is written again."""
    intact = metadata_of(cluster, 1).read_bytes()
    for bit in range(len(intact) * 8):
        broken = bytearray(intact)
        broken[bit // 8] ^= 1 << bit % 8
        node = await restarted_with(cluster, 1, bytes(broken))
        answer = cluster.lead(1, bit + 1, (1,), replicas=(1,), is_new=False)[1]
        assert answer.partitions == (), f"bit {bit}"
        assert node.records() == ["a", "b"], f"bit {bit}"
        log = node.log()
        assert log.topic_id == TOPIC_ID
        # A bit outside of the id, in the version's line, is let be.
        assert topic_ids.decode(metadata_of(cluster, 1).read_bytes()) == TOPIC_ID
    assert strays(cluster, 1) == []


@pytest.mark.parametrize("metadata", DISAGREEING, ids=["another id", "unreadable"])
async def test_a_follower_with_another_topics_log_keeps_it_aside_and_copies_again(
    cluster: Cluster, metadata: bytes
) -> None:
    node = await restarted_with(cluster, 2, metadata)
    assert cluster.lead(1, 1, (1,), is_new=False)[2].partitions == ()
    assert node.records() == []
    (stray,) = strays(cluster, 2)
    log = cluster.directory / "broker-2-0" / stray / f"{0:020d}.log"
    assert log.stat().st_size > 0, "a person may look at it"
    await cluster.settle()
    assert node.records() == ["a", "b"]
    assert topic_ids.read(FileSystem(), str(metadata_of(cluster, 2).parent)) == TOPIC_ID


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize("metadata", DISAGREEING, ids=["another id", "unreadable"])
async def test_an_empty_log_never_stands_for_a_member_of_the_isr(
    cluster: Cluster, metadata: bytes, leader: int
) -> None:
    """INV-1: as leader it would make the others truncate, as follower it would move the high watermark."""
    node = await restarted_with(cluster, 2, metadata)
    (refused,) = cluster.lead(leader, 1, (1, 2), is_new=False)[2].partitions
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR, "an error, so the controller treats the replica as offline"
    assert node.manager.partitions.get(TP) is None
    assert metadata_of(cluster, 2).read_bytes() == metadata, "the file is not changed"
    assert strays(cluster, 2) == []
    # Others lead without it. With the next LeaderAndIsr it starts empty.
    node = await restarted_with(cluster, 2, metadata)
    assert cluster.lead(1, 2, (1,), is_new=False)[2].partitions == ()
    await cluster.settle()
    assert node.records() == cluster.nodes[1].records() == ["a", "b"]
    assert len(strays(cluster, 2)) == 1


async def test_a_new_topic_does_not_use_the_log_of_an_earlier_topic(cluster: Cluster) -> None:
    """FLT-36: the replicas of a new topic are empty and in the ISR from the start. Its epochs start at 0 again."""
    cluster.lead(1, 3, (1, 2))
    cluster.lead(1, 0, (1, 2), topic_id=OTHER_ID)
    assert cluster.nodes[1].records() == cluster.nodes[2].records() == []
    assert len(strays(cluster, 1)) == len(strays(cluster, 2)) == 1
    assert cluster.nodes[1].partition().high_watermark == 0
    assert cluster.nodes[1].partition().leader_epoch == 0
    cluster.produce(1, "new", acks=1)
    assert cluster.nodes[1].records() == ["new"]


async def test_a_replica_with_a_flipped_bit_in_its_topic_id_is_not_removed_as_a_stray(cluster: Cluster) -> None:
    """LAI-6: a full LeaderAndIsr does not name the replica, but the metadata has it on this broker."""
    broken = bytearray(topic_ids.encode(TOPIC_ID))
    broken[-1] ^= 1
    node = await restarted_with(cluster, 1, bytes(broken))
    state = PartitionState(TP.topic, TP.partition, 1, 2, 1, (2, 1), 1, (2, 1))
    head = (9, 1, node.epoch)
    request = UpdateMetadataRequest(*head, (state,), {TP.topic: TOPIC_ID}, cluster.brokers(), is_full=True)
    node.carry_out(request)
    node.carry_out(LeaderAndIsrRequest(*head, (), {}, cluster.brokers(), is_full=True))
    assert strays(cluster, 1) == []
    cluster.lead(1, 5, (1,), replicas=(1,), is_new=False)
    assert node.records() == ["a", "b"]


async def test_a_disk_on_which_the_topic_id_cannot_be_read_has_failed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-6: EIO is no reason to start empty."""
    node = await restarted_with(cluster, 2, topic_ids.encode(OTHER_ID))

    def broken(self: FileSystem, path: str) -> bytes | None:
        raise OSError(errno.EIO, path)

    monkeypatch.setattr(FileSystem, "read_file", broken)
    (refused,) = cluster.lead(1, 1, (1,), to=(2,), is_new=False)[2].partitions
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.logs.offline_dirs == node.logs.directories
    assert strays(cluster, 2) == []
