"""When operations are due, at one speed and with a ramp."""

from __future__ import annotations

import numpy
import pytest

from tools.replay.load.pace import Pace

S = 1_000_000_000


@pytest.mark.parametrize(
    ("pace", "times", "due"),
    [
        (Pace((1.0,)), [0, 5, S], [0, 5, S]),
        (Pace((2.0,)), [0, 10, 4 * S], [0, 5, 2 * S]),
        (Pace((0.5,)), [S], [2 * S]),
        # 10 s at speed 1 take the first 10 s of the trace, 10 s at speed 2 the next 20 s, and the rest is at speed 4.
        (Pace((1.0, 2.0, 4.0), 10), [0, 10 * S, 12 * S, 30 * S, 34 * S], [0, 10 * S, 11 * S, 20 * S, 21 * S]),
    ],
)
def test_due(pace: Pace, times: list[int], due: list[int]) -> None:
    assert pace.due_ns(numpy.array(times)).tolist() == due
