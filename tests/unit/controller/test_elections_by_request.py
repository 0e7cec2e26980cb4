"""Elections that an admin requests through the API (CTL-12, INV-18, Kafka's codes)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from protocol.errors import ErrorCode
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.znodes import DeleteTopicZNode
from tests.support.memory_cluster import MemoryCluster, running
from tests.support.refusals import refused

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
NONE = ErrorCode.NONE


async def elect(
    cluster: MemoryCluster, partitions: Collection[TopicPartition] | None, *, unclean: bool = False
) -> dict[TopicPartition, ErrorCode]:
    (controller,) = [c for c in cluster.controllers.values() if c.is_active]
    results = await controller.elect_leaders(unclean, partitions)
    await cluster.settle()
    return {tp: error.code if error is not None else NONE for tp, error in results.items()}


@pytest.fixture
@asynccontextmanager
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Broker 1 is the controller. t-0 prefers 2, which is in the ISR again; t-1 prefers 2, which is not; t-2 is led by 3, its first."""
    async with running() as cluster:
        await cluster.create_topic("t", {0: (2, 3), 1: (2, 3), 2: (3, 1)})
        await cluster.bounce(2)
        cluster.leader_writes_isr("t", 0, (3, 2))
        await cluster.settle()
        assert {tp: s.leader for tp, s in cluster.states().items()} == {T0: 3, T1: 3, T2: 3}
        yield cluster


async def test_a_preferred_election_answers_for_each_partition(cluster: MemoryCluster) -> None:
    unknown = TopicPartition("no", 1)
    assert await elect(cluster, [T0, T1, T2, unknown]) == {
        T0: NONE,
        T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        T2: ErrorCode.ELECTION_NOT_NEEDED,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert cluster.state("t", 0) == LeaderAndIsr(2, 2, (3, 2), 1, 3)
    assert cluster.running[1].metadata[T0].leader == 2
    assert cluster.running[2].replicas[T0].leader == 2
    assert await elect(cluster, [T0]) == {T0: ErrorCode.ELECTION_NOT_NEEDED}


async def test_a_request_for_all_partitions_returns_only_those_that_needed_an_election(cluster: MemoryCluster) -> None:
    assert await elect(cluster, None) == {T0: NONE, T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert await elect(cluster, None, unclean=True) == {}


async def test_an_unclean_election_needs_a_request_and_a_partition_without_a_leader(cluster: MemoryCluster) -> None:
    """INV-18: neither the failure nor a preferred election elects a replica outside of the ISR."""
    await cluster.kill(3)
    assert cluster.state("t", 1).leader == -1
    assert cluster.state("t", 1).isr == (3,)
    before = cluster.state("t", 2)
    assert await elect(cluster, [T0, T1, T2]) == {
        T0: ErrorCode.ELECTION_NOT_NEEDED,
        T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        T2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert cluster.state("t", 1).leader == -1
    assert await elect(cluster, None, unclean=True) == {T1: NONE}
    assert cluster.state("t", 1).leader == 2
    assert cluster.state("t", 1).isr == (2,)
    (event,) = cluster.events.of("unclean_election")
    assert event == {"partition": "t-1", "leader": 2, "isr_before": [3]}
    assert cluster.state("t", 2) == before


@pytest.mark.parametrize("unclean", [False, True])
async def test_without_a_live_replica_nothing_is_written(cluster: MemoryCluster, unclean: bool) -> None:
    await cluster.create_topic("u", {0: (3, 2)})
    await cluster.kill(2)
    await cluster.kill(3)
    u0 = TopicPartition("u", 0)
    before = cluster.state("u")
    wanted = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await elect(cluster, [u0], unclean=unclean) == {u0: wanted}
    assert cluster.state("u") == before, "nothing was written"


@pytest.mark.parametrize("unclean", [False, True])
async def test_a_partition_that_never_had_a_leader_is_refused(cluster: MemoryCluster, unclean: bool) -> None:
    await cluster.create_topic("u", {0: (7, 8)})
    u0 = TopicPartition("u", 0)
    wanted = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await elect(cluster, [u0], unclean=unclean) == {u0: wanted}


@pytest.mark.parametrize("unclean", [False, True])
async def test_a_topic_that_is_being_deleted_is_refused(cluster: MemoryCluster, unclean: bool) -> None:
    await cluster.kill(3)
    cluster.server.ensure(DeleteTopicZNode.path("t"))
    await cluster.settle()
    assert await elect(cluster, [T1], unclean=unclean) == {T1: ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert await elect(cluster, None, unclean=unclean) == {}
    await cluster.start(3)


async def test_only_the_controller_elects(cluster: MemoryCluster) -> None:
    """CTL-3. A request that waits in the queue when the term ends gets NOT_CONTROLLER."""
    with refused(ErrorCode.NOT_CONTROLLER):
        await cluster.controllers[2].elect_leaders(False, None)
    asked = asyncio.ensure_future(cluster.controllers[1].elect_leaders(False, [T0]))
    await asyncio.sleep(0)
    cluster.expire(1)
    with refused(ErrorCode.NOT_CONTROLLER):
        await asked
    await cluster.settle()


async def test_a_replica_that_just_left_the_isr_is_not_elected(cluster: MemoryCluster) -> None:
    """INV-4: the leader changes the ISR just before the write, so the decision is made again."""

    def shrinks(ops: object) -> None:
        cluster.sessions[1].before_multi = lambda ops: None
        cluster.leader_writes_isr("t", 0, (3,))

    cluster.sessions[1].before_multi = shrinks
    assert await elect(cluster, [T0]) == {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert cluster.state("t", 0).leader == 3
