"""Shares the loop's time between answers that take long (NET-4). Handlers use it through `steps.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from broker.process.loop_budget import LONG_SLICE_S, TURNS_PER_PAUSE
from broker.storage.disk.disk_threads import UNPACKING, UNPACKING_PLACES

BEGINNING_S = 0.0003
"""How long a new answer may use the loop if others that started in the same turn have used up the slice already."""
UNDER_WAY_MAX = 16
UNDER_WAY_BYTES_MAX = 2 * 1024 * 1024
"""Limits of the answers that take turns, and of the bytes of their requests: an answer keeps a multiple of its request in memory.
A single request may be larger. Later answers start when others are done."""

Work = Callable[[], Any]
AnySteps = Generator[Work | None, Any, Any]
"""When the steps yield a `Work`, a thread carries it out. Its result is sent to the steps, or its exception thrown into them."""


class Unwanted(Exception):
    """The answer's connection has ended."""


class Asked(NamedTuple):
    """A request in progress: its size in bytes, and whether its client still waits, which is checked before each slice."""

    size: int
    is_wanted: Callable[[], bool]


class _Answer:
    """An answer in progress. Without `steps` it is a slice in which a waiter works itself."""

    __slots__ = ("done", "has_place", "request", "steps", "work", "worked")

    def __init__(
        self, request: Asked, steps: AnySteps | None, done: asyncio.Future[Any], work: Work | None = None
    ) -> None:
        self.request = request
        self.steps = steps
        self.done = done
        self.work = work
        """Work for a thread, before the next step."""
        self.worked: asyncio.Future[Any] | None = None
        self.has_place = False
        """True while the answer has one of UNPACKING_PLACES: until it hands over its next work or is done."""

    def next_step(self, steps: AnySteps) -> Work | None:
        worked, self.worked = self.worked, None
        if worked is None:
            return next(steps)
        error = worked.exception()
        try:
            return steps.send(worked.result()) if error is None else steps.throw(error)
        finally:
            del worked, error  # as in `fail`

    def fail(self, error: Exception) -> None:
        """The steps raised the error. Its traceback has this answer in its frames, and `done` has the error: without `done`, the answer,
        its request and what was read of it live no longer than the error. The garbage collector looks at old objects very rarely."""
        done = self.done
        del self.done
        done.set_exception(error)

    def leave_place(self) -> None:
        if self.has_place:
            self.has_place = False
            UNPACKING_PLACES.give_back()


class LongAnswers:
    """The long answers of a broker. `monotonic` is the machine's clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._under_way: deque[_Answer] = deque()
        self._under_way_bytes = 0
        self._in_threads: dict[asyncio.Future[Any], _Answer] = {}
        """Answers whose work is in a thread. They do not count toward the limits, because a thread may be busy for seconds."""
        self._later: deque[_Answer] = deque()
        self._is_scheduled = False
        self._begun_s = 0.0
        """The time used by answers that started in this turn of the loop."""
        self._is_turn_noted = False

    def __len__(self) -> int:
        """The number of unfinished answers."""
        return len(self._under_way) + len(self._in_threads) + len(self._later)

    def begin(self, steps: AnySteps) -> tuple[bool, Any]:
        """Runs the steps. Returns (True, their result), or, if they do not fit into this turn, (False, the work for a thread or None)."""
        monotonic = self._monotonic
        began = monotonic()
        until = began + BEGINNING_S
        work = None
        try:
            while True:
                work = next(steps)
                if work is not None:
                    break
                now = monotonic()
                if now >= until:
                    until = began + LONG_SLICE_S - self._begun_s
                    if now >= until:
                        break
        except StopIteration as end:
            return True, end.value
        self._begun_s += monotonic() - began
        if not self._is_turn_noted:
            self._is_turn_noted = True
            asyncio.get_running_loop().call_soon(self._turn_ended)
        return False, work

    def _turn_ended(self) -> None:
        self._is_turn_noted = False
        self._begun_s = 0.0

    def go_on(self, request: Asked, steps: AnySteps, work: Work | None = None) -> asyncio.Future[Any]:
        """A future of the steps' result. It raises what the steps raise, or Unwanted. `work` is from `begin`."""
        return self._wait(request, steps, work)

    def slice_of_own(self, request: Asked) -> asyncio.Future[Any]:
        """A future that is done when the waiter may work, for at most LONG_SLICE_S. It raises Unwanted."""
        return self._wait(request, None, None)

    def _wait(self, request: Asked, steps: AnySteps | None, work: Work | None) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._later.append(_Answer(request, steps, done, work))
        self._admit()
        self._schedule()
        return done

    def _schedule(self) -> None:
        if self._under_way and not self._is_scheduled:
            self._is_scheduled = True
            self._pause(TURNS_PER_PAUSE)

    def _admit(self) -> None:
        under_way, later = self._under_way, self._later
        while later and len(under_way) < UNDER_WAY_MAX:
            size = later[0].request.size
            if under_way and self._under_way_bytes + size > UNDER_WAY_BYTES_MAX:
                break
            self._under_way_bytes += size
            under_way.append(later.popleft())

    def _pause(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns > 0:
            loop.call_soon(self._pause, turns - 1)
        else:
            self._slice()

    def _slice(self) -> None:
        end = self._monotonic() + LONG_SLICE_S
        under_way = self._under_way
        while under_way and self._monotonic() < end:
            answer = under_way.popleft()
            if self._is_done(answer, end):
                answer.leave_place()
            elif answer.work is not None:
                self._hand_over(answer, answer.work)
            else:
                under_way.append(answer)
                continue
            self._under_way_bytes -= answer.request.size
            self._admit()
            if answer.steps is None:
                break
        self._is_scheduled = bool(under_way)
        if under_way:
            self._pause(TURNS_PER_PAUSE)

    def _is_done(self, answer: _Answer, end: float) -> bool:
        """Continues the answer until `end`, or until it has work for a thread. True if it is done."""
        steps, is_cancelled = answer.steps, answer.done.done()
        if is_cancelled or not answer.request.is_wanted():
            if steps is not None:
                steps.close()
            if not is_cancelled:
                answer.done.set_exception(Unwanted())
            return True
        if steps is None:
            answer.done.set_result(None)
            return True
        monotonic = self._monotonic
        try:
            while answer.work is None:
                answer.work = answer.next_step(steps)
                if monotonic() >= end:
                    break
            return False
        except StopIteration as done:
            answer.done.set_result(done.value)
        except Exception as error:  # noqa: BLE001 - handed over, as an executor does
            answer.fail(error)
        return True

    def _hand_over(self, answer: _Answer, work: Work) -> None:
        """Gives the work to a thread. Afterwards the answer takes turns again."""
        answer.work = None
        answer.leave_place()  # the previous result is no longer needed
        working = asyncio.ensure_future(_in_thread(answer, work))
        self._in_threads[working] = answer
        working.add_done_callback(self._worked)

    def _worked(self, working: asyncio.Future[Any]) -> None:
        answer = self._in_threads.pop(working)
        if working.cancelled():
            answer.leave_place()
            answer.done.cancel()
            return
        working.exception()  # retrieved, even if the answer is unwanted by now
        answer.worked = working
        self._under_way_bytes += answer.request.size
        self._under_way.append(answer)
        self._schedule()


async def _in_thread(answer: _Answer, work: Work) -> Any:
    await UNPACKING_PLACES.take()
    answer.has_place = True
    return await asyncio.get_running_loop().run_in_executor(UNPACKING, work)
