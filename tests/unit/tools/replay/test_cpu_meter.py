"""The cores that processes of this machine use while a replay sends."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tools.replay.run.cpu_meter import CpuMeter


def test_a_restarted_process_counts_from_its_start_and_a_dead_one_until_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    used = {1: 50.0, 2: 7.0}
    groups = {"brokers": lambda: list(used), "job": lambda: [4]}

    def process(pid: int) -> Any:
        if pid not in used:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=used[pid] - 1, system=1.0))

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(psutil, "Process", process)
    meter = CpuMeter(groups)
    assert meter.sample()
    assert not meter.sample(), "a second has not passed"
    now[0], used[1], used[2] = 105.0, 52.0, 8.0
    assert meter.sample()
    del used[1]
    used[3] = 0.5
    now[0] = 110.0
    assert meter.sample()
    assert meter.cores() == {"brokers": pytest.approx((2 + 1 + 0.5) / 10), "job": 0}


def test_this_process_uses_its_cpu() -> None:
    meter = CpuMeter({"own": lambda: [os.getpid()]})
    assert meter.sample()
    assert meter.cores() == {"own": 0}
