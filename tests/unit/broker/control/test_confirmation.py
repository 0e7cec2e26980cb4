"""A sender is believed to be the controller only if ZooKeeper says so too (INV-8, INV-9, STA-3)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pytest

from broker.control import confirmation
from broker.control.confirmation import Confirmation, NotConfirmed
from protocol.errors import ErrorCode
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.zk.session import SessionState, Stat
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, ControllerZNode
from tests.support.control_plane import CONTROLLER, control_listener, requests
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.support.replica_cluster import TP, Cluster, Node


class Session(MemorySession):
    """Counts the reads; `answers` can be held back."""

    def __init__(self, server: MemoryZooKeeper) -> None:
        super().__init__(server)
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def heartbeat(self) -> None:
        self.reads += 1
        await super().heartbeat()

    async def get_many(
        self, paths: Sequence[str], watch: Callable[..., None] | None = None
    ) -> list[tuple[bytes, Stat] | None]:
        found = await super().get_many(paths, watch)
        await self.answers.wait()
        return found


class World:
    """A broker with its control listener, and what ZooKeeper has."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.zookeeper = MemoryZooKeeper()
        self.session = Session(self.zookeeper)
        self.confirmation = Confirmation(self.session, node.id, node.manager.refuse_controllers_before)
        self.listener = control_listener(node, confirmation=self.confirmation)
        self.elect(CONTROLLER, 5)

    def elect(self, controller: int | None, epoch: int) -> None:
        self.zookeeper.ensure(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(epoch))
        self.zookeeper.remove(ControllerZNode.PATH)
        if controller is not None:
            self.zookeeper.ensure(ControllerZNode.PATH, ControllerZNode.encode(controller, 1))

    async def error(self, epoch: int, *, kind: int = 1, controller: int = CONTROLLER) -> ErrorCode:
        return (await self.listener.handle(requests(self.node.epoch, epoch, controller)[kind])).error


@pytest.fixture
def world(cluster: Cluster, runner: asyncio.Runner) -> Iterator[World]:
    async def start() -> World:
        return World(await cluster.start_broker(1))

    world = runner.run(start())
    yield world
    runner.run(world.listener.close())


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_an_invented_controller_epoch_changes_nothing_and_locks_nobody_out(world: World, kind: int) -> None:
    """Without confirmation, one request with a huge epoch made the broker refuse the true controller until it restarted."""
    for epoch in (6, 2**31 - 1):
        with pytest.raises(NotConfirmed, match=f"epoch {epoch}, ZooKeeper has epoch 5"):
            await world.error(epoch, kind=kind)
    with pytest.raises(NotConfirmed, match="broker 9 is"):
        await world.error(5, kind=kind, controller=8)
    assert (world.node.manager.partitions.get(TP), world.node.metadata.topics()) == (None, ())
    assert await world.error(5, kind=kind) is ErrorCode.NONE
    world.elect(8, 6)
    assert await world.error(6, kind=kind, controller=8) is ErrorCode.NONE
    assert await world.error(5, kind=kind) is ErrorCode.STALE_CONTROLLER_EPOCH


async def test_a_deposed_controller_is_refused_before_the_new_one_sends_a_request(world: World) -> None:
    """INV-8: the broker learned the new epoch when it checked another claim."""
    assert await world.error(5) is ErrorCode.NONE
    world.elect(8, 6)
    with pytest.raises(NotConfirmed):
        await world.error(7)
    assert await world.error(5) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert await world.error(6, controller=8) is ErrorCode.NONE


async def test_without_a_controller_no_sender_is_confirmed(world: World) -> None:
    world.elect(None, 5)
    with pytest.raises(NotConfirmed, match="nobody is"):
        await world.error(5)
    world.elect(8, 6)
    assert await world.error(6, controller=8) is ErrorCode.NONE


async def test_a_thousand_claims_are_two_reads_and_the_true_controller_does_not_wait_for_them(world: World) -> None:
    assert await world.error(5) is ErrorCode.NONE
    world.session.answers.clear()
    claims = [asyncio.create_task(world.error(1000 + n)) for n in range(1000)]
    await asyncio.sleep(0)
    assert await world.error(5) is ErrorCode.NONE
    assert not any(claim.done() for claim in claims)
    world.elect(8, 6)
    new = asyncio.create_task(world.error(6, controller=8))
    await asyncio.sleep(0.01)
    world.session.answers.set()
    assert await new is ErrorCode.NONE, "although the read under way started before the election"
    assert all(isinstance(e, NotConfirmed) for e in await asyncio.gather(*claims, return_exceptions=True))
    assert world.session.reads <= 3


async def test_while_zookeeper_cannot_be_asked_a_new_controller_waits_and_the_known_one_does_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "RETRY_S", 0.001)

    assert await world.error(5) is ErrorCode.NONE
    world.elect(8, 6)
    world.session.change_state(SessionState.SUSPENDED)
    new = asyncio.create_task(world.error(6, controller=8))
    await asyncio.sleep(0.01)
    assert await world.error(5) is ErrorCode.NONE
    assert not new.done()
    world.session.change_state(SessionState.CONNECTED)
    assert await new is ErrorCode.NONE
    monkeypatch.setattr(confirmation, "HELD_MAX_S", 0.01)
    world.session.change_state(SessionState.SUSPENDED)
    with pytest.raises(NotConfirmed, match="could not be asked"):
        await world.error(7)


async def test_an_invented_broker_epoch_is_refused_and_a_newer_one_of_this_broker_is_not(world: World) -> None:
    """STA-3: the controller may have seen the new registration before this broker has."""
    path = BrokerIdZNode.path(world.node.id)
    world.zookeeper.ensure(path)
    newer = world.zookeeper.nodes[path].stat().czxid
    world.node.epoch = newer - 1
    for life in (newer + 1, 2**63 - 1):
        with pytest.raises(NotConfirmed, match=f"broker epoch {life}"):
            await world.listener.handle(requests(life, 5, CONTROLLER)[1])
    assert (await world.listener.handle(requests(newer, 5, CONTROLLER)[1])).error is ErrorCode.NONE


async def test_an_unconfirmed_request_does_not_count_as_the_newest(world: World) -> None:
    """Otherwise its number would make the true controller's next requests look late (FLT-18)."""
    forged = requests(world.node.epoch, 6, 8)[1]
    assert isinstance(forged, UpdateMetadataRequest)
    with pytest.raises(NotConfirmed):
        await world.listener.handle(dataclasses.replace(forged, number=2**62))
    assert await world.error(5) is ErrorCode.NONE
    world.elect(8, 6)
    assert (await world.listener.handle(dataclasses.replace(forged, number=1))).error is ErrorCode.NONE


@pytest.mark.parametrize("rubbish", [b"", b"NaN", b"99999999999", b"\xff"])
async def test_an_unreadable_epoch_in_zookeeper_confirms_nobody(world: World, rubbish: bytes) -> None:
    world.zookeeper.nodes[ControllerEpochZNode.PATH].data = rubbish
    for epoch in (0, 5, 2**31 - 1):
        with pytest.raises(ValueError, match=r"epoch"):
            await world.error(epoch)
    world.elect(CONTROLLER, 5)
    assert await world.error(5) is ErrorCode.NONE
