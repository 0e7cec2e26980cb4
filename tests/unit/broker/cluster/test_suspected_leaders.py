"""An answer waits if it would name a leader that may have died a moment ago (CTL-16)."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster import suspected_leaders
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.suspected_leaders import SuspectedLeaders
from protocol.rpc.messages import PartitionState, UpdateMetadataRequest
from protocol.types import NO_LEADER, BrokerInfo, Endpoint

LONG_S = 60.0
"""Longer than any wait in a test."""


@pytest.fixture(autouse=True)
def _long_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspected_leaders, "HOLD_S", LONG_S)
    monkeypatch.setattr(suspected_leaders, "LINGER_S", LONG_S)


def broker(broker_id: int, epoch: int = 1) -> BrokerInfo:
    return BrokerInfo(broker_id, epoch, (Endpoint("PLAINTEXT", "h", broker_id),))


class World:
    """Topic `a`, led by 2 and 3, and topic `b`, led by 1."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.leaders = SuspectedLeaders(self.metadata)
        self.answered: list[str] = []
        self.lead(a=[2, 3], b=[1])

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leaders.close()

    def lead(self, **leaders: list[int]) -> None:
        states = tuple(
            PartitionState(topic, number, 1, leader, 1, (1, 2, 3), 0, (1, 2, 3))
            for topic, of in leaders.items()
            for number, leader in enumerate(of)
        )
        self.metadata.update(UpdateMetadataRequest(1, 1, 1, states, {}, (broker(1), broker(2), broker(3)), False))
        self.leaders.look_again()

    def ask(self, name: str, *topics: str) -> None:
        self.leaders.when_settled(topics, lambda: self.answered.append(name))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_request_that_came_just_before_the_suspicion_waits_for_the_next_leader(world: World) -> None:
    """A client may notice a death before or after the brokers."""
    world.leaders.peers_are_watched = True
    told = asyncio.Event()
    world.ask("of nothing")
    world.ask("a", "a")
    world.leaders.when_settled(("b",), told.set)
    assert world.answered == ["of nothing"]
    world.leaders.suspect(3)
    await told.wait()
    assert world.answered == ["of nothing"]
    world.lead(a=[2, 1])
    assert world.answered == ["of nothing", "a"]


async def test_only_answers_with_a_leader_in_doubt_wait(world: World) -> None:
    world.leaders.suspect(3)
    world.ask("b", "b")
    world.ask("a", "a")
    world.ask("both", "b", "a")
    assert world.answered == ["b"]
    world.leaders.trust(2)
    world.leaders.look_again()
    assert world.answered == ["b"]
    world.leaders.trust(3)
    assert world.answered == ["b", "a", "both"]


async def test_the_answer_is_released_when_the_next_leader_is_known(world: World) -> None:
    """The report that the old leader died is not enough: a new controller sends it before it has elected a leader."""
    world.leaders.suspect(2)
    world.ask("a", "a")
    world.leaders.depart(broker(2))
    world.leaders.trust(2)
    assert world.answered == []
    world.lead(a=[3, 3])
    assert world.answered == ["a"]


async def test_the_answer_is_released_when_there_is_no_leader(world: World) -> None:
    """Nobody else is in the ISR: there is nothing to wait for."""
    world.leaders.depart(broker(2))
    world.ask("a", "a")
    world.lead(a=[NO_LEADER, 3])
    assert world.answered == ["a"]


async def test_waiting_requests_are_answered_when_the_broker_stops(world: World) -> None:
    world.leaders.suspect(2)
    world.ask("suspected", "a")
    world.leaders.depart(broker(3))
    world.ask("departed", "a")
    world.leaders.close()
    assert world.answered == ["suspected", "departed"]


async def test_waiting_answers_and_answers_of_one_turn_are_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand connections can ask a hundred times each."""
    monkeypatch.setattr(suspected_leaders, "WAITERS_MAX", 5)
    monkeypatch.setattr(suspected_leaders, "TOPICS_MAX", 7)
    monkeypatch.setattr(suspected_leaders, "RELEASED_AT_ONCE", 2)
    world.leaders.suspect(2)
    world.ask("large", "a", *"cdefghi")
    for number in range(6):
        world.ask(f"{number}", "a")
    assert world.answered == ["large", "5"]
    world.lead(a=[1, 1])
    assert world.answered[2:] == ["0", "1"]
    await asyncio.sleep(0)
    assert world.answered[4:] == ["2", "3"]
    await asyncio.sleep(0)
    assert world.answered[6:] == ["4"]
    assert world.leaders._topics_waiting == 0


async def test_a_departed_broker_is_listed_a_little_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspected_leaders, "LINGER_S", 0.001)
    world.leaders.depart(broker(2))
    assert world.leaders.departed() == [broker(2)]
    world.leaders.depart(broker(2, epoch=9))
    assert world.leaders.departed() == [broker(2, epoch=9)]
    await asyncio.sleep(0.01)  # timers fire in order
    assert world.leaders.departed() == []
