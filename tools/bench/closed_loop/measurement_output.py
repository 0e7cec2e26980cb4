"""What `ottla bench` prints of a measurement: text for people, JSON for scripts, and a line of progress on a terminal."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from tools.bench.closed_loop.measurement import Measurement, Progress

CLOSED_LOOP = (
    "closed loop: requests that a standstill holds back are not sent, so only `max` shows it; "
    "`ottla replay run` sends at given times"
)


def as_json(measured: Measurement) -> dict[str, Any]:
    """The measurement with its rates; one MB is 1,000,000 bytes. `loop`: see CLOSED_LOOP."""
    return {
        **asdict(measured),
        "loop": "closed",
        "requests_per_s": measured.requests / measured.seconds,
        "records_per_s": measured.records / measured.seconds,
        "mb_per_s": measured.bytes / measured.seconds / 1e6,
        "client_cores": measured.client_cpu_s / measured.seconds,
    }


def as_lines(measured: Measurement, what: str = "requests") -> list[str]:
    """`what`: what the latencies are of."""
    seconds = measured.seconds
    latencies = (
        ("p50", measured.p50_ms),
        ("p95", measured.p95_ms),
        ("p99", measured.p99_ms),
        ("p99.9", measured.p999_ms),
        ("max", measured.max_ms),
    )
    return [
        f"  {what + '/s':<12} {measured.requests / seconds:>14,.0f}",
        f"  {'records/s':<12} {measured.records / seconds:>14,.0f}",
        f"  {'MB/s':<12} {measured.bytes / seconds / 1e6:>14,.1f}",
        f"  {'latency':<12} " + "   ".join(f"{name} {ms:.2f} ms" for name, ms in latencies),
        f"  {'':<12} {CLOSED_LOOP}",
        f"  {'client':<12} {measured.client_cpu_s / seconds:>14.0%} of a core",
    ]


class ProgressLine:
    """Rates of the last second, on stderr if that is a terminal. Use as a context: the end clears the line."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._before = Progress(0, 0, 0, 0)
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._show("")

    def __call__(self, now: Progress) -> None:
        before = self._before if now.second > self._before.second else Progress(0, 0, 0, 0)
        passed = now.second - before.second
        self._before = now
        requests, size = (now.requests - before.requests) / passed, (now.bytes - before.bytes) / passed / 1e6
        self._show(f"{self._prefix}{now.second} s   {requests:,.0f} requests/s   {size:,.1f} MB/s")

    def say(self, text: str) -> None:
        """Shows another state instead."""
        self._show(f"{self._prefix}{text}")

    def _show(self, text: str) -> None:
        if self._shows:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
