"""Faults for as long as a test wants, undone whatever happens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tools.faults.cluster import Cluster, Victim
from tools.faults.faults import ACTIONS, heal, raise_first, to_all
from tools.faults.words import Breakage


def inject(action: str, victims: Sequence[Victim], seconds: float = 0.0, breakage: Breakage | None = None) -> float:
    """Hits all victims, waits `seconds`, and undoes the fault whatever happens. Returns the time of its end (monotonic seconds)."""
    undo = ACTIONS[action].undo
    done: list[Victim] = []
    try:
        for victim in victims:
            done.append(victim)  # before: a fault that failed half-way is undone, too
            ACTIONS[action].do(victim, breakage)
        time.sleep(seconds)
    finally:
        if undo is not None:
            raise_first(to_all(lambda victim: undo(victim, breakage), done))
    return time.monotonic()


@contextmanager
def healed(cluster: Cluster) -> Iterator[None]:
    """Heals the cluster at the end of the block, whatever happens in it."""
    try:
        yield
    finally:
        heal(cluster)
