"""Log directories that fail on live brokers: offline replicas are not elected, and all brokers learn it (LOG-6, FLT-28, FLT-29)."""

from __future__ import annotations

import pytest

from controller.replica_status import ReplicaStatus
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import TopicPartition
from protocol.zk.znodes import LogDirEventZNode
from tests.support.memory_cluster import MemoryCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def offline(cluster: MemoryCluster, tp: TopicPartition = T0) -> set[tuple[int, ...]]:
    """The partition's offline replicas as the brokers know them; one element if all agree."""
    return {tuple(broker.metadata[tp].offline_replicas) for broker in cluster.running.values()}


def replica_status(cluster: MemoryCluster, broker: int, tp: TopicPartition = T0) -> ReplicaStatus:
    term = cluster.controllers[cluster.controller]._term
    assert term is not None
    return term.cluster.replica_status(tp, broker)


async def fail(cluster: MemoryCluster, broker: int, *partitions: TopicPartition) -> None:
    cluster.disk_fails(broker, *partitions)
    await cluster.settle()


async def test_leaders_move_from_the_failed_directory_only(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3, 1), 1: (2, 3, 1)})
    await fail(cluster, 2, T0)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (3, (3, 1))
    assert (cluster.state("t", 1).leader, cluster.state("t", 1).isr) == (2, (2, 3, 1))
    assert offline(cluster) == {(2,)}
    assert offline(cluster, T1) == {()}
    assert replica_status(cluster, 2) is ReplicaStatus.OFFLINE
    assert replica_status(cluster, 2, T1) is ReplicaStatus.ONLINE


async def test_a_follower_leaves_the_isr_in_a_new_epoch(cluster: MemoryCluster) -> None:
    """BUG-6: without a new epoch the leader would ignore it."""
    await cluster.create_topic("t", {0: (2, 3, 1)})
    await fail(cluster, 3, T0)
    state = cluster.state("t")
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2, 1), 1)


async def test_the_only_member_of_the_isr_leads_again_in_the_next_life_of_its_broker(cluster: MemoryCluster) -> None:
    """INV-4, INV-18: until then there is no leader, and the ISR stays."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.leader_writes_isr("t", 0, (2,))
    await cluster.settle()
    await fail(cluster, 2, T0)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (-1, (2,))
    cluster.disks[2].offline.clear()
    await cluster.bounce(2)
    assert cluster.state("t").leader == 2
    assert offline(cluster) == {()}


@pytest.mark.parametrize("unclean", [False, True])
async def test_elections_by_request_do_not_choose_a_replica_without_a_disk(
    cluster: MemoryCluster, unclean: bool
) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    await fail(cluster, 2, T0)
    if unclean:
        await fail(cluster, 3, T0)
    error = (await cluster.controllers[cluster.controller].elect_leaders(unclean, [T0]))[T0]
    wanted = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert error is not None
    assert error.code is wanted
    assert cluster.state("t").leader == (-1 if unclean else 3)


async def test_a_controlled_shutdown_does_not_choose_a_replica_without_a_disk(cluster: MemoryCluster) -> None:
    """STA-2."""
    await cluster.create_topic("t", {0: (2, 3)})
    await fail(cluster, 3, T0)
    request = ControlledShutdownRequest(2, cluster.running[2].epoch)
    response = await cluster.controllers[cluster.controller].controlled_shutdown(request)
    assert [(row.topic, row.partition) for row in response.partitions] == [("t", 0)]
    await cluster.kill(2)
    assert cluster.state("t").leader == -1


async def test_a_new_controller_learns_of_failed_disks_from_the_answers(cluster: MemoryCluster) -> None:
    """Failures are not stored: every broker answers a full LeaderAndIsr in each term."""
    await cluster.create_topic("t", {0: (2, 3, 1)})
    await fail(cluster, 2, T0)
    await cluster.kill(cluster.controller)
    assert offline(cluster) == {(2,)}
    assert cluster.state("t").leader == 3
    assert 2 not in cluster.state("t").isr


async def test_unreadable_notifications_and_those_of_dead_brokers_are_removed(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3, 1)})
    before = cluster.state("t")
    cluster.server.ensure(f"{LogDirEventZNode.PATH_PREFIX}0000000001", b"rubbish")
    cluster.server.ensure(f"{LogDirEventZNode.PATH_PREFIX}0000000002", LogDirEventZNode.encode(77))
    await cluster.settle()
    assert cluster.state("t") == before


def test_the_notification_is_kafkas() -> None:
    assert LogDirEventZNode.encode(3) == b'{"version":1,"broker":3,"event":1}'
    assert LogDirEventZNode.decode(b'{"version":1,"broker":3,"event":1}') == 3
    with pytest.raises(ValueError, match="broker"):
        LogDirEventZNode.decode(b'{"version":1}')
