"""What a comparison found, and its ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.bench.compare.rows import Row

OURS, COMPILED = "ottla", "ottla, compiled"
"""Our cluster; in a comparison with both forms, its brokers run as plain Python, and those of COMPILED do not."""


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


GOALS_OF_RESOURCES = {"memory_bytes": 0.03, "start_s": 0.25}
"""Ratios at most."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, and the lowest and highest value, of the rounds."""

    median: float
    lowest: float
    highest: float


@dataclass(slots=True)
class Comparison:
    """All rounds. Cluster name -> row key -> figures, and cluster name -> resources, one for each round."""

    rows: Sequence[Row]
    peer: str
    machine: Mapping[str, str]
    """What a reader must know: for example the processors, and the form in which our brokers ran."""
    figures: dict[str, dict[str, list[Figure]]] = field(default_factory=dict)
    resources: dict[str, list[Resources]] = field(default_factory=dict)

    def add(self, cluster: str, row: Row, figure: Figure) -> None:
        self.figures.setdefault(cluster, {}).setdefault(row.key, []).append(figure)

    def rate(self, cluster: str, row: Row) -> float:
        """The median."""
        return statistics.median(figure.rate for figure in self.figures[cluster][row.key])

    def ratio(self, row: Row, name: str = "rate", cluster: str = OURS) -> Spread | None:
        """Of a field of Figure: that of the cluster divided by the peer's in the same round. None: it was not measured."""
        return _ratio(self.figures.get(cluster, {}).get(row.key, ()), self.figures[self.peer][row.key], name)

    def is_met(self, row: Row) -> bool:
        """Whether the medians reach the goals."""
        rate, p99 = self.ratio(row), self.ratio(row, "p99_ms")
        too_slow = row.goal_p99 is not None and p99 is not None and p99.median > row.goal_p99
        return rate is not None and rate.median >= row.goal and not too_slow

    def resource(self, cluster: str, name: str) -> float:
        """The median of a field of Resources."""
        return float(statistics.median(getattr(one, name) for one in self.resources[cluster]))

    def resource_ratio(self, name: str, cluster: str = OURS) -> Spread | None:
        return _ratio(self.resources.get(cluster, ()), self.resources[self.peer], name)


def _ratio(ours: Sequence[object], theirs: Sequence[object], name: str) -> Spread | None:
    pairs = [(getattr(mine, name), getattr(other, name)) for mine, other in zip(ours, theirs, strict=False)]
    found = [mine / other for mine, other in pairs if mine is not None and other]
    return Spread(statistics.median(found), min(found), max(found)) if found else None
