"""What a comparison found, and its ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.bench.compare.rows import Row

OURS = "ottla"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of one cluster in one round. `rate` is in the row's unit; `cpu_s_per_mb` is that of all brokers together."""

    rate: float
    p99_ms: float | None
    cpu_s_per_mb: float | None


@dataclass(frozen=True, slots=True)
class Resources:
    """What one round needed: seconds until three brokers served; of the largest broker, PSS in bytes and open files at their highest."""

    start_s: float
    memory_bytes: int
    open_files: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, and the lowest and highest value, of the rounds."""

    median: float
    lowest: float
    highest: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Floor:
    """What a C server does with the same frames from the same clients, in the row's unit.

    `echo` answers only; `stored` also writes to the page cache. A fetch has `echo` only: its answers leave by sendfile.
    """

    echo: float
    stored: float | None = None

    @property
    def rate(self) -> float:
        return self.echo if self.stored is None else self.stored


@dataclass(frozen=True, slots=True)
class Compared:
    """One row. Figures of all rounds; the ratio of a round is our figure divided by that of the peer in the same round."""

    row: Row
    ours: Sequence[Figure]
    theirs: Sequence[Figure]
    floor: Floor | None = None

    @property
    def rate(self) -> tuple[float, float]:
        """(the peer's, ours): medians."""
        return statistics.median(one.rate for one in self.theirs), statistics.median(one.rate for one in self.ours)

    @property
    def ratio(self) -> Spread:
        return Spread.of([mine.rate / other.rate for mine, other in zip(self.ours, self.theirs, strict=True)])

    @property
    def p99_ratio(self) -> Spread | None:
        found = [
            mine.p99_ms / other.p99_ms
            for mine, other in zip(self.ours, self.theirs, strict=True)
            if mine.p99_ms is not None and other.p99_ms
        ]
        return Spread.of(found) if found else None

    @property
    def cpu_ratio(self) -> Spread | None:
        """Of the CPU seconds per megabyte."""
        found = [
            mine.cpu_s_per_mb / other.cpu_s_per_mb
            for mine, other in zip(self.ours, self.theirs, strict=True)
            if mine.cpu_s_per_mb is not None and other.cpu_s_per_mb
        ]
        return Spread.of(found) if found else None

    @property
    def is_met(self) -> bool:
        """Whether the medians reach the goals."""
        p99 = self.p99_ratio
        too_slow = self.row.goal_p99 is not None and p99 is not None and p99.median > self.row.goal_p99
        return self.ratio.median >= self.row.goal and not too_slow


@dataclass(slots=True)
class Comparison:
    """All rounds. Cluster name -> row key -> figures, and cluster name -> resources, one for each round."""

    rows: Sequence[Row]
    peer: str
    machine: Mapping[str, str]
    """What a reader must know: for example the processors, and the form in which our brokers ran."""
    figures: dict[str, dict[str, list[Figure]]] = field(default_factory=dict)
    resources: dict[str, list[Resources]] = field(default_factory=dict)
    floors: dict[str, Floor] = field(default_factory=dict)

    def add(self, cluster: str, row: Row, figure: Figure) -> None:
        self.figures.setdefault(cluster, {}).setdefault(row.key, []).append(figure)

    def compared(self) -> list[Compared]:
        ours, theirs = self.figures.get(OURS, {}), self.figures.get(self.peer, {})
        return [
            Compared(row, ours[row.key], theirs[row.key], self.floors.get(row.key))
            for row in self.rows
            if row.key in ours and row.key in theirs
        ]


GOALS_OF_RESOURCES = {"memory": 0.03, "start": 0.25}
"""Ratios at most."""


def resource_ratios(comparison: Comparison) -> dict[str, tuple[float, float, Spread]]:
    """`start`, `memory`, `files` -> (the peer's median, ours, the ratio)."""
    ours, theirs = comparison.resources[OURS], comparison.resources[comparison.peer]

    def compared(mine: Sequence[float], other: Sequence[float]) -> tuple[float, float, Spread]:
        ratios = [one / two for one, two in zip(mine, other, strict=True)]
        return statistics.median(other), statistics.median(mine), Spread.of(ratios)

    return {
        "memory": compared([one.memory_bytes for one in ours], [one.memory_bytes for one in theirs]),
        "start": compared([one.start_s for one in ours], [one.start_s for one in theirs]),
        "files": compared([one.open_files for one in ours], [one.open_files for one in theirs]),
    }
