"""Leadership does not move to a broker that the controller cannot reach, unless no other broker can lead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller import broker_channels
from controller.events import RebalanceDue
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import TopicPartition
from tests.support.memory_cluster import MemoryCluster, running

T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def it_tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_channels, "RETRY_S", 0.001)


@pytest.fixture
@asynccontextmanager
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Broker 1 is the controller and leads t-0, which prefers 2. It cannot reach 2, which is in the ISR."""
    async with running(leader_imbalance_per_broker_percentage=0) as cluster:
        await cluster.create_topic("t", {0: (2, 1, 3)})
        await cluster.bounce(2)
        cluster.leader_writes_isr("t", 0, (1, 3, 2))
        await cluster.settle()
        assert cluster.state("t").leader == 1
        cluster.network.rejected.add(2)
        cluster.put_topic("news", {0: (1,)})
        await cluster.until(lambda: reached(cluster) == {1, 3})
        yield cluster
        cluster.network.rejected.clear()
        await cluster.until(lambda: reached(cluster) == {1, 2, 3})


def reached(cluster: MemoryCluster) -> set[int]:
    """The brokers that the controller reaches."""
    term = cluster.controllers[1]._term
    assert term is not None
    return set(term.channels.reached({1, 2, 3}))


async def test_the_preferred_leader_is_elected_when_it_is_reachable_again(cluster: MemoryCluster) -> None:
    controller = cluster.controllers[1]
    error = (await controller.elect_leaders(False, [T0]))[T0]
    assert error is not None
    assert (error.code, "cannot reach it" in str(error)) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, True)
    controller._queue.post(RebalanceDue())
    await controller.elect_leaders(True, [T0])  # is answered after it
    assert cluster.state("t").leader == 1
    cluster.network.rejected.clear()
    await cluster.until(lambda: controller._term.channels.reached({2}))  # type: ignore[union-attr]
    assert (await controller.elect_leaders(False, [T0]))[T0] is None
    assert cluster.state("t").leader == 2


async def test_a_stopping_leader_hands_over_to_a_reachable_broker(cluster: MemoryCluster) -> None:
    request = ControlledShutdownRequest(1, cluster.running[1].epoch)
    await cluster.controllers[1].controlled_shutdown(request)
    assert cluster.state("t").leader == 3
