"""The times at which a producer's records come, by its rate. Blocks of times, so that memory does not grow with the duration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from tools.replay.traces.workload import NS_PER_S, Bursty, Constant, Diurnal, Rate

BLOCK = 4096
"""Records per block. Part of what the seed means: another size gives other traces."""

Times = NDArray[numpy.int64]


def arrivals(rate: Rate, seed: SeedSequence, duration_ns: int) -> Iterator[Times]:
    """Times in nanoseconds from 0 to before `duration_ns`, in order, in blocks of at most `BLOCK`; some may be empty."""
    generator, of_states = (default_rng(child) for child in seed.spawn(2))
    if isinstance(rate, Constant):
        blocks = _constant(rate.rate, generator)
    elif isinstance(rate, Diurnal):
        blocks = _diurnal(rate, generator)
    elif isinstance(rate, Bursty):
        blocks = _bursty(rate, generator, of_states, duration_ns / NS_PER_S)
    else:
        blocks = _poisson(rate.rate, generator)
    for candidates, accepted in blocks:
        times = accepted[accepted < duration_ns / NS_PER_S]
        yield numpy.minimum((times * NS_PER_S).astype(numpy.int64), duration_ns - 1)
        if candidates >= duration_ns / NS_PER_S:
            return


# Each gives the time up to which a block reaches, and the times in it, in seconds.
_Blocks = Iterator[tuple[float, NDArray[numpy.float64]]]


def _constant(rate: float, generator: Generator) -> _Blocks:
    phase = generator.random()
    first = 0
    while True:
        times = (first + numpy.arange(BLOCK, dtype=numpy.float64) + phase) / rate
        first += BLOCK
        yield float(times[-1]), times


def _sums_of_gaps(generator: Generator) -> Iterator[NDArray[numpy.float64]]:
    """A Poisson process of rate 1."""
    total = 0.0
    while True:
        sums = total + numpy.cumsum(generator.exponential(size=BLOCK))
        total = float(sums[-1])
        yield sums


def _poisson(rate: float, generator: Generator) -> _Blocks:
    for sums in _sums_of_gaps(generator):
        yield float(sums[-1] / rate), sums / rate


def _diurnal(rate: Diurnal, generator: Generator) -> _Blocks:
    """A process at the peak rate, from which records are taken out (thinning)."""
    choices, gaps = generator.spawn(2)
    period_s = rate.period_ns / NS_PER_S
    for last, times in _poisson(rate.peak, gaps):
        now = rate.mean - (rate.peak - rate.mean) * numpy.cos(2 * math.pi * times / period_s)
        yield last, times[choices.random(len(times)) * rate.peak < now]


def _bursty(rate: Bursty, generator: Generator, of_states: Generator, duration_s: float) -> _Blocks:
    """A process of rate 1 whose time is bent by the expected number of records, which grows by the state's rate."""
    means = (rate.mean_calm_ns / NS_PER_S, rate.mean_burst_ns / NS_PER_S)
    rates = (rate.calm, rate.burst)
    state = int(of_states.random() < means[1] / sum(means))
    changes: list[Any] = [0.0]
    expected: list[Any] = [0.0]
    for sums in _sums_of_gaps(generator):
        while expected[-1] < sums[-1] and changes[-1] < duration_s:
            length = of_states.exponential(means[state])
            changes.append(changes[-1] + length)
            expected.append(expected[-1] + length * rates[state])
            state = 1 - state
        times = numpy.interp(sums, expected, changes, right=math.inf)
        yield float(times[-1]), times
        passed = max(0, int(numpy.searchsorted(expected, sums[-1])) - 1)
        del changes[:passed], expected[:passed]
