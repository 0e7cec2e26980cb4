"""Progress of a reassignment: compares the bytes of new replicas and of leaders (DescribeLogDirs). Pure.

Worked example: a partition's leader has 1,000 bytes, and two new replicas have 1,000 and 200. Of 2,000 bytes, 1,200 are moved
and 800 are left: 60 %. At a recent rate of 100 bytes/s, that takes another 8 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.types import Assignment, TopicPartition

RATE_WINDOW_S = 15.0

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of one partition, or of all partitions. `bytes_moved` never exceeds `bytes_total`."""

    bytes_moved: int
    bytes_total: int

    @property
    def bytes_left(self) -> int:
        return self.bytes_total - self.bytes_moved

    @property
    def percent(self) -> float:
        """100 if there is nothing to move."""
        return 100.0 * self.bytes_moved / self.bytes_total if self.bytes_total else 100.0

    def __str__(self) -> str:
        if not self.bytes_total:
            return "no bytes to move"
        return f"{self.percent:.0f}%, {size_text(self.bytes_moved)} of {size_text(self.bytes_total)}"


@dataclass(frozen=True, slots=True)
class Overall:
    """All partitions of a plan. `rate` (bytes/s) and `eta_s` are None while they are unknown."""

    bytes: Progress
    partitions_done: int
    partitions: int
    rate: float | None
    eta_s: float | None

    @property
    def percent(self) -> float:
        """Percent of the bytes; percent of the partitions if there are no bytes to move or none are known."""
        if self.bytes.bytes_total:
            return self.bytes.percent
        return 100.0 * self.partitions_done / self.partitions if self.partitions else 100.0

    def __str__(self) -> str:
        rate = "" if self.rate is None or not self.bytes.bytes_total else f", {size_text(round(self.rate))}/s"
        eta = "" if self.eta_s is None else f", about {duration_text(self.eta_s)} left"
        return f"{self.partitions_done} of {self.partitions} partitions, {self.bytes}{rate}{eta}"


def measure(
    under_way: Mapping[TopicPartition, Assignment],
    sizes: Mapping[tuple[int, TopicPartition], int],
    leaders: Mapping[TopicPartition, int | None],
) -> dict[TopicPartition, Progress]:
    """Partition -> its progress. A replica that does not exist yet, or whose broker does not answer, has 0 bytes.

    If the size of the leader's replica is unknown, the largest of the original replicas counts instead.
    """
    found = {}
    for partition, move in under_way.items():
        leader = leaders.get(partition)
        full = None if leader is None else sizes.get((leader, partition))
        if full is None:
            full = max((sizes.get((b, partition), 0) for b in move.replicas if b not in move.adding), default=0)
        moved = sum(min(full, sizes.get((broker, partition), 0)) for broker in move.adding)
        found[partition] = Progress(moved, full * len(move.adding))
    return found


class ProgressTracker:
    """The progress of a plan's partitions over time. A partition that stopped moving counts as completely moved."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self._partitions = frozenset(partitions)
        self._last: dict[TopicPartition, Progress] = {}
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, moving: Mapping[TopicPartition, Progress]) -> Overall:
        """`moving` is the result of `measure` for partitions that move or will move; it may contain others."""
        for partition in self._partitions:
            if partition in moving:
                self._last[partition] = moving[partition]
            elif partition in self._last:
                total = self._last[partition].bytes_total
                self._last[partition] = Progress(total, total)
        done = sum(1 for partition in self._partitions if partition not in moving)
        overall = Progress(
            sum(progress.bytes_moved for progress in self._last.values()),
            sum(progress.bytes_total for progress in self._last.values()),
        )
        rate = self._rate(now_s, overall.bytes_moved)
        eta_s = overall.bytes_left / rate if rate and overall.bytes_left else None
        return Overall(overall, done, len(self._partitions), rate, eta_s)

    def _rate(self, now_s: float, moved: int) -> float | None:
        """Bytes/s over the last samples; None for fewer than two."""
        self._samples.append((now_s, moved))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - RATE_WINDOW_S:
            self._samples.popleft()
        since_s, before = self._samples[0]
        return max(0.0, (moved - before) / (now_s - since_s)) if now_s > since_s else None


def size_text(size: int) -> str:
    """`512 B`, `1.5 MiB`."""
    value = float(size)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{size} B" if unit == UNITS[0] else f"{value:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """`8 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
