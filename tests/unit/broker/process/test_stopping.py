"""How long a stop takes at most, and a stop that comes while the broker starts."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.process import stopping
from broker.process.stopping import StopTime, unless_stopped

FOREVER = 3600.0


def test_work_is_cancelled_by_a_stop() -> None:
    async def play() -> None:
        stop, ended = asyncio.Event(), asyncio.Event()

        async def start() -> None:
            try:
                await asyncio.sleep(FOREVER)
            finally:
                ended.set()

        asyncio.get_running_loop().call_later(0.01, stop.set)
        assert not await unless_stopped(start(), stop)
        assert ended.is_set()

    asyncio.run(asyncio.wait_for(play(), 20))


def test_work_that_ends_or_fails_first() -> None:
    async def fine() -> None: ...

    async def failing() -> None:
        raise OSError("no")

    async def play() -> None:
        assert await unless_stopped(fine(), asyncio.Event())
        with pytest.raises(OSError, match="no"):
            await unless_stopped(failing(), asyncio.Event())

    asyncio.run(asyncio.wait_for(play(), 20))


def test_all_steps_together_end_in_time(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that does not answer, a disk that hangs, a ZooKeeper that is away: each gets its share, and no more."""
    total_s = 0.4
    monkeypatch.setattr(stopping, "FAREWELL_S", 0.1)

    async def play() -> list[float]:
        loop = asyncio.get_running_loop()
        stop_time = StopTime(total_s, loop.time)
        stop_time.begin()
        began, times = loop.time(), []
        try:
            await stop_time.hand_over(asyncio.sleep(FOREVER))
            times.append(loop.time() - began)
            assert await stop_time.step("quick", asyncio.sleep(0))
            assert not await stop_time.step("groups", asyncio.sleep(FOREVER))
            assert await stop_time.flush("logs", asyncio.sleep(0.001)), "whatever came before has left time for it"
            assert not await stop_time.flush("flushing", asyncio.sleep(FOREVER))
            assert not await stop_time.farewell("closing", asyncio.sleep(FOREVER))
            times.append(loop.time() - began)
        finally:
            stop_time.over()
        return times

    with caplog.at_level(logging.WARNING):
        handed_over, ended = asyncio.run(asyncio.wait_for(play(), 60))
    assert handed_over < ended < 10, "an hour each, if nothing bounded them"
    assert "flushing: not done within broker.stop.timeout.ms=400" in caplog.text


def test_a_person_who_hurries_ends_the_hand_over() -> None:
    async def play() -> None:
        stop_time = StopTime(FOREVER, asyncio.get_running_loop().time)
        stop_time.begin()
        try:
            asyncio.get_running_loop().call_later(0.01, stop_time.hurry)
            await stop_time.hand_over(asyncio.sleep(FOREVER))
        finally:
            stop_time.over()

    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_hand_over_that_fails_ends_no_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def failing() -> None:
        raise ValueError("odd")

    async def play() -> None:
        stop_time = StopTime(FOREVER, asyncio.get_running_loop().time)
        stop_time.begin()
        try:
            await stop_time.hand_over(failing())
        finally:
            stop_time.over()

    asyncio.run(play())
    assert "could not be handed over" in caplog.text
