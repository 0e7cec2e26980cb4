"""The fetcher's own loops, against a leader that parks fetches (REP-1, REP-6, REP-9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

from broker.replication.following import replica_fetcher
from broker.replication.following.followed_partitions import Phase
from broker.replication.following.leader_endpoint import SHORT_WAIT_MS
from protocol.errors import ErrorCode
from protocol.topic_ids import topic_id_text
from protocol.types import TopicPartition
from tests.support.held_syncs import held_syncs
from tests.support.replica_cluster import TP, Cluster
from tools.sim.world.disk import MemoryDisk


async def until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds. Turns are counted, not seconds."""
    for _ in range(500):
        if condition():
            return
        cluster.time.turn()
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def test_the_loops_truncate_copy_and_acknowledge(live_cluster: Cluster) -> None:
    cluster = await live_cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    follower, leader = cluster.nodes[2], cluster.nodes[1]
    await until(cluster, lambda: leader.manager.waiting() == (0, 1))  # the follower's fetch is parked
    (fetcher,) = follower.manager.fetchers()
    assert fetcher.phase_of(TP) is Phase.IN_SYNC
    for value in "abc":
        answer = cluster.produce(1, value)
        await until(cluster, lambda answer=answer: bool(answer))  # type: ignore[misc]
        assert answer[0].error == ErrorCode.NONE
    assert follower.records() == ["a", "b", "c"]
    cluster.lead(1, 1, (1, 2), replicas=(1, 2))  # a new epoch: truncation again, while a fetch is parked
    answer = cluster.produce(1, "d")
    await until(cluster, lambda: bool(answer))
    assert follower.records() == ["a", "b", "c", "d"]
    await follower.manager.shutdown()
    await leader.manager.shutdown()


async def test_a_fetcher_without_partitions_is_closed(live_cluster: Cluster) -> None:
    """LAI-5."""
    cluster = await live_cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    follower = cluster.nodes[2].manager
    assert len(follower.fetchers()) == 1
    cluster.lead(2, 1, (1, 2), replicas=(1, 2))
    assert follower.fetchers() == ()
    cluster.lead(-1, 2, (1, 2), replicas=(1, 2))
    assert follower.fetchers() == ()
    for node in cluster.nodes.values():
        await node.manager.shutdown()


async def test_a_fetcher_closes_although_a_partition_was_added_just_before(live_cluster: Cluster) -> None:
    """As in a shutdown whose last LeaderAndIsr adds a partition. `asyncio.wait_for` of Python 3.11 loses the cancellation."""
    cluster = await live_cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    follower, leader = cluster.nodes[2], cluster.nodes[1]
    await until(cluster, lambda: leader.manager.waiting() == (0, 1))  # the truncating loop has nothing to do, and waits
    cluster.lead(1, 1, (1, 2), replicas=(1, 2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(follower.manager.shutdown())
    async with asyncio.timeout(10):  # it writes checkpoints in a thread: no number of turns is enough for sure
        await closing
    await leader.manager.shutdown()


async def test_shutdown_answers_all_waiting_requests(live_cluster: Cluster) -> None:
    cluster = await live_cluster.start(1)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2))
    produced = cluster.produce(1, "a")
    consumed = cluster.consume(1, 0, max_wait_ms=1000)
    manager = cluster.nodes[1].manager
    await manager.shutdown()
    assert produced[0].error == consumed[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert manager.waiting() == (0, 0)
    assert cluster.nodes[1].logs.checkpoints.read_high_watermarks() == {TP: 0}


async def test_other_partitions_do_not_wait_for_a_slow_flush(
    live_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flush.messages`: the leader gets the claim as soon as the flush is done, although a fetch of the others was parked meanwhile."""
    syncs = held_syncs(monkeypatch)
    monkeypatch.setattr(replica_fetcher, "FLUSH_WAIT_S", 0)
    disks = {broker: MemoryDisk() for broker in (1, 2)}
    live_cluster.filesystem = disks.__getitem__
    other = TopicPartition("other", 0)
    cluster = await live_cluster.start(1, 2)
    cluster.lead(1, 0, (1, 2), replicas=(1, 2), overrides={"flush.messages": "1"})
    cluster.tp = other
    cluster.lead(1, 0, (1, 2), replicas=(1, 2), topic_id=topic_id_text(uuid.UUID(int=78)))
    flushed = cluster.produce(1, "a")
    await until(cluster, lambda: syncs.count() == 2)
    await syncs.end(disks[1])
    for value in "bcd":
        answer = cluster.produce(1, value, tp=other)
        await until(cluster, lambda answer=answer: bool(answer))  # type: ignore[misc]
        assert answer[0].error == ErrorCode.NONE
    assert (flushed, syncs.count()) == ([], 1)
    await syncs.end(disks[2])
    cluster.time.advance(SHORT_WAIT_MS / 1000)
    await until(cluster, lambda: bool(flushed))
    assert flushed[0].error == ErrorCode.NONE
    for node in cluster.nodes.values():
        await node.manager.shutdown()
