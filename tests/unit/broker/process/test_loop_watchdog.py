"""The event loop's watchdog: what counts as a long turn, and which call it names (NET-4)."""

import asyncio
import time
from typing import Any

import pytest

from broker.process import loop_watchdog
from broker.process.loop_watchdog import LIMIT_S, TICK_S, LoopWatchdog
from tests.support.fake_time import FakeTime


@pytest.mark.parametrize(
    ("late_s", "taken_s", "held_s"),
    [
        (0.0, 0.0, 0.0),
        (0.03, 0.0, 0.03),
        (0.2, 0.0, 0.2),
        (0.2, 0.19, 0.01),  # the machine was busy with others: nothing of this process
        (0.01, 0.02, 0.0),
    ],
)
def test_a_turn_lasts_as_long_as_the_tick_is_late_without_the_run_delay(
    late_s: float, taken_s: float, held_s: float
) -> None:
    events: list[dict[str, Any]] = []
    fake, taken = FakeTime(), [0.0]
    watchdog = LoopWatchdog(lambda kind, **fields: events.append(fields), fake, fake.monotonic, lambda: taken[0])
    watchdog.arm(fake.now, 0.0)

    taken[0] = taken_s
    fake.now += TICK_S + late_s
    watchdog.tick()

    assert watchdog.times.longest_s == pytest.approx(held_s)
    assert [event["ms"] for event in events] == ([round(1000 * held_s)] if held_s > LIMIT_S else [])


async def test_the_report_names_the_call_that_holds_the_loop() -> None:
    events: list[str] = []
    reported = asyncio.Event()

    def write(kind: str, **fields: Any) -> None:
        events.append(kind)
        reported.set()

    watchdog = LoopWatchdog(write, asyncio.get_running_loop())
    watchdog.start()
    try:
        hold_the_loop(watchdog)
        await asyncio.wait_for(reported.wait(), 10)
    finally:
        watchdog.close()
    assert events[0] == "loop_held"
    assert "test_loop_watchdog.py" in watchdog.times.longest_call  # the last look may be just after the call
    assert watchdog.times.longest_s > LIMIT_S


def hold_the_loop(watchdog: LoopWatchdog) -> None:
    """Uses the processor for a long turn, and until the watching thread, which may get none for a while, has looked."""
    end = time.thread_time() + 3 * loop_watchdog.LOOK_S + LIMIT_S
    while time.thread_time() < end or not watchdog._stack:
        pass
