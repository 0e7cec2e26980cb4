"""Everything that the event logs of a cluster have, as one stream: a log of any size is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.timeline.merging import ClockOffset, Event, clock_offsets, events_of_rows, merged
from tools.timeline.sources import Sources


def clocks_of(found: Sources) -> list[ClockOffset]:
    """The measured clocks of the brokers; reads all logs, unless they have one clock. Raises ClusterError."""
    if found.have_one_clock:
        return []
    for log in found.logs:
        log.rewind()
    return clock_offsets(
        {log.broker: events_of_rows(log.rows(), log.broker) for log in found.logs if log.broker is not None}
    )


def history_of(found: Sources, offsets: Sequence[ClockOffset]) -> Iterator[Event]:
    """All events from the first one on, in one order and on one clock. Afterwards, the logs continue where this ended.

    Raises ClusterError.
    """
    ahead_ms = {offset.broker: offset.offset_ms for offset in offsets}
    for log in found.logs:
        log.rewind()
    return merged(
        events_of_rows(log.rows(), log.broker, ahead_ms.get(log.broker, 0.0) if log.broker is not None else 0.0)
        for log in found.logs
    )
