"""Who may read which partition, as the members of groups were told."""

from __future__ import annotations

import pytest

from protocol.types import TopicPartition
from tools.sim.clients.holders import Holders

SESSION_S = 6.0
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class World:
    """`broken`: what was said about partitions that were given away."""

    def __init__(self) -> None:
        self.now = 100.0
        self.broken: list[str] = []
        self.holders = Holders(lambda: self.now, SESSION_S, self.broken.append)


@pytest.fixture
def world() -> World:
    found = World()
    found.holders.takes("g", "a", [ONE, TWO])
    found.holders.heard("a", found.now)
    return found


def test_a_partition_is_given_away_too_early(world: World) -> None:
    world.now += SESSION_S - 0.1
    world.holders.takes("g", "b", [TWO])
    assert world.broken == [f"INV-24: b of g was given {TWO}, which a has not given up"]


def test_a_member_that_gives_it_up_holds_the_others(world: World) -> None:
    world.holders.gives_up("g", "a", [TWO])
    world.holders.takes("g", "b", [TWO])
    assert not world.broken
    world.holders.takes("g", "b", [ONE])
    assert len(world.broken) == 1


def test_a_silent_member_loses_all_with_its_session(world: World) -> None:
    world.now += SESSION_S
    world.holders.takes("g", "b", [ONE, TWO])
    world.holders.gives_up("g", "a")  # when it hears of that
    world.holders.heard("b", world.now)
    world.holders.takes("g", "a", [ONE])
    assert world.broken == [f"INV-24: a of g was given {ONE}, which b has not given up"]


def test_groups_share_nothing_and_a_member_may_be_told_again(world: World) -> None:
    world.holders.takes("other", "b", [ONE])
    world.holders.takes("g", "a", [ONE, TWO])
    world.holders.gives_up("other", "a")
    assert not world.broken
