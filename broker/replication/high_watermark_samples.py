"""Samples of high watermarks for the event log (RUN-3).

Nothing is added to an append or a fetch: a task looks at the partitions that this broker leads, and compares each with its last sample.
After something happened (a LeaderAndIsr, or news of the cluster) it looks often, so that the first move of a new leader's high watermark
is seen when it happens. Otherwise it looks every ten seconds. A partition is written at most once a second,
and once more at the start of a leader epoch and at its first move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker.process.event_log import EventLog
from broker.replication.partition import Partition, Role
from protocol.types import TopicPartition

OFTEN_S, OFTEN_FOR_S = 0.1, 2.0
SAMPLE_S, SAMPLE_FOR_S = 1.0, 30.0
IDLE_S = 10.0
"""The pauses between two looks, and how long they last after something happened."""
ROWS_IN_AN_EVENT = 50


class _Sample(NamedTuple):
    """What was written last of a partition. `written_at`: -inf if it does not delay the next sample."""

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    written_at: float
    has_moved: bool
    """Whether the high watermark has moved in this leader epoch."""


def _next(before: _Sample | None, offsets: tuple[int, int, int], now: float) -> _Sample:
    """The sample to write; `before` itself if there is nothing to write now."""
    leader_epoch, high_watermark, _ = offsets
    if before is None or before.leader_epoch != leader_epoch:
        return _Sample(*offsets, written_at=float("-inf"), has_moved=False)
    is_first_move = not before.has_moved and high_watermark != before.high_watermark
    if offsets == before[:3] or (not is_first_move and now - before.written_at < SAMPLE_S):
        return before
    return _Sample(*offsets, written_at=now, has_moved=before.has_moved or is_first_move)


class HighWatermarkSamples:
    """Run `run` in a task, and call `something_happened` when it did."""

    def __init__(self, partitions: Iterable[Partition], events: EventLog, monotonic: Callable[[], float]) -> None:
        self._partitions = partitions
        self._events = events
        self._monotonic = monotonic
        self._happened_at = float("-inf")
        self._news = asyncio.Event()
        self._last: dict[TopicPartition, _Sample] = {}

    def something_happened(self) -> None:
        self._happened_at = self._monotonic()
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            pause_s = self.pause_s()
            if pause_s == OFTEN_S:
                await asyncio.sleep(pause_s)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()
            self.sample()

    def pause_s(self) -> float:
        """How long to wait before the next look."""
        ago = self._monotonic() - self._happened_at
        return OFTEN_S if ago < OFTEN_FOR_S else SAMPLE_S if ago < SAMPLE_FOR_S else IDLE_S

    def sample(self) -> None:
        """Writes the partitions whose high watermark or log end offset moved: the first ROWS_IN_AN_EVENT, and how many more there are."""
        now = self._monotonic()
        last, self._last = self._last, {}
        rows: list[list[object]] = []
        moved = 0
        for partition in self._partitions:
            if partition.role is not Role.LEADER or partition.log is None:
                continue
            tp = partition.tp
            offsets = (partition.leader_epoch, partition.high_watermark, partition.log.log_end_offset)
            before = last.get(tp)
            sample = self._last[tp] = _next(before, offsets, now)
            if sample is not before:
                moved += 1
                if len(rows) < ROWS_IN_AN_EVENT:
                    rows.append([str(tp), *offsets])
        if moved:
            self._events.write("high_watermarks", partitions=rows, more=moved - len(rows))
