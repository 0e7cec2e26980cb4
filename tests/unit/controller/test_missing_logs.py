"""Emptied or replaced disks of members of the ISR: an empty replica leads only if a person requests it (FLT-33, INV-1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.events import LogsMissing
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.memory_cluster import MemoryCluster, running

T0 = TopicPartition("t", 0)


def led(cluster: MemoryCluster) -> tuple[int, tuple[int, ...]]:
    return cluster.state("t").leader, cluster.state("t").isr


def offline(cluster: MemoryCluster) -> set[tuple[int, ...]]:
    return {tuple(broker.metadata[T0].offline_replicas) for broker in cluster.running.values()}


async def crash(cluster: MemoryCluster, *brokers: int, emptied: int) -> None:
    for broker in brokers:
        cluster.crash(broker)
    cluster.disks[emptied].empty_disk()


async def elect_uncleanly(cluster: MemoryCluster) -> ErrorCode:
    controller = cluster.controllers[cluster.controller]
    error = (await controller.elect_leaders(True, [T0]))[T0]
    await cluster.settle()
    return error.code if error is not None else ErrorCode.NONE


@asynccontextmanager
async def with_isr(
    *isr: int, replicas: tuple[int, ...] = (2, 3), unclean: bool = False
) -> AsyncIterator[MemoryCluster]:
    """Broker 1 is the controller."""
    async with running() as cluster:
        config = {"unclean.leader.election.enable": "true"} if unclean else None
        await cluster.create_topic("t", {0: replicas}, config)
        cluster.leader_writes_isr("t", 0, isr)
        await cluster.settle()
        yield cluster


@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("afterwards", ["nothing", "its next life", "another controller", "preferred election"])
async def test_the_only_member_with_an_empty_disk_does_not_lead(unclean: bool, afterwards: str) -> None:
    """Not in a topic that allows unclean elections either: an empty replica is worse than any other."""
    async with with_isr(2, replicas=(2,), unclean=unclean) as cluster:
        await crash(cluster, 2, emptied=2)
        await cluster.start(2)
        match afterwards:
            case "its next life":
                await cluster.bounce(2)
            case "another controller":
                await cluster.kill(1)
            case "preferred election":
                await cluster.controllers[1].elect_leaders(False, [T0])
                await cluster.settle()
        assert led(cluster) == (-1, (2,))
        assert offline(cluster) == {(2,)}
        assert await elect_uncleanly(cluster) is ErrorCode.NONE
        assert led(cluster) == (2, (2,))
        assert offline(cluster) == {()}
        assert cluster.running[2].replicas[T0].is_new
        (event,) = cluster.events.of("unclean_election")
        assert event == {"partition": "t-0", "leader": 2, "isr_before": [2], "begins_empty": True}
        await cluster.bounce(2)
        assert led(cluster) == (2, (2,)), "its records since then count"


@pytest.mark.parametrize("is_unclean", [False, True])
async def test_an_empty_member_that_is_back_first_waits_for_the_other_member(is_unclean: bool) -> None:
    async with with_isr(2, 3, unclean=is_unclean) as cluster:
        await crash(cluster, 2, 3, emptied=2)
        await cluster.settle()
        await cluster.start(2)
        assert led(cluster) == (-1, cluster.state("t").isr)
        assert offline(cluster) == {(2,)}
        await cluster.start(3)
        assert led(cluster) == (3, (3,))
        assert offline(cluster) == {()}
        assert cluster.running[2].replicas[T0].isr == (3,), "it copies from the one that has everything"
        assert not cluster.events.of("unclean_election")


async def test_the_whole_cluster_restarted_and_the_leader_came_back_empty() -> None:
    """All members bounced, so the new controller keeps the leader. The leader refuses, and the other member leads."""
    async with with_isr(2, 3) as cluster:
        await crash(cluster, 1, 2, 3, emptied=2)
        for broker in (1, 2, 3):
            await cluster.launch(broker)
        await cluster.settle()
        assert led(cluster) == (3, (3,))
        assert cluster.running[2].follows(T0)


@pytest.mark.parametrize("emptied", [2, 3])
async def test_a_member_that_bounces_with_an_empty_disk_leaves_the_isr(emptied: int) -> None:
    """FLT-23: the bounced broker is the leader or a follower."""
    async with with_isr(2, 3) as cluster:
        await crash(cluster, emptied, emptied=emptied)
        await cluster.start(emptied)
        other = 5 - emptied
        assert led(cluster) == (other, (other,))
        assert cluster.running[emptied].follows(T0)


async def test_an_unclean_election_prefers_a_replica_with_records_to_an_empty_one() -> None:
    async with with_isr(2) as cluster:
        await crash(cluster, 2, emptied=2)
        await cluster.start(2)
        assert led(cluster) == (-1, (2,))
        assert await elect_uncleanly(cluster) is ErrorCode.NONE
        assert led(cluster) == (3, (3,))
        assert cluster.running[2].follows(T0)


async def test_an_answer_for_an_older_epoch_is_ignored_and_a_replica_that_left_the_isr_gets_the_request_again() -> None:
    async with with_isr(2, 3) as cluster:
        controller, life = cluster.controllers[1], cluster.running[3].epoch
        before = cluster.state("t")
        controller._queue.post(LogsMissing(3, life, ((T0, before.leader_epoch - 1),)))
        controller._queue.post(LogsMissing(3, life - 1, ((T0, before.leader_epoch),)))
        await cluster.settle()
        assert cluster.state("t") == before
        cluster.leader_writes_isr("t", 0, (2,), notify=False)
        told = len(cluster.running[3].requests)
        controller._queue.post(LogsMissing(3, life, ((T0, before.leader_epoch),)))
        await cluster.settle()
        assert led(cluster) == (2, (2,))
        assert next(type(r).__name__ for r in cluster.running[3].requests[told:]) == "LeaderAndIsrRequest"


async def test_no_replica_counts_as_offline_if_the_leader_removed_it_from_the_isr_first() -> None:
    async with with_isr(2, 3) as cluster:
        life, epoch = cluster.running[3].epoch, cluster.state("t").leader_epoch
        cluster.leader_writes_isr("t", 0, (2,))
        await cluster.settle()
        cluster.controllers[1]._queue.post(LogsMissing(3, life, ((T0, epoch),)))
        await cluster.settle()
        assert type(cluster.running[3].requests[-1]).__name__ == "LeaderAndIsrRequest", "the request is repeated"
        assert not cluster.events.of("replicas_offline")
