"""Before the controller decides to change nothing, it reads the ISR in ZooKeeper: its own copy may be old (CTL-5)."""

from __future__ import annotations

import pytest

from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import TopicPartition
from tests.support.memory_cluster import MemoryCluster

T0 = TopicPartition("t", 0)


async def with_an_unannounced_member(cluster: MemoryCluster) -> None:
    """Broker 1 is the controller and believes in the ISR (2,); ZooKeeper has (2, 3)."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.leader_writes_isr("t", 0, (2,))
    await cluster.settle()
    cluster.leader_writes_isr("t", 0, (2, 3), notify=False)


async def test_a_dead_follower_leaves_the_isr_that_it_has_just_joined(cluster: MemoryCluster) -> None:
    await with_an_unannounced_member(cluster)
    await cluster.kill(3)
    state = cluster.state("t")
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)


@pytest.mark.parametrize(("stopping", "other"), [(3, 2), (2, 3)], ids=["a follower", "the leader"])
async def test_a_broker_that_stops_leaves_the_isr_to_the_other(
    cluster: MemoryCluster, stopping: int, other: int
) -> None:
    await with_an_unannounced_member(cluster)
    request = ControlledShutdownRequest(stopping, cluster.running[stopping].epoch)
    assert (await cluster.controllers[1].controlled_shutdown(request)).partitions == ()
    assert (cluster.state("t").leader, cluster.state("t").isr) == (other, (other,))
    await cluster.kill(stopping)


async def test_a_failed_disk_leaves_the_isr_that_it_has_just_joined(cluster: MemoryCluster) -> None:
    await with_an_unannounced_member(cluster)
    cluster.disk_fails(3, T0)
    await cluster.settle()
    assert cluster.state("t").isr == (2,)
