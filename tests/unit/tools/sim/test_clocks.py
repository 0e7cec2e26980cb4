"""The wall clock of a simulated machine jumps and drifts; what its processes measure durations with does not."""

from __future__ import annotations

import time
from random import Random

import pytest

from tools.sim.plan import PRODUCER_EPOCHS, SENT_FROM_FILE
from tools.sim.world.controlled import controlled
from tools.sim.world.event_loop import ProcessLoop
from tools.sim.world.network import Network
from tools.sim.world.scheduler import Scheduler


def test_a_wall_clock_is_wrong_until_it_is_set_right() -> None:
    scheduler = Scheduler(Random(1))
    network = Network(scheduler, lambda *_: None)
    wrong, right = (ProcessLoop(scheduler, network.host(name), name) for name in ("wrong", "right"))
    seen: list[tuple[str, float, float]] = []

    def look(loop: ProcessLoop) -> None:
        seen.append((loop.name, time.time(), time.monotonic()))

    def ahead_s() -> float:
        """Of the wrong clock, without what it has in common with the monotonic one."""
        seen.clear()
        for loop in (wrong, right):
            loop.put(look, loop)
        scheduler.run(scheduler.now + 1)
        (_, wall, monotonic), (_, other_wall, other_monotonic) = sorted(seen, reverse=True)
        return (wall - monotonic) - (other_wall - other_monotonic)

    with controlled(scheduler, 1, SENT_FROM_FILE, PRODUCER_EPOCHS):
        wrong.host.set_wall_clock(3600.0)
        assert ahead_s() == pytest.approx(3600.0)
        wrong.host.set_wall_clock(-5.0, drift=0.1)
        scheduler.run(scheduler.now + 100)
        assert ahead_s() == pytest.approx(5.0, abs=0.2)
        wrong.host.set_wall_clock(0.0)
        assert ahead_s() == pytest.approx(0.0)
