"""How long a stop takes at most, and a stop that comes while the broker starts."""

from __future__ import annotations

import asyncio
import logging
import selectors
from pathlib import Path

import pytest

from broker.machine import this_machine
from broker.main import Broker
from broker.process import stopping
from broker.process.stopping import LastResort, StopTime, unless_stopped
from broker.settings.config import BrokerConfig
from broker.storage.directories.log_directory import LogDirectoryError

FOREVER = 3600.0


class _WithoutWaiting(selectors.DefaultSelector):
    """`waited_s` is how long it should have waited."""

    waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.waited_s += timeout or 0.0
        return super().select(0)


class LoopWithoutWaiting(asyncio.SelectorEventLoop):
    """Its time passes only while it waits, so a busy machine delays nothing."""

    def __init__(self) -> None:
        self._without_waiting = _WithoutWaiting()
        super().__init__(self._without_waiting)

    def time(self) -> float:
        return self._without_waiting.waited_s


@pytest.fixture
def new_loop() -> type[asyncio.AbstractEventLoop]:
    return LoopWithoutWaiting


async def test_work_is_cancelled_by_a_stop() -> None:
    stop, ended = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            ended.set()

    asyncio.get_running_loop().call_later(0.01, stop.set)
    assert not await unless_stopped(start(), stop)
    assert ended.is_set()


async def test_work_that_ends_or_fails_before_the_stop() -> None:
    async def fine() -> None: ...

    async def failing() -> None:
        raise OSError("no")

    assert await unless_stopped(fine(), asyncio.Event())
    with pytest.raises(OSError, match="no"):
        await unless_stopped(failing(), asyncio.Event())


async def test_all_steps_together_end_in_time(
    new_loop: object, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that does not answer, a disk that hangs, a ZooKeeper that is away: each step gets only its share of the time."""
    monkeypatch.setattr(stopping, "FAREWELL_S", 0.1)
    monkeypatch.setattr(stopping, "STUCK_LOOP_S", FOREVER)
    stop_time = StopTime(0.4, asyncio.get_running_loop().time, LastResort())
    stop_time.begin()
    with caplog.at_level(logging.WARNING):
        await stop_time.hand_over(asyncio.sleep(FOREVER))
        assert await stop_time.step("quick", asyncio.sleep(0))
        assert not await stop_time.step("groups", asyncio.sleep(FOREVER))
        assert await stop_time.flush("logs", asyncio.sleep(0.001)), "whatever came before has left time for it"
        assert not await stop_time.flush("flushing", asyncio.sleep(FOREVER))
        assert not await stop_time.farewell("closing", asyncio.sleep(FOREVER))
    stop_time.over()
    assert "flushing: not done within broker.stop.timeout.ms=400" in caplog.text


async def test_hurry_ends_the_hand_over() -> None:
    stop_time = StopTime(FOREVER, asyncio.get_running_loop().time, LastResort())
    stop_time.begin()
    asyncio.get_running_loop().call_later(0.01, stop_time.hurry)
    await stop_time.hand_over(asyncio.sleep(FOREVER))
    stop_time.over()


async def test_a_hand_over_that_fails_does_not_end_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def failing() -> None:
        raise ValueError("odd")

    stop_time = StopTime(FOREVER, asyncio.get_running_loop().time, LastResort())
    stop_time.begin()
    await stop_time.hand_over(failing())
    stop_time.over()
    assert "could not be handed over" in caplog.text


async def test_a_broker_whose_disks_fail_during_the_start_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(BrokerConfig(broker_id=1, log_dirs=str(tmp_path)), this_machine(None))

    async def opening() -> None:
        broker._all_log_directories_failed()
        await asyncio.sleep(FOREVER)

    monkeypatch.setattr(broker, "_open", opening)
    with pytest.raises(LogDirectoryError, match="all log directories have failed"):
        await broker.run(asyncio.Event())
