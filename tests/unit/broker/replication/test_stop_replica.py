"""StopReplica(delete): what it removes, and what it must leave alone (LAI-6, BUG-10, BUG-20, FLT-36)."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import ErrorCode
from protocol.rpc.messages import StopReplicaPartition, StopReplicaRequest
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAWA"


@pytest.fixture
def node(cluster: Cluster, runner: asyncio.Runner) -> Node:
    """Broker 1, which leads TP in epoch 5 and has one record. Broker 2 follows."""

    async def start() -> Node:
        await cluster.start(1, 2)
        cluster.lead(1, 5, (1, 2))
        cluster.produce(1, "a")
        return cluster.nodes[1]

    return runner.run(start())


def stop(node: Node, epoch: int, topic_id: str | None = None, *, delete: bool = True) -> tuple[int, ...]:
    """The errors of the answer."""
    ids = {TP.topic: topic_id} if topic_id is not None else {}
    request = StopReplicaRequest(9, 1, node.epoch, (StopReplicaPartition(TP.topic, 0, epoch, delete),), ids)
    return tuple(error for _, _, error in node.carry_out(request).partitions)


async def test_a_deleted_replica_is_renamed_at_once_and_removed(cluster: Cluster, node: Node) -> None:
    own = cluster.directory / "broker-1-0"
    assert (own / "t-0").is_dir()
    assert stop(node, -2, TOPIC_ID) == ()
    assert not (own / "t-0").exists()
    assert node.manager.partitions.get(TP) is None
    assert node.logs.get(TP) is None
    await node.logs.shutdown()
    assert [path.name for path in own.iterdir() if path.is_dir()] == []
    assert stop(node, -2, TOPIC_ID) == (), "the next controller repeats the request, and the broker confirms again"


@pytest.mark.parametrize("delete", [True, False])
async def test_waiting_producers_and_consumers_are_answered(cluster: Cluster, node: Node, delete: bool) -> None:
    """BUG-10: a producer that waits for acks, and a consumer that waits for records."""
    produced = cluster.produce(1, "b")
    fetched = cluster.consume(1, 0, max_wait_ms=5000)
    assert not produced
    assert not fetched
    assert stop(node, 5, TOPIC_ID, delete=delete) == ()
    cluster.time.turn()
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if delete else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [result.error for result in produced] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert [data.error for data in fetched] == [gone]
    assert cluster.produce(1, "c")[0].error == gone


@pytest.mark.parametrize("epoch", [-2, 5, 99])
async def test_a_late_request_does_not_delete_a_topic_that_was_created_again(
    cluster: Cluster, node: Node, epoch: int
) -> None:
    """BUG-20, FLT-36: -2 is above all leader epochs, so only the topic id says which topic is meant."""
    assert stop(node, -2, TOPIC_ID) == ()
    cluster.lead(1, 0, (1,), topic_id=OTHER_ID)
    cluster.produce(1, "new")
    for delete in (True, False):
        assert stop(node, epoch, TOPIC_ID, delete=delete) == (), (
            "this broker has nothing of the topic id in the request"
        )
    assert node.records() == ["new"]
    assert cluster.produce(1, "newer")[0].error is ErrorCode.NONE


async def test_a_late_request_does_not_delete_a_replica_that_was_assigned_again(cluster: Cluster, node: Node) -> None:
    """BUG-20: the request is recognized by the leader epoch of the replica, or of its log before the first LeaderAndIsr."""
    assert stop(node, 4, TOPIC_ID) == (ErrorCode.FENCED_LEADER_EPOCH,)
    cluster.kill(1)
    again = await cluster.start_broker(1)
    assert stop(again, 4, TOPIC_ID) == (ErrorCode.FENCED_LEADER_EPOCH,)
    assert again.logs.get(TP) is not None
    assert stop(again, 5, TOPIC_ID) == ()
    assert again.logs.get(TP) is None
