"""When an operation of a trace is due in a replay. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a replay, which may grow in steps. Speed 2: an hour of the trace takes half an hour.

    `speeds`: each one but the last lasts `step_s`.
    """

    speeds: tuple[float, ...]
    step_s: float = 0.0

    def due_ns(self, times_ns: Any) -> Any:
        """For each time of the trace (int64 ns since its start): the time in the replay, in ns since its start."""
        due, begin_trace, begin = numpy.zeros(len(times_ns)), 0.0, 0.0
        for number, speed in enumerate(self.speeds):
            within = times_ns >= begin_trace
            due[within] = begin + (times_ns[within] - begin_trace) / speed
            if number < len(self.speeds) - 1:
                begin_trace += 1e9 * self.step_s * speed
                begin += 1e9 * self.step_s
        return due.astype(numpy.int64)
