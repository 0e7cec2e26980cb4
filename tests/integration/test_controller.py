"""Controllers on a real ZooKeeper, talking over real sockets to stand-in brokers that register, listen and acknowledge.

CTL-1, 5, 6, 14, STA-1, 4, INV-9, FLT-4, 7, 20, 21, 23: the exact states in ZooKeeper are asserted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import LeaderAndIsr, TopicPartition
from protocol.zk.session import CreateOp, DeleteOp, SessionState, ZooKeeperSession
from protocol.zk.znodes import (
    PERSISTENT_PATHS,
    BrokerIdZNode,
    ControllerZNode,
)
from tests.support.controller_processes import TIMEOUT_S, ControllerCluster
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration


Play = Callable[[ControllerCluster], Awaitable[None]]
Scenario = Callable[..., None]


@pytest.fixture
def scenario(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Scenario:
    """Runs a play with brokers 1, 2 and 3, started in this order, in a chroot of its own."""

    def run(play: Play, **settings: Any) -> None:
        async def main() -> None:
            hosts = f"{server.connect}/{request.node.name.replace('[', '-').replace(']', '')}"
            zk = ZooKeeperSession(hosts, session_timeout_ms=10_000)
            await zk.start(10)
            for path in PERSISTENT_PATHS:
                await zk.ensure_path(path)
            cluster = ControllerCluster(server, hosts, zk, {"auto_leader_rebalance_enable": False, **settings}, {}, {})
            try:
                async with asyncio.timeout(2 * TIMEOUT_S):
                    await cluster.start(1, 2, 3)
                    await play(cluster)
            finally:
                for broker_id in list(cluster.processes):
                    await cluster.kill(broker_id)
                await zk.close()

        asyncio.run(main())

    return run


def test_election_topic_creation_and_broker_failure(scenario: Scenario) -> None:
    """CTL-1, CTL-5, CTL-6: the exact states."""

    async def play(cluster: ControllerCluster) -> None:
        assert cluster.active() == [1]
        assert await cluster.epoch() == 1
        assert ControllerZNode.decode((await cluster.zk.get(ControllerZNode.PATH))[0]) == 1
        await cluster.create_topic("t", {0: (2, 3, 1), 1: (3, 2), 2: (2,)})
        await cluster.becomes("t", 0, LeaderAndIsr(2, 0, (2, 3, 1), 1, 0))
        await cluster.becomes("t", 1, LeaderAndIsr(3, 0, (3, 2), 1, 0))
        await cluster.kill(2)
        await cluster.becomes("t", 0, LeaderAndIsr(3, 1, (3, 1), 1, 1))
        await cluster.becomes("t", 1, LeaderAndIsr(3, 1, (3,), 1, 1))
        await cluster.becomes("t", 2, LeaderAndIsr(-1, 1, (2,), 1, 1))
        await cluster.until(
            lambda: cluster.disks[3].replicas[TopicPartition("t", 0)].leader == 3, "broker 3 hears of it"
        )
        await cluster.start(2)
        await cluster.becomes("t", 2, LeaderAndIsr(2, 2, (2,), 1, 2))
        first = cluster.disks[2].requests[-4:]
        assert any(isinstance(r, UpdateMetadataRequest) and r.is_full for r in first)

    scenario(play)


def test_a_dead_controller_is_replaced(scenario: Scenario) -> None:
    """FLT-4: another broker is elected, the epoch rises by one, and the dead broker's partitions get leaders."""

    async def play(cluster: ControllerCluster) -> None:
        await cluster.create_topic("t", {0: (1, 2), 1: (3, 1)})
        await cluster.becomes("t", 1, LeaderAndIsr(3, 0, (3, 1), 1, 0))
        await cluster.kill(1)
        await cluster.becomes("t", 0, LeaderAndIsr(2, 1, (2,), 2, 1))
        await cluster.becomes("t", 1, LeaderAndIsr(3, 1, (3,), 2, 1))
        assert await cluster.epoch() == 2
        assert len(cluster.active()) == 1

    scenario(play)


def test_a_deposed_controller_writes_nothing(scenario: Scenario) -> None:
    """INV-9, BUG-8, FLT-7: it decides, is paused, and wakes after the next controller has decided differently."""

    async def play(cluster: ControllerCluster) -> None:
        await cluster.create_topic("t", {0: (2, 3, 1)})
        await cluster.becomes("t", 0, LeaderAndIsr(2, 0, (2, 3, 1), 1, 0))
        old = cluster.processes[1]
        old.zk.gate.clear()
        await cluster.kill(2)
        await cluster.until(
            lambda: any(kind == "brokers_changed" and 2 in f["gone"] for kind, f in old.events.rows), "it has decided"
        )
        await cluster.zk.delete(ControllerZNode.PATH)
        await cluster.until(lambda: cluster.processes[3].controller.is_active, "the next controller")
        await cluster.becomes("t", 0, LeaderAndIsr(3, 1, (3, 1), 2, 1))
        assert old.controller.is_active, "it does not know yet"
        old.zk.gate.set()
        await cluster.until(lambda: not old.controller.is_active, "it resigns")
        assert await cluster.state("t") == LeaderAndIsr(3, 1, (3, 1), 2, 1)
        assert await cluster.epoch() == 2
        assert "epoch" in old.events.of("controller_resigned")[0]["reason"]
        assert all(broker.controller_epoch == 2 for b, broker in cluster.disks.items() if b != 2)

    scenario(play)


def test_a_bounce_that_leaves_the_list_of_brokers_unchanged(scenario: Scenario) -> None:
    """FLT-23, BUG-16: the czxid shows it."""

    async def play(cluster: ControllerCluster) -> None:
        await cluster.create_topic("t", {0: (2, 3), 1: (2,)})
        await cluster.becomes("t", 1, LeaderAndIsr(2, 0, (2,), 1, 0))
        path = BrokerIdZNode.path(2)
        data, _ = await cluster.zk.get(path)
        process = cluster.processes[2]
        # One multi: no look can fall in between.
        await process.zk.multi([DeleteOp(path), CreateOp(path, data, ephemeral=True)])
        process.broker.begin_life((await cluster.zk.get(path))[1].czxid)
        await cluster.becomes("t", 0, LeaderAndIsr(3, 1, (3,), 1, 1))
        await cluster.becomes("t", 1, LeaderAndIsr(2, 2, (2,), 1, 2))
        assert cluster.processes[1].events.of("brokers_changed")[-1]["bounced"] == [2]
        await cluster.until(
            lambda: cluster.disks[2].replicas[TopicPartition("t", 0)].leader == 3, "broker 2 hears of it"
        )

    scenario(play)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_session_expires(scenario: Scenario, broker_id: int) -> None:
    """FLT-20, STA-4: the session of the controller, which resigns first, or of another broker."""

    async def play(cluster: ControllerCluster) -> None:
        await cluster.create_topic("t", {0: (broker_id, 3), 1: (broker_id,)})
        await cluster.becomes("t", 1, LeaderAndIsr(broker_id, 0, (broker_id,), 1, 0))
        epoch = cluster.disks[broker_id].epoch
        cluster.server.expire_session(cluster.processes[broker_id].zk.session_id)
        await cluster.until(lambda: cluster.disks[broker_id].epoch > epoch, "it registers again")
        await cluster.until(lambda: len(cluster.active()) == 1, "one controller")
        controller_epoch = 2 if broker_id == 1 else 1
        await cluster.until(
            lambda: all(broker.controller_epoch == controller_epoch for broker in cluster.disks.values()),
            "all follow the controller",
        )
        await cluster.until(
            lambda: (
                cluster.disks[broker_id].replicas[TopicPartition("t", 1)].leader == broker_id
                and not cluster.disks[broker_id].steps_down
            ),
            "its own partition is led again",
        )
        assert (await cluster.state("t", 1)).isr == (broker_id,)
        if broker_id == 2:
            await cluster.becomes("t", 0, LeaderAndIsr(3, 1, (3,), 1, 1))
            await cluster.becomes("t", 1, LeaderAndIsr(2, 2, (2,), 1, 2))
        else:
            assert cluster.processes[1].events.of("controller_resigned")

    scenario(play)


def test_zookeeper_restarts(scenario: Scenario) -> None:
    """FLT-21, CTL-14: no session expires, nobody is elected, and events that were missed are handled afterwards."""

    async def play(cluster: ControllerCluster) -> None:
        await cluster.create_topic("t", {0: (2, 3)})
        await cluster.becomes("t", 0, LeaderAndIsr(2, 0, (2, 3), 1, 0))
        await asyncio.to_thread(cluster.server.stop)
        await cluster.until(lambda: cluster.processes[1].zk.state is SessionState.SUSPENDED, "the connection is lost")
        await asyncio.to_thread(cluster.server.start)
        await cluster.until(lambda: cluster.zk.state is SessionState.CONNECTED, "connected again")
        await cluster.kill(2)
        await cluster.until(lambda: cluster.disks[3].replicas[TopicPartition("t", 0)].leader == 3, "another leader")
        await cluster.create_topic("u", {0: (3, 1)})
        await cluster.until(
            lambda: all(TopicPartition("u", 0) in p.broker.metadata for p in cluster.processes.values()), "a new topic"
        )

    scenario(play)
