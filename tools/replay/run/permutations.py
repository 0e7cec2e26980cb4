"""Whether two sides of runs differ by more than chance: permutation tests, without an assumption about the distribution (pure).

If the two sides were alike, dealing the same runs to A and B in any other way would have been as likely. So the share of all deals whose
difference is at least as large as the observed one is the probability *p* of seeing it by chance. Five runs a side have 252 deals, so p is
at least 2 / 252.

With many figures, one of them differs by chance. `adjusted` deals whole runs and compares each figure with the largest t of all figures
(Westfall and Young 1993, step-down maxT): the probability that *any* equal figure is called different is at most the level. This also
uses that the figures of a run go together, which Holm's or Bonferroni's correction cannot.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy

LEVEL = 0.05
DEALS_MAX = 10_000
"""With more deals than that, so many random ones are looked at."""
SEED = 14
ROUNDING = 1e-9
"""Relative; two deals with the same difference may differ by so much."""


def deals(a: int, b: int) -> Any:
    """Which runs are B: deals x (a + b), the real one first."""
    runs = a + b
    real = numpy.arange(runs) >= a
    if comb(runs, b) > DEALS_MAX:
        random = numpy.random.default_rng(SEED)
        return numpy.array([real, *(random.permutation(real) for _ in range(DEALS_MAX - 1))])
    every = numpy.zeros((comb(runs, b), runs), dtype=bool)
    for row, chosen in enumerate(combinations(reversed(range(runs)), b)):
        every[row, list(chosen)] = True
    return every


def can_tell(a: int, b: int) -> bool:
    """Whether so many runs can show a difference at all: the most extreme deal must be rarer than LEVEL."""
    return (2 if a == b else 1) / comb(a + b, b) <= LEVEL


def differences(values: Any, dealt: Any) -> Any:
    """Mean of B less mean of A, of each figure in each deal. `values`: figures x runs."""
    of_b = values @ dealt.T / dealt[0].sum()
    return of_b - values @ ~dealt.T / (~dealt[0]).sum()


def adjusted(values: Any, dealt: Any) -> Any:
    """The p of each figure, corrected for all figures. `values`: figures x runs, without unknown ones."""
    runs, of_b = len(dealt[0]), int(dealt[0].sum())
    found = differences(values, dealt)
    total = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(axis=1, keepdims=True)
    between = found**2 * (runs - of_b) * of_b / runs
    within = numpy.maximum(total - between, total * ROUNDING)
    squares = numpy.divide(between, within, out=numpy.zeros_like(between), where=within > 0)
    # From the largest t down: a figure competes with those whose t is not larger.
    order = numpy.argsort(-squares[:, 0], kind="stable")
    largest = numpy.maximum.accumulate(squares[order][::-1], axis=0)[::-1]
    reached = (largest >= squares[order][:, :1] * (1 - ROUNDING)).mean(axis=1)
    p = numpy.empty(len(values))
    p[order] = numpy.maximum.accumulate(reached)
    return p


def interval(values: Any, dealt: Any) -> tuple[float, float] | None:
    """The differences of B that the runs of one figure do not contradict: 1 - LEVEL of confidence. None if there are too few runs.

    A difference d is contradicted if, with d taken off B, at most LEVEL of the deals differ as much as the real one. Each deal does so
    for all d between two bounds, which enclose the observed difference.
    """
    of_b, of_a = int(dealt[0].sum()), int((~dealt[0]).sum())
    found = differences(values[numpy.newaxis], dealt)[0]
    observed = found[0]
    kept = (dealt & dealt[0]).sum(axis=1)
    slope = kept / of_b - (of_b - kept) / of_a
    with numpy.errstate(divide="ignore", invalid="ignore"):
        bounds = numpy.array([(observed - found) / (1 - slope), (observed + found) / (1 + slope)])
    always = numpy.isclose(numpy.abs(slope), 1)
    lowest = numpy.sort(numpy.where(always, -numpy.inf, bounds.min(axis=0)))
    highest = numpy.sort(numpy.where(always, numpy.inf, bounds.max(axis=0)))[::-1]
    at = int(LEVEL * len(dealt) * (1 + ROUNDING))
    ends = float(lowest[at]), float(highest[at])
    return ends if numpy.isfinite(ends).all() else None
