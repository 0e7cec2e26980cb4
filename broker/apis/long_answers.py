"""The loop's time for answers that take long, shared by all of them (NET-4). See `steps.py`, which the handlers use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

SLICE_S = 0.002
"""How long answers keep the loop at a time; also one that has just begun."""
BEGINNING_S = 0.0003
"""How long one that has just begun may keep it, when others that began in the same turn have taken their slice already."""
TURNS_PER_PAUSE = 4
"""Of the loop, between two slices: a request needs about so many from its socket to the answer."""
UNDER_WAY_MAX = 16
UNDER_WAY_BYTES_MAX = 2 * 1024 * 1024
"""Answers that take turns, and the bytes of their requests, of which what they keep in memory is a multiple; one alone may have
more. Those that come later go on when others are done."""

AnySteps = Generator[None, None, Any]


class Unwanted(Exception):
    """Nobody waits for the answer any more: its connection is gone."""


class Asked(NamedTuple):
    """A request that is answered: its size in bytes, and whether anybody waits for the answer, which is asked before each slice."""

    size: int
    is_wanted: Callable[[], bool]


class _Answer:
    """Without `steps` it is a slice for who waits, who works for that long outside."""

    __slots__ = ("done", "request", "steps")

    def __init__(self, request: Asked, steps: AnySteps | None, done: asyncio.Future[Any]) -> None:
        self.request = request
        self.steps = steps
        self.done = done


class LongAnswers:
    """One for each broker. `monotonic` is the machine's clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._under_way: deque[_Answer] = deque()
        self._under_way_bytes = 0
        self._later: deque[_Answer] = deque()
        self._is_scheduled = False
        self._begun_s = 0.0
        """What those that began in this turn of the loop have taken."""
        self._is_turn_noted = False

    def __len__(self) -> int:
        """How many are not done."""
        return len(self._under_way) + len(self._later)

    def begin(self, steps: AnySteps) -> tuple[bool, Any]:
        """(True, what the steps return), or (False, None): there is more to do than fits into this turn."""
        monotonic = self._monotonic
        began = monotonic()
        until = began + BEGINNING_S
        try:
            while True:
                next(steps)
                now = monotonic()
                if now >= until:
                    until = began + SLICE_S - self._begun_s
                    if now >= until:
                        break
        except StopIteration as end:
            return True, end.value
        self._begun_s += monotonic() - began
        if not self._is_turn_noted:
            self._is_turn_noted = True
            asyncio.get_running_loop().call_soon(self._turn_ended)
        return False, None

    def _turn_ended(self) -> None:
        self._is_turn_noted = False
        self._begun_s = 0.0

    def go_on(self, request: Asked, steps: AnySteps) -> asyncio.Future[Any]:
        """What the steps return, later. Raises what they raise, or Unwanted."""
        return self._wait(request, steps)

    def slice_of_own(self, request: Asked) -> asyncio.Future[Any]:
        """Done when the waiter may work for SLICE_S at the most. Raises Unwanted."""
        return self._wait(request, None)

    def _wait(self, request: Asked, steps: AnySteps | None) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._later.append(_Answer(request, steps, done))
        self._admit()
        if not self._is_scheduled:
            self._is_scheduled = True
            self._pause(TURNS_PER_PAUSE)
        return done

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
        end = self._monotonic() + SLICE_S
        under_way = self._under_way
        while under_way and self._monotonic() < end:
            answer = under_way.popleft()
            if not self._is_done(answer, end):
                under_way.append(answer)
            else:
                self._under_way_bytes -= answer.request.size
                self._admit()
            if answer.steps is None:
                break
        self._is_scheduled = bool(under_way)
        if under_way:
            self._pause(TURNS_PER_PAUSE)

    def _is_done(self, answer: _Answer, end: float) -> bool:
        """Goes on with it until `end`."""
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
            while True:
                next(steps)
                if monotonic() >= end:
                    return False
        except StopIteration as done:
            answer.done.set_result(done.value)
        except Exception as error:  # noqa: BLE001 - handed over, as an executor does
            answer.done.set_exception(error)
        return True
