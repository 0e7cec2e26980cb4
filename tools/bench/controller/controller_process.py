"""One controller alone, as it runs in a broker: `python -m tools.bench.controller.controller_process CONNECT BROKER_ID EVENT_LOG`.

It stands for election when it reads a line from standard input. It prints JSON lines: `{"kind": "ready"}`, then
`{"kind": "controller_elected", "at_s": ...}` and `{"kind": "controller_in_office", ...}` with the duration of each step; at the
next line, or at the end of the input, `{"kind": "memory", ...}`. `at_s` is time.monotonic, which all processes share.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

import uvloop

from controller.controller import Controller, ControllerSettings
from protocol.network_client import NetworkClient
from protocol.zk.session import ZooKeeperSession
from tools.bench.controller.acknowledging_brokers import LISTENER

GC_THRESHOLDS = (50_000, 5, 200)
THREAD_SWITCH_S = 0.0005
"""Both are those of a broker (`broker/main.py`)."""
REQUEST_TIMEOUT_MS = 30_000
SESSION_TIMEOUT_MS = 18_000
CONNECT_TIMEOUT_S = 20.0
PRINTED = ("controller_elected", "controller_in_office")


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000


class EventLog:
    """Writes events to a file, as a broker does, and those that the bench needs to standard output as well."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1, encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        at_s = time.monotonic()
        row = {"time_ms": time.time_ns() // 1_000_000, "kind": kind, **fields}
        self._file.write(json.dumps(row, default=str, separators=(",", ":")) + "\n")
        if kind in PRINTED:
            say(kind, at_s=at_s, **fields)


def say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def memory_mb() -> dict[str, float]:
    """Resident memory now and at its peak, in MB."""
    lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[key].split()[0]) / 1024 for name, key in (("rss_mb", "VmRSS"), ("peak_mb", "VmHWM"))}


async def run(connect: str, broker_id: int, event_log: Path) -> None:
    zk = ZooKeeperSession(connect, session_timeout_ms=SESSION_TIMEOUT_MS)
    await zk.start(CONNECT_TIMEOUT_S)
    clock = SystemClock()
    network = NetworkClient(clock, request_timeout_ms=REQUEST_TIMEOUT_MS, random=random.random)
    controller = Controller(
        ControllerSettings(broker_id, LISTENER, auto_leader_rebalance_enable=False),
        zk,
        network,
        clock,
        EventLog(event_log),
    )
    gc.collect()
    gc.freeze()
    say("ready", **memory_mb())
    loop = asyncio.get_running_loop()
    if await loop.run_in_executor(None, sys.stdin.readline):
        cpu_s = time.process_time()
        await controller.start()
        await loop.run_in_executor(None, sys.stdin.readline)
        say("memory", cpu_ms=1000 * (time.process_time() - cpu_s), **memory_mb())
        await controller.stop()
    network.close()
    await zk.close()


def main() -> None:
    sys.setswitchinterval(THREAD_SWITCH_S)
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))


if __name__ == "__main__":
    main()
