"""What a cut of a simulated link holds up: it arrives in order, and a kernel repeats it ever less often."""

from __future__ import annotations

from random import Random

import pytest

from tools.sim.world.network import Network, repeated_at
from tools.sim.world.scheduler import Scheduler


class End:
    """Takes what arrives."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def arrived(self, number: int) -> None:
        self.taken.append(number)


@pytest.mark.parametrize("seed", range(10))
def test_what_was_held_arrives_in_order_and_before_what_is_sent_later(seed: int) -> None:
    scheduler = Scheduler(Random(seed))
    network = Network(scheduler, lambda _what, *_details: None)
    source, target, end = network.host("source"), network.host("target"), End()
    network.cut("source", "target")
    for number in range(20):
        network.carry(source, target, 0.0, end.arrived, number)
    scheduler.run(scheduler.now + 3.0)
    assert not end.taken
    network.heal("source", "target")
    for number in range(20, 40):
        network.carry(source, target, 0.0, end.arrived, number)
    scheduler.run(scheduler.now + 10.0)
    assert end.taken == list(range(40))


@pytest.mark.parametrize("seed", range(10))
def test_what_was_held_arrives_after_what_a_slow_link_has_taken(seed: int) -> None:
    scheduler = Scheduler(Random(seed))
    network = Network(scheduler, lambda _what, *_details: None)
    source, target, end = network.host("source"), network.host("target"), End()
    undo = network.slow_down("target", mean_s=5.0)
    last = network.carry(source, target, 0.0, end.arrived, 1)
    undo()
    network.cut("source", "target")
    last = network.carry(source, target, last, end.arrived, 2)
    network.heal("source", "target")
    network.carry(source, target, last, end.arrived, 3)
    scheduler.run(scheduler.now + 100.0)
    assert end.taken == [1, 2, 3]


@pytest.mark.parametrize(
    ("healed_after", "repeated_after"), [(0.1, 0.2), (0.3, 0.6), (1.0, 1.4), (2.9, 3.0), (3.1, 6.2)]
)
def test_a_kernel_repeats_ever_less_often(healed_after: float, repeated_after: float) -> None:
    assert repeated_at(100.0, 100.0 + healed_after) == pytest.approx(100.0 + repeated_after)
