"""The CPU time of processes on this machine, while a replay sends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

import psutil

from tools.cluster.local_cluster import LocalCluster

EVERY_S = 1.0


class CpuMeter:
    """`groups`: name -> the pids of its processes, which may change."""

    def __init__(self, groups: Mapping[str, Callable[[], Iterable[int]]]) -> None:
        self._groups = groups
        self._began: float | None = None
        self._at = 0.0
        self._first: dict[tuple[str, int], float] = {}
        self._last: dict[tuple[str, int], float] = {}

    def sample(self) -> bool:
        """Reads the times, at most every EVERY_S. Returns whether it did. A process that is new counts from its start."""
        now = time.monotonic()
        if now - self._at < EVERY_S:
            return False
        for name, pids in self._groups.items():
            for pid in pids():
                with contextlib.suppress(psutil.Error):
                    times = psutil.Process(pid).cpu_times()
                    self._last[name, pid] = times.user + times.system
        if self._began is None:
            self._began, self._first = now, dict(self._last)
        self._at = now
        return True

    def cores(self) -> dict[str, float]:
        """Name -> how many cores its processes used on average, since the first call of `sample`."""
        seconds = max(self._at - (self._began or 0.0), 1e-9)
        found = dict.fromkeys(self._groups, 0.0)
        for key, used in self._last.items():
            found[key[0]] += (used - self._first.get(key, 0.0)) / seconds
        return found


def broker_pids(cluster: LocalCluster) -> Callable[[], list[int]]:
    """The pids of its brokers that run at the moment of the call."""
    return lambda: [pid for broker in cluster.broker_ids if (pid := cluster.pid(broker)) is not None]
