"""StopReplica(delete): what it removes, and what it must leave alone (LAI-6, BUG-10, BUG-20, FLT-36)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.storage import checkpoints
from broker.storage.disk.filesystem import FileSystem
from protocol.errors import ErrorCode
from protocol.rpc.messages import StopReplicaPartition, StopReplicaRequest
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAWA"

pytestmark = pytest.mark.usefixtures("fetchers_are_driven_by_hand")


def play(directory: Path, scenario: Callable[[Cluster, Node], Awaitable[None]]) -> None:
    """Brokers 1 and 2; 1 leads TP in epoch 5 and has one record."""

    async def main() -> None:
        cluster = Cluster(directory)
        try:
            await cluster.start(1, 2)
            cluster.lead(1, 5, (1, 2), replicas=(1, 2))
            cluster.produce(1, "a")
            await scenario(cluster, cluster.nodes[1])
        finally:
            cluster.close()

    asyncio.run(main())


def stop(node: Node, epoch: int, topic_id: str | None = None, *, delete: bool = True) -> tuple[int, ...]:
    """The errors of the answer."""
    ids = {TP.topic: topic_id} if topic_id is not None else {}
    request = StopReplicaRequest(9, 1, node.epoch, (StopReplicaPartition(TP.topic, 0, epoch, delete),), ids)
    return tuple(error for _, _, error in node.carry_out(request).partitions)


def test_a_deleted_replica_is_renamed_at_once_and_removed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster, node: Node) -> None:
        own = cluster.directory / "broker-1-0"
        assert (own / "t-0").is_dir()
        assert stop(node, -2, TOPIC_ID) == ()
        assert not (own / "t-0").exists()
        assert node.manager.partitions.get(TP) is None
        assert node.logs.get(TP) is None
        await node.logs.shutdown()
        assert [path.name for path in own.iterdir() if path.is_dir()] == []
        assert stop(node, -2, TOPIC_ID) == (), "asked again by the next controller, it confirms again"

    play(tmp_path, scenario)


def test_those_who_wait_are_answered(tmp_path: Path) -> None:
    """BUG-10: a producer that waits for acks, and a consumer that waits for records."""

    async def scenario(cluster: Cluster, node: Node) -> None:
        produced = cluster.produce(1, "b")
        fetched = cluster.consume(1, 0, max_wait_ms=5000)
        assert not produced
        assert not fetched
        assert stop(node, -2, TOPIC_ID) == ()
        cluster.time.turn()
        assert [result.error for result in produced] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert [data.error for data in fetched] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    play(tmp_path, scenario)


@pytest.mark.parametrize("epoch", [-2, 5, 99])
def test_a_late_request_never_erases_the_topic_that_was_made_again(tmp_path: Path, epoch: int) -> None:
    """BUG-20, FLT-36: -2 is above all leader epochs, so only the topic id says which topic is meant."""

    async def scenario(cluster: Cluster, node: Node) -> None:
        assert stop(node, -2, TOPIC_ID) == ()
        cluster.lead(1, 0, (1,), replicas=(1, 2), topic_id=OTHER_ID)
        cluster.produce(1, "new")
        for delete in (True, False):
            assert stop(node, epoch, TOPIC_ID, delete=delete) == (), "of the topic that is meant nothing is here"
        assert node.records() == ["new"]
        assert cluster.produce(1, "newer")[0].error is ErrorCode.NONE

    play(tmp_path, scenario)


def test_a_late_request_never_erases_a_replica_that_was_assigned_again(tmp_path: Path) -> None:
    """BUG-20: by its leader epoch, or by that of its log if there was no LeaderAndIsr yet."""

    async def scenario(cluster: Cluster, node: Node) -> None:
        assert stop(node, 4, TOPIC_ID) == (ErrorCode.FENCED_LEADER_EPOCH,)
        cluster.kill(1)
        again = await cluster.start_broker(1)
        assert stop(again, 4, TOPIC_ID) == (ErrorCode.FENCED_LEADER_EPOCH,)
        assert again.logs.get(TP) is not None
        assert stop(again, 5, TOPIC_ID) == ()
        assert again.logs.get(TP) is None

    play(tmp_path, scenario)


def test_no_checkpoint_names_it_any_more(tmp_path: Path) -> None:
    """LOG-3: and what they said is not taken for the next log of that name."""

    async def scenario(cluster: Cluster, node: Node) -> None:
        own = cluster.directory / "broker-1-0"
        await node.manager.checkpoint_high_watermarks()
        await node.logs.checkpoints.write_recovery_points()
        assert TP in checkpoints.read_offsets(FileSystem(), f"{own}/{checkpoints.HIGH_WATERMARKS}")
        assert stop(node, -2, TOPIC_ID) == ()
        cluster.lead(1, 0, (1, 2), replicas=(1, 2), topic_id=OTHER_ID)
        assert node.partition().high_watermark == 0
        assert stop(node, -2, OTHER_ID) == ()
        await node.manager.checkpoint_high_watermarks()
        await node.logs.checkpoints.write_recovery_points()
        for name in (checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS):
            assert checkpoints.read_offsets(FileSystem(), f"{own}/{name}") == {}

    play(tmp_path, scenario)
