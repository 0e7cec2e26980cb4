"""Samples of high watermarks for the event log (RUN-3).

Nothing is added to an append or a fetch: a task looks at the partitions that this broker leads, and compares each with its last sample.
It looks every second for a while after something happened (a LeaderAndIsr, or news of the cluster), otherwise every ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.process.event_log import EventLog
from broker.replication.partition import Partition, Role
from protocol.types import TopicPartition

SAMPLE_S = 1.0
IDLE_SAMPLE_S = 10.0
WATCH_S = 30.0
"""How long the samples stay dense after something happened."""
ROWS_IN_AN_EVENT = 50


class HighWatermarkSamples:
    """Call `sample` every SAMPLE_S, and `something_happened` when it did."""

    def __init__(self, partitions: Iterable[Partition], events: EventLog, monotonic: Callable[[], float]) -> None:
        self._partitions = partitions
        self._events = events
        self._monotonic = monotonic
        self._dense_until = float("-inf")
        self._idle_until = float("-inf")
        self._last: dict[TopicPartition, tuple[int, int]] = {}

    def something_happened(self) -> None:
        self._dense_until = self._monotonic() + WATCH_S

    def sample(self) -> None:
        """Writes the partitions whose high watermark or log end offset moved: the first ROWS_IN_AN_EVENT, and how many more there are."""
        now = self._monotonic()
        if now >= self._dense_until and now < self._idle_until:
            return
        self._idle_until = now + IDLE_SAMPLE_S
        last, self._last = self._last, {}
        rows: list[list[object]] = []
        moved = 0
        for partition in self._partitions:
            if partition.role is not Role.LEADER or partition.log is None:
                continue
            tp = partition.tp
            offsets = self._last[tp] = (partition.high_watermark, partition.log.log_end_offset)
            if offsets != last.get(tp):
                moved += 1
                if len(rows) < ROWS_IN_AN_EVENT:
                    rows.append([str(tp), partition.leader_epoch, *offsets])
        if moved:
            self._events.write("high_watermarks", partitions=rows, more=moved - len(rows))
