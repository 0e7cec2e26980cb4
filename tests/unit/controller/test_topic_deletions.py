"""Which topics are deleted, delayed or refused, and what a deletion does not touch (CTL-9, CTL-12, INV-26)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.rpc.messages import LeaderAndIsrRequest, StopReplicaRequest
from protocol.types import TopicPartition
from protocol.zk.session import DeleteOp, Op
from protocol.zk.znodes import ConfigZNode, DeleteTopicZNode, PreferredElectionZNode, TopicZNode
from tests.support.memory_cluster import MemoryCluster, on_cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def request_deletion(cluster: MemoryCluster, *topics: str) -> None:
    for topic in topics:
        cluster.server.ensure(DeleteTopicZNode.path(topic))


def is_requested(cluster: MemoryCluster, topic: str) -> bool:
    return DeleteTopicZNode.path(topic) in cluster.server.nodes


async def test_a_dead_replica_delays_the_end_but_clients_no_longer_see_the_topic(cluster: MemoryCluster) -> None:
    """CTL-9: the deletion continues when the broker is back, also under the next controller."""
    await cluster.create_topic("t", {0: (2, 3), 1: (1, 2)})
    await cluster.kill(3)
    request_deletion(cluster, "t")
    await cluster.settle()
    assert TopicZNode.path("t") in cluster.server.nodes
    assert is_requested(cluster, "t")
    assert cluster.running[1].metadata == {}
    assert cluster.running[2].replicas == {}
    await cluster.bounce(1)
    assert cluster.running[1].metadata == {}, "a controller that takes over does not bring it back"
    assert TopicZNode.path("t") in cluster.server.nodes
    await cluster.start(3)
    assert TopicZNode.path("t") not in cluster.server.nodes
    assert not is_requested(cluster, "t")
    assert cluster.running[3].replicas == {}


async def test_a_returning_broker_does_not_lead_partitions_that_are_being_deleted(cluster: MemoryCluster) -> None:
    """INV-26: its full LeaderAndIsr names the topic only in `other_topics`."""
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.kill(3)
    cluster.disks[2].failing.add(T0)
    request_deletion(cluster, "t")
    await cluster.settle()
    before = len(cluster.disks[3].requests)
    await cluster.start(3)
    told = cluster.disks[3].requests[before:]
    (full,) = [r for r in told if isinstance(r, LeaderAndIsrRequest)]
    assert full.partitions == ()
    assert full.other_topics == ("t",)
    assert any(isinstance(r, StopReplicaRequest) for r in told)
    cluster.disks[2].failing.clear()
    await cluster.bounce(2)
    assert TopicZNode.path("t") not in cluster.server.nodes


async def test_after_an_error_the_next_life_of_the_broker_gets_the_request_again(cluster: MemoryCluster) -> None:
    """CTL-9 step 5: ReplicaDeletionIneligible."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.disks[3].failing.add(T0)
    request_deletion(cluster, "t")
    await cluster.settle()
    assert is_requested(cluster, "t")
    assert T0 in cluster.disks[3].replicas
    assert cluster.events.of("replicas_deleted")[-1]["failed"] == [["t-0", "KAFKA_STORAGE_ERROR"]]
    cluster.disks[3].failing.clear()
    await cluster.bounce(3)
    assert not is_requested(cluster, "t")


async def test_a_queued_topic_gets_no_partitions_and_no_elections(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.kill(3)
    request_deletion(cluster, "t")
    await cluster.settle()
    before = dict(cluster.states())
    cluster.put_topic("t", {0: (2, 3), 1: (1, 2)})
    cluster.server.ensure(PreferredElectionZNode.PATH, PreferredElectionZNode.encode([T0, T1]))
    await cluster.settle()
    await cluster.bounce(2)
    await cluster.bounce(1)
    assert cluster.states() == before
    assert all(T1 not in broker.replicas for broker in cluster.disks.values())
    await cluster.start(3)
    assert not cluster.states()
    assert not is_requested(cluster, "t")


async def test_unknown_topics_do_not_block_the_next_admin(cluster: MemoryCluster) -> None:
    """CTL-9 step 1. Settings that an incomplete deletion by Kafka left are removed too."""
    await cluster.create_topic("t", {0: (2, 3)})
    cluster.server.ensure(ConfigZNode.path("topics", "half"), ConfigZNode.encode({"retention.ms": "1"}))
    request_deletion(cluster, "half", "no such topic", "t")
    await cluster.settle()
    assert not cluster.server.children(DeleteTopicZNode.PARENT)
    assert not cluster.server.children("/config/topics")
    assert not cluster.states()


@pytest.mark.parametrize("takes_over", [False, True])
async def test_the_deletion_of_a_topic_whose_node_is_unreadable_is_refused(
    cluster: MemoryCluster, takes_over: bool
) -> None:
    """INV-26: its replicas are unknown, so nothing could confirm their deletion. The controller logs the reason."""
    if takes_over:
        await cluster.kill(1)
        await cluster.kill(2)
        await cluster.kill(3)
    cluster.server.ensure(TopicZNode.path("bad"), b"rubbish")
    if not takes_over:
        await cluster.settle()
    request_deletion(cluster, "bad")
    if takes_over:
        await cluster.start(1, 2, 3)
    await cluster.settle()
    assert not is_requested(cluster, "bad")
    assert cluster.server.nodes[TopicZNode.path("bad")].data == b"rubbish"
    (refusal,) = cluster.events.of("topic_deletions_refused")
    assert refusal["topics"] == ["bad"]
    cluster.server.remove(TopicZNode.path("bad"))


async def test_a_topic_created_and_deleted_before_the_controller_reads_it(cluster: MemoryCluster) -> None:
    cluster.put_topic("t", {0: (2, 3)})
    request_deletion(cluster, "t")
    await cluster.settle()
    assert TopicZNode.path("t") not in cluster.server.nodes
    assert not is_requested(cluster, "t")
    assert all(not broker.replicas for broker in cluster.running.values())


async def test_nodes_that_somebody_created_below_the_topic_are_removed_too(cluster: MemoryCluster) -> None:
    await cluster.create_topic("t", {0: (2, 3)})
    for path in (
        "/brokers/topics/t/partitions/0/mine/deep",
        "/brokers/topics/t/partitions/77/state",
        "/brokers/topics/t/x",
    ):
        cluster.server.ensure(path, b"hand-written")
    request_deletion(cluster, "t")
    await cluster.settle()
    assert not [node for node in cluster.server.nodes if node.startswith("/brokers/topics/t")]


async def test_the_request_for_a_topic_removed_by_hand_is_removed(cluster: MemoryCluster) -> None:
    """It does not apply to a new topic of that name."""
    await cluster.create_topic("t", {0: (2, 3)})
    await cluster.kill(3)
    request_deletion(cluster, "t")
    await cluster.settle()
    cluster.server.remove(TopicZNode.path("t"))
    await cluster.settle()
    assert not is_requested(cluster, "t")
    await cluster.create_topic("t", {0: (2, 1)})
    assert cluster.state("t").leader == 2


async def test_the_settings_of_a_topic_that_is_created_meanwhile_stay(cluster: MemoryCluster) -> None:
    """The request names no topic, but the settings of an earlier one are left. A new topic gets its own before they are removed."""
    path = ConfigZNode.path("topics", "t")
    cluster.server.ensure(path, ConfigZNode.encode({"retention.ms": "1"}))

    def create_before(ops: Sequence[Op]) -> None:
        if any(isinstance(op, DeleteOp) for op in ops) and TopicZNode.path("t") not in cluster.server.nodes:
            cluster.server.ensure(path, ConfigZNode.encode({"retention.ms": "2"}))
            cluster.put_topic("t", {0: (2, 3)})

    for session in cluster.sessions.values():
        session.before_multi = create_before
    request_deletion(cluster, "t")
    await cluster.settle()
    assert not is_requested(cluster, "t")
    assert ConfigZNode.decode(cluster.server.nodes[path].data) == {"retention.ms": "2"}
    assert cluster.state("t").leader == 2


@on_cluster(delete_topic_enable=False)
async def test_with_deletion_disabled_requests_are_not_watched(cluster: MemoryCluster) -> None:
    """CTL-9: the next controller removes them, as in Kafka."""
    await cluster.create_topic("t", {0: (2, 3)})
    request_deletion(cluster, "t")
    await cluster.settle()
    assert is_requested(cluster, "t")
    await cluster.bounce(1)
    assert not is_requested(cluster, "t")
    assert cluster.state("t").leader == 2
    assert T0 in cluster.running[2].replicas


@pytest.mark.parametrize("another_controller", [False, True])
async def test_a_deletion_waits_for_a_move_of_a_partition_without_leader(
    cluster: MemoryCluster, another_controller: bool
) -> None:
    """As in Kafka: nothing is lost by it, as the dead broker's replica would hold the deletion up, too. It ends when the broker is back."""
    await cluster.create_topic("t", {0: (2,), 1: (1,)})
    await cluster.controllers[1].alter_reassignments({T0: (3,)})
    await cluster.kill(2)
    request_deletion(cluster, "t")
    await cluster.settle()
    if another_controller:
        await cluster.bounce(1)
    assert (cluster.state("t").leader, cluster.state("t", 1).leader) == (-1, 1), "not begun"
    await cluster.start(2)
    cluster.leader_writes_isr("t", 0, (2, 3))
    await cluster.settle()
    assert TopicZNode.path("t") not in cluster.server.nodes
    assert all(not broker.replicas for broker in cluster.disks.values())


async def test_an_answer_from_an_earlier_life_is_ignored(cluster: MemoryCluster) -> None:
    """BUG-16: the broker bounced after it answered and before the controller processed the answer."""
    await cluster.create_topic("t", {0: (2, 3)})
    handle = cluster.running[3].handle
    bounced = []

    def bounce_first(request: object) -> object:
        response = handle(request)  # type: ignore[arg-type]
        if isinstance(request, StopReplicaRequest) and not bounced:
            bounced.append(request)
            cluster.disks[3].replicas[T0] = cluster.disks[2].metadata.get(T0)  # type: ignore[assignment]
            cluster.sessions[3].expire()
            cluster.controllers[3].on_session_expired()
            cluster.sessions[3].renew()
            cluster.register(3)
            cluster.controllers[3].on_session_restored()
        return response

    cluster.running[3].handle = bounce_first  # type: ignore[method-assign, assignment]
    request_deletion(cluster, "t")
    await cluster.settle()
    assert bounced
    assert T0 not in cluster.disks[3].replicas, "its disk had it back, so it was told again"
    assert not is_requested(cluster, "t")


async def test_a_log_that_a_reassignment_left_on_a_dead_broker_is_deleted_with_the_topic(
    cluster: MemoryCluster,
) -> None:
    """FLT-36: broker 2 died before it learned that it no longer has t-0, and is back when t is deleted."""
    cluster.put_topic("t", {0: (1, 2), 1: (2, 3)}, "AAAAAAAAAAAAAAAAAAAAAA")
    await cluster.settle()
    await cluster.kill(2)
    await cluster.controllers[1].alter_reassignments({T0: (1,)})
    await cluster.settle()
    assert cluster.running[1].metadata[T0].replicas == (1,)
    assert T0 in cluster.disks[2].replicas
    request_deletion(cluster, "t")
    await cluster.settle()
    await cluster.start(2)
    assert not is_requested(cluster, "t")
    assert cluster.disks[2].replicas == {}
