"""Samples of high watermarks for the event log (RUN-3).

Nothing is added to an append or a fetch: a task looks at the partitions that this broker leads, and compares each with its last sample.
After something happened (a LeaderAndIsr, or news of the cluster) it looks often, so that the first move of a new leader's high watermark
is seen when it happens. Otherwise it looks every ten seconds. A partition is written at most once a second,
and once more at the start of a leader epoch and at its first move.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable

from broker.process.event_log import EventLog
from broker.replication.partition import Partition, Role
from protocol.types import NO_EPOCH, TopicPartition

OFTEN_S, OFTEN_FOR_S = 0.1, 2.0
SAMPLE_S, SAMPLE_FOR_S = 1.0, 30.0
IDLE_S = 10.0
"""The pauses between two looks, and how long they last after something happened."""
ROWS_IN_AN_EVENT = 50
LOOKS_PER_S_MAX = 10_000
"""With many partitions the looks are rarer, so that they cost little."""
LOOKS_IN_A_SLICE = 200
"""Partitions to look at between two pauses."""


class _Sample:
    """What was written last of a partition. `written_at`: -inf if it does not delay the next sample."""

    __slots__ = ("end", "has_moved", "high_watermark", "leader_epoch", "written_at")

    def __init__(self) -> None:
        self.leader_epoch = NO_EPOCH
        self.high_watermark = 0
        self.end = 0
        self.written_at = float("-inf")
        self.has_moved = False
        """Whether the high watermark has moved in this leader epoch."""

    def takes(self, leader_epoch: int, high_watermark: int, end: int, now: float) -> bool:
        """Whether these offsets are to be written now."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch, self.has_moved, self.written_at = leader_epoch, False, float("-inf")
        else:
            is_first_move = not self.has_moved and high_watermark != self.high_watermark
            if not is_first_move and now - self.written_at < SAMPLE_S:
                return False
            self.has_moved |= is_first_move
            self.written_at = now
        self.high_watermark, self.end = high_watermark, end
        return True


class HighWatermarkSamples:
    """Run `run` in a task, and call `something_happened` when it did. `pause` yields the loop (NET-4)."""

    def __init__(
        self,
        partitions: Iterable[Partition],
        events: EventLog,
        monotonic: Callable[[], float],
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._partitions = partitions
        self._events = events
        self._monotonic = monotonic
        self._pause = pause
        self._happened_at = float("-inf")
        self._news = asyncio.Event()
        self._last: dict[TopicPartition, _Sample] = {}

    def something_happened(self) -> None:
        self._happened_at = self._monotonic()
        self._news.set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(max(OFTEN_S, len(self._last) / LOOKS_PER_S_MAX))
            await self.sample()
            self._news.clear()
            rest_s = self.pause_s() - OFTEN_S
            if rest_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await self._news.wait()

    def pause_s(self) -> float:
        """How long to wait before the next look, unless something happens."""
        ago = self._monotonic() - self._happened_at
        return OFTEN_S if ago < OFTEN_FOR_S else SAMPLE_S if ago < SAMPLE_FOR_S else IDLE_S

    async def sample(self) -> None:
        """Writes the partitions whose high watermark or log end offset moved: the first ROWS_IN_AN_EVENT, and how many more there are."""
        now = self._monotonic()
        last = self._last
        rows: list[list[object]] = []
        moved = at = 0
        for at, partition in enumerate(self._partitions, 1):
            if at % LOOKS_IN_A_SLICE == 0:
                await self._pause()
            tp, epoch = partition.tp, partition.leader_epoch
            if partition.role is not Role.LEADER or partition.log is None:
                last.pop(tp, None)
                continue
            high_watermark, end = partition.high_watermark, partition.log.log_end_offset
            sample = last.get(tp)
            if sample is None:
                sample = last[tp] = _Sample()
            if sample.end == end and sample.high_watermark == high_watermark and sample.leader_epoch == epoch:
                continue
            if sample.takes(epoch, high_watermark, end, now):
                moved += 1
                if len(rows) < ROWS_IN_AN_EVENT:
                    rows.append([str(tp), epoch, high_watermark, end])
        if len(last) > at:
            last.clear()  # of partitions that are gone
        if moved:
            self._events.write("high_watermarks", partitions=rows, more=moved - len(rows))
