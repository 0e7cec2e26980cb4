"""The lease: FLT-5, FLT-6, CTL-14."""

from __future__ import annotations

import asyncio
import time as clock_module

import pytest

from broker.cluster.lease import LeadershipLease
from broker.process.clock import SystemClock
from protocol.zk.session import ConnectionLoss
from tests.support.fake_time import FakeTime


class Session:
    """A session whose heartbeat may fail, take long, or find another session."""

    def __init__(
        self, time: FakeTime, *, takes_s: float = 0, new_id: int | None = None, error: Exception | None = None
    ):
        self.session_id = 5
        self._time, self._takes_s, self._new_id, self._error = time, takes_s, new_id, error

    async def heartbeat(self) -> None:
        self._time.now += self._takes_s
        if self._new_id is not None:
            self.session_id = self._new_id
        if self._error is not None:
            raise self._error


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def stalled(time: FakeTime, session_timeout_ms: int = 6000) -> LeadershipLease:
    lease = LeadershipLease(time, session_timeout_ms)
    lease.tick(5)
    time.now += 30
    return lease


@pytest.mark.parametrize(
    ("session_timeout_ms", "gap_s", "suspect"),
    [(6000, 0.9, False), (6000, 1.1, True), (1000, 0.4, False), (1000, 0.6, True)],
)
@pytest.mark.parametrize("is_seen_by_the_tick", [False, True])
def test_a_gap_above_the_limit_makes_it_suspect(
    time: FakeTime, session_timeout_ms: int, gap_s: float, suspect: bool, is_seen_by_the_tick: bool
) -> None:
    lease = LeadershipLease(time, session_timeout_ms)
    lease.tick(5)
    time.now += gap_s
    if is_seen_by_the_tick:
        lease.tick(5)
    assert lease.is_suspect() is suspect


def test_a_suspended_machine_is_a_gap(time: FakeTime) -> None:
    """CLOCK_MONOTONIC stands still during a suspension; the session does not."""
    lease = LeadershipLease(time, 6000)
    lease.tick(5)
    time.suspended_s += 600
    assert lease.is_suspect()
    assert not lease.is_proven()


def test_the_system_clock_counts_suspensions_where_the_system_reports_them() -> None:
    clock = SystemClock()
    before = clock.since_boot()
    assert clock.since_boot() >= before
    if hasattr(clock_module, "CLOCK_BOOTTIME"):
        assert abs(clock_module.clock_gettime(clock_module.CLOCK_BOOTTIME) - before) < 60


async def test_the_time_before_run_is_not_a_gap(time: FakeTime) -> None:
    """A broker may wait for ZooKeeper for a long time before it leads anything."""
    lease = LeadershipLease(time, 6000)
    time.now += 30
    running = asyncio.create_task(lease.run(Session(time)))
    await asyncio.sleep(0)
    running.cancel()
    assert not lease.is_suspect()


async def test_a_round_trip_in_the_same_session_restores_trust(time: FakeTime) -> None:
    lease = stalled(time)
    gaps: list[float] = []
    trusted: list[bool] = []
    lease.on_stall(gaps.append)
    lease.on_trusted(lambda: trusted.append(True))
    assert lease.is_suspect()
    assert await lease.confirm(Session(time))
    assert not lease.is_suspect()
    assert (gaps, trusted) == ([30.0], [True])


@pytest.mark.parametrize("kwargs", [{"takes_s": 5}, {"new_id": 6}])
async def test_a_second_gap_or_another_session_proves_nothing(time: FakeTime, kwargs: dict[str, int]) -> None:
    lease = stalled(time)
    assert lease.is_suspect()
    assert not await lease.confirm(Session(time, **kwargs))
    assert lease.is_suspect()


async def test_before_the_first_registration_any_session_ends_the_doubt(time: FakeTime) -> None:
    """Seed 28700597: the process stood still until its session had ended, before it was registered. It never led anything again."""
    lease = stalled(time)
    assert lease.is_suspect()
    lease.forget_session()
    assert await lease.confirm(Session(time, new_id=6))
    assert not lease.is_suspect()


async def test_without_zookeeper_the_lease_stays_as_it_was(time: FakeTime) -> None:
    lease = stalled(time)
    assert lease.is_suspect()
    with pytest.raises(ConnectionLoss):
        await lease.confirm(Session(time, error=ConnectionLoss("test")))
    assert lease.is_suspect()
    lease.reset()
    assert not lease.is_suspect(), "the broker gave up everything that it led"
    fresh = LeadershipLease(time, 6000)
    for _ in range(100):
        time.now += 0.1
        fresh.tick(5)
    assert not fresh.is_suspect()


async def test_a_round_trip_proves_the_session_for_half_its_time(time: FakeTime) -> None:
    """From the start of the round trip: the answer may have taken long. A failed one, or one of another session, proves nothing."""
    lease = LeadershipLease(time, 6000)
    lease.tick(5)
    assert lease.is_proven()
    time.now += 3.1
    lease.tick(5)  # suspect now, and trusted again by the round trip
    assert not lease.is_proven()
    assert await lease.confirm(Session(time, takes_s=0.5))
    assert lease.is_proven()
    time.now += 2.4
    assert lease.is_proven()
    time.now += 0.2
    assert not lease.is_proven()
    with pytest.raises(ConnectionLoss):
        await lease.confirm(Session(time, error=ConnectionLoss("test")))
    await lease.confirm(Session(time, new_id=6))
    assert not lease.is_proven()


async def test_run_proves_the_session_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    time, turn = FakeTime(), asyncio.sleep
    lease = LeadershipLease(time, 600)
    monkeypatch.setattr("broker.cluster.lease.asyncio.sleep", lambda seconds: turn(0))
    running = asyncio.create_task(lease.run(Session(time)))
    for _ in range(60):
        await turn(0)
        time.now += 0.1
        assert lease.is_proven()
    running.cancel()
