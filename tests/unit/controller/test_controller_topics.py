"""The controller's reactions to topics, to requests of admins, and to invalid znodes (CTL-6, 8, 12, FLT-36)."""

from __future__ import annotations

import asyncio

import pytest

from protocol.rpc.messages import LeaderAndIsrRequest
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.znodes import PreferredElectionZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster, scenario

T0 = TopicPartition("t", 0)
ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAA", "BAAAAAAAAAAAAAAAAAAAAA"


async def test_partitions_are_added_and_never_removed(cluster: MemoryCluster) -> None:
    """CTL-8."""
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.create_topic("t", {0: (3, 1), 1: (3, 2)})
    assert cluster.state("t", 0) == LeaderAndIsr(2, 0, (2, 3), 1, 0)
    assert cluster.state("t", 1) == LeaderAndIsr(3, 0, (3, 2), 1, 0)
    assert cluster.running[1].metadata[T0].replicas == (2, 3)
    await cluster.create_topic("t", {1: (3, 2)})
    assert T0 in cluster.running[1].metadata


async def test_a_topic_removed_by_hand_is_forgotten(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.server.remove(TopicZNode.path("t"))
    await cluster.settle()
    assert T0 not in cluster.running[1].metadata
    assert cluster.running[2].stopped == {T0}
    await cluster.create_topic("t", {0: (3,)})
    assert cluster.state("t").leader == 3


@pytest.mark.parametrize("turns", range(12))
async def test_a_topic_deleted_and_created_again_during_the_reads(cluster: MemoryCluster, turns: int) -> None:
    """FLT-36: one read misses the topic's node and the next finds its name again. The topic comes back at any turn between."""
    cluster.put_topic("t", {0: (2, 3)}, ID_1)
    await cluster.settle()
    cluster.server.remove(TopicZNode.path("t"))
    for _ in range(turns):
        await asyncio.sleep(0)
    cluster.put_topic("t", {0: (3, 2)}, ID_2)
    await cluster.settle()
    assert cluster.state("t").leader == 3
    last = [r for r in cluster.running[2].requests if isinstance(r, LeaderAndIsrRequest)][-1]
    assert last.topic_ids == {"t": ID_2}


@pytest.mark.parametrize("replicas", [(), (2, 2)])
async def test_an_impossible_assignment_is_ignored_until_it_is_repaired(
    cluster: MemoryCluster, replicas: tuple[int, ...]
) -> None:
    await cluster.create_topic("t", {0: (2, 3), 1: replicas})
    assert cluster.states() == {}
    await cluster.create_topic("t", {0: (2, 3), 1: (3,)})
    assert len(cluster.states()) == 2


async def test_preferred_election_by_the_znode(cluster: MemoryCluster) -> None:
    """CTL-12. Unknown partitions and invalid content are removed with the node."""
    await cluster.create_topic("t", {0: (2, 3), 1: (2, 3)})
    await cluster.bounce(2)
    assert cluster.state("t", 0).leader == 3
    cluster.leader_writes_isr("t", 0, (3, 2))
    await cluster.settle()
    asked = [T0, TopicPartition("t", 1), TopicPartition("no", 5)]
    for data in (PreferredElectionZNode.encode(asked), b"rubbish"):
        cluster.server.ensure(PreferredElectionZNode.PATH, data)
        await cluster.settle()
        assert PreferredElectionZNode.PATH not in cluster.server.nodes
    assert cluster.state("t", 0) == LeaderAndIsr(2, 2, (3, 2), 1, 3)
    assert cluster.state("t", 1).leader == 3, "2 is not in its ISR"


@pytest.mark.parametrize(("percentage", "leader"), [(10, 2), (60, 3)])
def test_the_balance_is_restored_from_time_to_time(percentage: int, leader: int) -> None:
    """Others lead half of the partitions that prefer broker 2, and never more while broker 2 could lead them."""

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (2, 3), 1: (2, 3)})
        await cluster.create_topic("u", {0: (2,)})
        await cluster.create_topic("v", {0: (2,)})
        await cluster.bounce(2)
        assert cluster.state("t", 0).leader == 3
        cluster.leader_writes_isr("t", 0, (3, 2))
        await cluster.settle()
        await asyncio.sleep(0.05)
        await cluster.until(lambda: cluster.state("t", 0).leader == leader)

    scenario(play, leader_imbalance_check_interval_seconds=0.02, leader_imbalance_per_broker_percentage=percentage)
