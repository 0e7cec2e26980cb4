"""Long answers with work for a thread: results and errors arrive in order, and other answers do not wait for the thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref
from collections.abc import Generator
from typing import Any

import pytest

from broker.requests.long_answers import UNDER_WAY_MAX, Asked, LongAnswers, Work
from broker.storage.disk.disk_threads import UNPACKING_MAX, UNPACKING_PLACES


def asked(is_wanted: bool = True) -> Asked:
    return Asked(100, lambda: is_wanted)


async def test_a_threads_result_is_sent_and_its_error_thrown_into_the_steps() -> None:
    def fails() -> None:
        raise ValueError("broken")

    def steps() -> Generator[Work | None, Any, list[object]]:
        found: list[object] = [(yield lambda: 7)]
        yield None
        try:
            yield fails
        except ValueError as error:
            found.append(str(error))
        return found

    answers, given = LongAnswers(lambda: 0.0), steps()
    is_done, work = answers.begin(given)
    assert not is_done
    assert await answers.go_on(asked(), given, work) == [7, "broken"]
    assert len(answers) == 0


async def test_while_threads_are_busy_other_requests_are_answered() -> None:
    blocked = threading.Event()

    def waiting() -> Generator[Work | None, Any, str]:
        yield lambda: blocked.wait(20)
        return "late"

    def short() -> Generator[Work | None, Any, str]:
        yield None
        return "short"

    answers = LongAnswers(lambda: 0.0)
    late = [answers.go_on(asked(), waiting()) for _ in range(UNPACKING_MAX + 2 * UNDER_WAY_MAX)]
    try:
        assert await asyncio.wait_for(answers.go_on(asked(), short()), 10) == "short"
        late.pop().cancel()
    finally:
        blocked.set()
    assert await asyncio.gather(*late) == ["late"] * len(late)
    while len(answers):  # noqa: ASYNC110 - nothing reports the end of the cancelled answer
        await asyncio.sleep(0)
    assert UNPACKING_PLACES._free == UNPACKING_MAX


@pytest.mark.parametrize("is_in_thread", [False, True])
async def test_what_an_answer_that_failed_has_read_is_released_at_once(is_in_thread: bool) -> None:
    """NET-2: not only by the garbage collector, which looks at old objects very rarely."""

    class Read:
        pass

    def fails() -> None:
        raise ValueError("broken")

    def steps() -> Generator[Work | None, Any, None]:
        read = Read()
        kept.append(weakref.ref(read))
        for _ in range(10):
            yield None
        if is_in_thread:
            yield fails
        fails()

    async def ask() -> None:
        given = steps()
        _, work = answers.begin(given)
        with contextlib.suppress(ValueError):
            await answers.go_on(asked(), given, work)

    kept: list[weakref.ref[Read]] = []
    looks = itertools.count()
    answers = LongAnswers(lambda: next(looks) / 2_000)
    gc.collect()
    gc.disable()
    try:
        await asyncio.create_task(ask())
        async with asyncio.timeout(10):
            while kept[0]() is not None:  # noqa: ASYNC110 - the thread may hold the error for a moment longer
                await asyncio.sleep(0)
    finally:
        gc.enable()
