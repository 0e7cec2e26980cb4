"""What the metrics page has of the process and its loop, with the names that Prometheus' own client libraries give them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from broker.process.exposition import COUNTER, GAUGE, family, histogram, labels, single
from broker.process.loop_watchdog import BUCKETS_S, TurnTimes

SELF = Path("/proc/self")
START_TIME = 19
"""The field of /proc/self/stat after the command's name: proc(5) counts it as number 22."""


def loop_section(times: TurnTimes) -> Iterator[str]:
    """The event loop's turns, as the watchdog measures them (NET-4)."""
    longest = labels(call=times.longest_call), times.longest_s
    text = "Longest turn of the event loop since the start"
    yield from family("ottla_loop_longest_turn_seconds", GAUGE, text, [longest])
    text = "Duration of the event loop's turns, measured by a timer every 20 ms"
    yield from histogram("ottla_loop_turn_seconds", text, BUCKETS_S, times.counts, times.total_s)


def process_section(started_s: float) -> Iterator[str]:
    """`started_s`: what `started_at` returned."""
    size, resident = (SELF / "statm").read_text().split()[:2]
    page = os.sysconf("SC_PAGE_SIZE")
    yield from single("process_virtual_memory_bytes", GAUGE, "Virtual memory size in bytes.", int(size) * page)
    yield from single("process_resident_memory_bytes", GAUGE, "Resident memory size in bytes.", int(resident) * page)
    text = "Start time of the process since unix epoch in seconds."
    yield from single("process_start_time_seconds", GAUGE, text, started_s)
    text = "Total user and system CPU time spent in seconds."
    yield from single("process_cpu_seconds_total", COUNTER, text, time.process_time())
    open_files = len(os.listdir(SELF / "fd"))
    yield from single("process_open_fds", GAUGE, "Number of open file descriptors.", open_files)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield from single("process_max_fds", GAUGE, "Maximum number of open file descriptors.", limit)


def started_at() -> float:
    """When this process started, in seconds since 1970."""
    ticks = int((SELF / "stat").read_text().rpartition(")")[2].split()[START_TIME])
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + ticks / os.sysconf("SC_CLK_TCK")
