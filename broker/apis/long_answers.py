"""The loop's time for answers that take long, shared by all of them (NET-4). See `steps.py`, which the handlers use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

SLICE_S = 0.002
"""How long answers keep the loop at a time; also one that has just begun."""
BEGINNING_S = 0.0003
"""How long one that has just begun may keep it, when others that began in the same turn have taken their slice already."""
TURNS_PER_PAUSE = 4
"""Of the loop, between two slices: a request needs about so many from its socket to the answer."""
UNDER_WAY_MAX = 16
"""Answers that take turns. Those that come later go on when one of them is done."""

AnySteps = Generator[None, None, Any]


class Unwanted(Exception):
    """Nobody waits for the answer any more: its connection is gone."""


class _Answer:
    """`is_wanted`: asked before each slice. Without `steps` it is a slice for who waits, who works for that long outside."""

    __slots__ = ("done", "is_wanted", "steps")

    def __init__(self, steps: AnySteps | None, is_wanted: Callable[[], bool], done: asyncio.Future[Any]) -> None:
        self.steps = steps
        self.is_wanted = is_wanted
        self.done = done


class LongAnswers:
    """One for each broker. `monotonic` is the machine's clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._under_way: deque[_Answer] = deque()
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

    def go_on(self, steps: AnySteps, is_wanted: Callable[[], bool]) -> asyncio.Future[Any]:
        """What the steps return, later. Raises what they raise, or Unwanted."""
        return self._wait(steps, is_wanted)

    def slice_of_own(self, is_wanted: Callable[[], bool]) -> asyncio.Future[Any]:
        """Done when the waiter may work for SLICE_S at the most. Raises Unwanted."""
        return self._wait(None, is_wanted)

    def _wait(self, steps: AnySteps | None, is_wanted: Callable[[], bool]) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer = _Answer(steps, is_wanted, done)
        (self._under_way if len(self._under_way) < UNDER_WAY_MAX else self._later).append(answer)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._pause(TURNS_PER_PAUSE)
        return done

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
            elif self._later:
                under_way.append(self._later.popleft())
            if answer.steps is None:
                break
        self._is_scheduled = bool(under_way)
        if under_way:
            self._pause(TURNS_PER_PAUSE)

    def _is_done(self, answer: _Answer, end: float) -> bool:
        """Goes on with it until `end`."""
        steps, is_cancelled = answer.steps, answer.done.done()
        if is_cancelled or not answer.is_wanted():
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
