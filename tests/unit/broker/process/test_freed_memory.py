"""Memory that large requests freed is returned to the kernel, so an operator sees the true size of the process."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker.process import freed_memory
from broker.process.freed_memory import GROWN_BYTES, give_back_regularly, resident_bytes, trim_function

pytestmark = pytest.mark.skipif(
    trim_function() is None or resident_bytes() == 0, reason="neither glibc nor /proc: nothing can be given back here"
)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([100, 100, 101], 0),
        ([100, 100 + GROWN_BYTES, 100], 1),
        ([100, 100 + GROWN_BYTES, 100 + GROWN_BYTES, 100], 2),
    ],
    ids=["as before", "grown", "still in use"],
)
async def test_the_heap_is_trimmed_while_the_process_is_larger(
    sizes: list[int], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[int] = []
    left = iter(sizes)
    ended = asyncio.Event()

    def resident() -> int:
        size = next(left, None)
        if size is None:
            ended.set()
        return size or 0

    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(freed_memory, "trim_function", lambda: trimmed.append)
    task = asyncio.create_task(give_back_regularly(resident, look_s=0.0))
    await ended.wait()
    task.cancel()
    assert len(trimmed) == times
