"""The line that shows how far a replay is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tools.replay.run.control import ControlServer
from tools.replay.run.exports import LiveMetrics
from tools.replay.run.plan import Plan

LINE_S = 0.5
LINES_APART_S = 5.0
"""Between two lines of progress, where there is no terminal."""
TURN_S = 0.1
METRICS_S = 1.0


class ProgressLine:
    """Redraws one line on a terminal; elsewhere prints a line every few seconds. Also writes `metrics`, if there are any."""

    def __init__(self, plan: Plan, control: ControlServer, metrics: LiveMetrics | None = None) -> None:
        self._plan = plan
        self._control = control
        self._is_terminal = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._before = (0.0, 0)
        self._is_over = False
        self._metrics = metrics
        self._written_at = 0.0

    def show(self) -> None:
        if time.monotonic() - self._written_at > METRICS_S:
            self._write_metrics()
        totals = self._control.totals()
        if not totals.started_ns or self._is_over:
            return
        expected = self._plan.operations
        lost = "" if self._control.is_watched else ", ".join(map(str, sorted(self._control.lost)))
        self._is_over = bool(lost) or (totals.sent >= expected and not totals.unanswered)
        elapsed_s = (self._control.clock.now_ns() - totals.started_ns) / 1e9
        if elapsed_s < 0:
            return
        if time.monotonic() - self._shown_at < (LINE_S if self._is_terminal else LINES_APART_S) and not self._is_over:
            return
        self._shown_at = time.monotonic()
        before_s, before = self._before
        rate = (totals.sent - before) / max(elapsed_s - before_s, 1e-3)
        self._before = (elapsed_s, totals.sent)
        share = f"{min(100 * totals.sent // max(expected, 1), 100):3d} %"
        words = (
            f"{share}  {elapsed_s:6.0f} s  {totals.sent:,} sent, {rate:,.0f}/s, {totals.acknowledged:,} acknowledged, "
            f"{totals.received:,} records fetched, {totals.unanswered:,} unanswered, {totals.failed:,} failed, "
            f"{totals.late_ns / 1e6:,.0f} ms late"
        )
        click.echo(f"\r\x1b[K{words}" if self._is_terminal else f"  {words}", err=True, nl=not self._is_terminal)
        if self._is_over:
            of_lost = f"Task {lost} was lost. " if lost else ""
            click.echo(("\n" if self._is_terminal else "") + of_lost + "Reading everything back ...", err=True)

    def _write_metrics(self) -> None:
        """A disk that is full does not end the replay."""
        self._written_at = time.monotonic()
        if self._metrics is not None:
            try:
                self._metrics.write()
            except OSError as problem:
                click.echo(f"Warning: the progress is not written any more: {problem}", err=True)
                self._metrics = None

    def end(self) -> None:
        self._write_metrics()
        if self._is_terminal and not self._is_over:
            click.echo("", err=True)


@contextmanager
def shown(plan: Plan, control: ControlServer) -> Iterator[None]:
    """Shows the progress in a thread of its own."""
    ended = threading.Event()
    line = ProgressLine(plan, control)

    def show() -> None:
        while not ended.wait(TURN_S):
            line.show()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.end()
