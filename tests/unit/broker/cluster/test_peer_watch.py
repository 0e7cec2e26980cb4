"""Which brokers may have died a moment ago, and which have departed (CTL-16)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.peer_watch import PeerWatch
from broker.cluster.suspected_leaders import SuspectedLeaders
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.types import Address, BrokerInfo, Endpoint


class FakeWatch:
    def __init__(self, suspected: Callable[[bool], None]) -> None:
        self.suspected = suspected
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class World:
    """Broker 1, and watches that end when the test says so."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.begun: list[tuple[Address, FakeWatch]] = []
        self.suspected_leaders = SuspectedLeaders(self.metadata)
        self.peers = PeerWatch(self.metadata, self.suspected_leaders, 1, "CONTROLLER", self._watch)

    def _watch(self, address: Address, died: Callable[[], None], suspected: Callable[[bool], None]) -> FakeWatch:
        self.begun.append((address, FakeWatch(suspected)))
        return self.begun[-1][1]

    def live(self, **epochs: int) -> None:
        """`b2=7`: broker 2 lives, its broker epoch is 7."""
        infos = tuple(
            BrokerInfo(int(name[1:]), epoch, (Endpoint("CONTROLLER", "h", 9000 + int(name[1:])),))
            for name, epoch in epochs.items()
        )
        self.metadata.update(UpdateMetadataRequest(1, 1, 1, (), {}, infos, False))

    def open(self) -> list[Address]:
        return [address for address, watch in self.begun if not watch.is_closed]

    def departed(self) -> dict[int, int]:
        return {broker.id: broker.epoch for broker in self.suspected_leaders.departed()}


@pytest.fixture
def world() -> World:
    return World()


async def test_every_other_live_broker_is_watched_once(world: World) -> None:
    world.live(b1=5, b2=6, b3=7)
    world.live(b1=5, b2=6, b3=7)
    assert world.open() == [("h", 9002), ("h", 9003)]
    world.live(b1=5, b3=7)
    assert world.open() == [("h", 9003)]
    world.peers.close()
    assert world.open() == []
    world.live(b1=5, b2=6)
    assert world.open() == []


async def test_a_suspicion_ends_when_the_watch_ends_it(world: World) -> None:
    world.live(b1=5, b2=6, b3=7)
    watch = world.begun[0][1]
    watch.suspected(True)
    assert world.suspected_leaders.unreachable == {2}
    watch.suspected(False)
    watch.suspected(False)
    assert world.suspected_leaders.unreachable == set()


async def test_a_suspicion_ends_when_the_broker_has_a_new_life(world: World) -> None:
    world.live(b1=5, b2=6, b3=7)
    for _, watch in world.begun:
        watch.suspected(True)
    world.live(b1=5, b2=8)  # 2 started again, 3 has departed
    assert world.suspected_leaders.unreachable == set()
    assert world.open() == [("h", 9002)]


async def test_a_broker_that_ended_has_departed_until_its_next_life(world: World) -> None:
    world.live(b1=5, b2=6, b3=7)
    world.live(b1=5, b3=8)
    assert world.departed() == {2: 6}, "3 has only started again"
    world.live(b1=5, b2=9, b3=8)
    assert world.departed() == {}
    world.live(b1=5, b3=8)
    assert world.departed() == {2: 9}
    world.peers.close()
    assert world.departed() == {}


async def test_a_broker_without_a_control_listener_is_not_watched(world: World) -> None:
    world.metadata.update(
        UpdateMetadataRequest(1, 1, 1, (), {}, (BrokerInfo(2, 1, (Endpoint("PLAINTEXT", "h", 1),)),), False)
    )
    assert world.begun == []
