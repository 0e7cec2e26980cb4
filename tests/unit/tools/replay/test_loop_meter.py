"""When a task's loop stood still, and which answers may have waited for it (RPL-2)."""

from __future__ import annotations

import json

import pytest

from tools.replay.load.loop_meter import LoopMeter

MS = 1_000_000


def metered(ticks_ms: list[int]) -> tuple[LoopMeter, list[int]]:
    """A meter that was made at 0 and ticked at these times, and its clock."""
    now = [0]
    meter = LoopMeter(lambda: now[0], lambda: now[0] // 2)
    for at in ticks_ms:
        now[0] = at * MS
        meter.tick()
    return meter, now


@pytest.mark.parametrize(
    ("ticks_ms", "still_ms"),
    [
        ([10, 20, 30], []),
        ([10, 39, 50], []),  # 19 ms late
        ([10, 40, 50], [(10, 40)]),
        ([10, 3010, 3020, 3030, 3100], [(10, 3010), (3030, 3100)]),
        ([10, 50, 90, 130], [(10, 130)]),  # those that follow each other are one
    ],
)
def test_a_loop_stands_still_while_its_timer_is_late(ticks_ms: list[int], still_ms: list[tuple[int, int]]) -> None:
    assert metered(ticks_ms)[0].still == [(begin * MS, end * MS) for begin, end in still_ms]


@pytest.mark.parametrize(
    ("ticks_ms", "sent_ms", "answered_ms", "unheard_ms"),
    [
        ([10, 20], 15, 25, 0),
        ([10], 5, 3010, 10),  # the first turn after a standstill: the timer has not noticed it yet
        ([10], 12, 3010, 12),  # sent in the loop's last turn
        ([10, 3010, 3020], 5, 3025, 10),  # the next turns read what came meanwhile, too
        ([10, 3010], 3015, 3030, 0),  # sent after it
        ([10, 3010, 3100], 5, 3110, 10),  # another standstill, before the loop has read what came in the first one
        ([10, 3010, 3020], 5, 3100, 10),
        ([10, 3010, *range(3020, 3200, 10), 3300], 5, 3310, 3190),  # it had read all of that
        ([10, 3010, *range(3020, 4000, 10)], 5, 3995, 0),  # the broker took longer than the standstill
    ],
)
def test_an_answer_may_have_waited_for_the_loop(
    ticks_ms: list[int], sent_ms: int, answered_ms: int, unheard_ms: int
) -> None:
    assert metered(ticks_ms)[0].unheard_since(sent_ms * MS, answered_ms * MS) == unheard_ms * MS


@pytest.mark.parametrize(
    ("ticks_ms", "now_ms", "ready_ms", "sent_ms", "since_ms"),
    [
        ([10, 3010], 3015, 12, 3012, 3010),  # the loop stopped before it had sent it
        ([10], 3015, 12, 3012, 3012),  # the timer has not noticed it yet
        ([10, 3010], 3015, 12, 12, 12),  # sent before the loop stopped
        ([10, 3010], 3015, 5, 3012, 5),  # it had waited for the cluster, before
        (
            [10, 3010, *range(3020, 5000, 10)],
            4995,
            12,
            4990,
            3010,
        ),  # behind the standstill it has waited for the cluster
        ([10, 20, 30], 35, 12, 31, 12),
        ([10, 60, 70, 80], 3000, 75, 2990, 75),
        ([10, 60, 70], 3000, 75, 2990, 2990),
    ],
)
def test_what_is_ready_when_the_loop_stops_is_ready_behind_it(
    ticks_ms: list[int], now_ms: int, ready_ms: int, sent_ms: int, since_ms: int
) -> None:
    meter, now = metered(ticks_ms)
    now[0] = now_ms * MS
    assert meter.ready_since(ready_ms * MS, sent_ms * MS) == since_ms * MS


def test_the_file_has_the_standstills_and_the_cores() -> None:
    meter, now = metered([10, 20, 1500])
    now[0] = 1600 * MS
    assert json.loads(meter.to_json()) == {"still": [[20 * MS, 1500 * MS]], "cores": 0.5}
