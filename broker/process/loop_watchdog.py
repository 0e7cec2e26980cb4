"""Measures the turns of the event loop, and reports which call blocked it (NET-4).

Everything in a broker runs on one loop, so a call that does not return delays all clients. A timer on the loop is due every `TICK_S`.
If it fires late, the loop was blocked: by one call, or by one turn of many calls. A timer that becomes due in the middle of a turn
sees only the rest of that turn, so a measured turn is up to `TICK_S` too short.

Time in which the machine gave the processor to other processes is subtracted (the thread's run delay, from
`/proc/<pid>/task/<tid>/schedstat`). Time in which the whole process was stopped is not subtracted: it counts as one long turn.

A thread watches the tick from outside. While the loop is blocked, the thread takes the loop's stack, so that the report can name the
call.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

from broker.process.event_log import EventWriter

log = logging.getLogger(__name__)

TICK_S = 0.02
LIMIT_S = 0.05
"""Longer turns are reported (NET-4)."""
LOOK_S = 0.04
"""How often the thread checks whether a tick is late."""
LATE_S = 0.01
"""A check that finds the tick later than this takes the loop's stack."""
QUIET_S = 10.0
"""The server log names at most one long turn in this time; the event log has all long turns."""
BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STACK_DEPTH = 6
OWN_CODE = ("broker/", "controller/", "protocol/")


class Handle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an event loop that the watchdog needs."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Handle: ...


class TurnTimes:
    """Durations of turns in seconds: a histogram and the longest turn. Turns without a tick are not counted."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """The number of turns up to each of `BUCKETS_S`, not cumulative; the last number counts longer turns."""
        self.total_s = 0.0
        self.longest_s = 0.0
        self.longest_call = ""

    def add(self, seconds: float, call: str = "") -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds
        if seconds > self.longest_s:
            self.longest_s, self.longest_call = seconds, call


class RunDelay:
    """How long the kernel let this thread wait for a processor, in seconds since its start. 0 if the kernel does not report it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)

    def __call__(self) -> float:
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class LoopWatchdog:
    """Call `start` on the loop to watch. `times` has the measured turns."""

    def __init__(
        self,
        events: EventWriter,
        timers: Timers,
        monotonic: Callable[[], float] = time.monotonic,
        run_delay: Callable[[], float] | None = None,
    ) -> None:
        """Must be created in the loop's thread: `run_delay` is this thread's unless it is given."""
        self._events = events
        self._timers = timers
        self._monotonic = monotonic
        self._run_delay = run_delay or RunDelay()
        self._loop_thread = threading.get_ident()
        self._due = 0.0
        self._delay_before = 0.0
        self._stack: Sequence[str] = ()
        self._quiet_until = 0.0
        self._handle: Handle | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.times = TurnTimes()

    # -- on the loop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ticks and the watching thread."""
        self.arm(self._monotonic(), self._run_delay())
        self._thread = threading.Thread(target=self._look_on, name="loop-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._run_delay, RunDelay):
            self._run_delay.close()

    def tick(self) -> None:
        """The timer fired: records the turn that has just ended."""
        now, delay = self._monotonic(), self._run_delay()
        late_s, waited_s = now - self._due, delay - self._delay_before
        stack, self._stack = self._stack, ()
        held_s = max(0.0, late_s - waited_s)
        self.times.add(held_s, stack[0] if stack else "")
        if held_s > LIMIT_S:
            self._report(held_s, waited_s, stack)
        self.arm(now, delay)

    def arm(self, now: float, delay: float) -> None:
        """Starts the next tick; `delay` is the thread's run delay until `now`."""
        self._due, self._delay_before = now + TICK_S, delay
        if not self._stopping.is_set():
            self._handle = self._timers.call_later(TICK_S, self.tick)

    def _report(self, held_s: float, waited_s: float, stack: Sequence[str]) -> None:
        self._events("loop_held", ms=round(held_s * 1000), processor_taken_ms=round(waited_s * 1000), stack=list(stack))
        now = self._monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_S
            log.warning(
                "one turn of the event loop took %.0f ms, in %s",
                held_s * 1000,
                stack[0] if stack else "an unknown call",
            )

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._stopping.wait(LOOK_S):
            if self._monotonic() - self._due > LATE_S:
                # After the long call, and before the tick, the stack may have no call of the broker: it does not replace the earlier stack.
                self._stack = describe(sys._current_frames().get(self._loop_thread)) or self._stack


def describe(frame: FrameType | None) -> list[str]:
    """The innermost calls in the broker's own code, innermost first: `broker/storage/log.py:120 append`."""
    calls: list[str] = []
    while frame is not None and len(calls) < STACK_DEPTH:
        path = frame.f_code.co_filename
        start = max((path.rfind("/" + package) for package in OWN_CODE), default=-1)
        if start >= 0 and not path.endswith("broker/main.py"):
            calls.append(f"{path[start + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return calls
