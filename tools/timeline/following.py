"""Event logs that grow: new events wait a moment for those of other brokers, so that they come in one order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tools.timeline.merging import ClockOffset, Event, events_of_rows, merged, on_one_clock
from tools.timeline.sources import Row

LATE_MS = 400.0
"""How long an event waits for earlier ones of other brokers, while something happens."""


class Following:
    """Takes what each log got since the last time, and gives events in order."""

    def __init__(self, offsets: Iterable[ClockOffset]) -> None:
        self._offsets = list(offsets)
        self._waiting: dict[int | None, list[Event]] = {}

    def ready(self, new_rows: Mapping[int | None, Sequence[Row]]) -> list[Event]:
        """`new_rows`: by broker; None: the log of faults. To be called again and again, also without new rows."""
        new = {broker: list(events_of_rows(rows, broker)) for broker, rows in new_rows.items()}
        for broker, events in new.items():
            own = events if broker is None else on_one_clock({broker: events}, self._offsets)[broker]
            self._waiting.setdefault(broker, []).extend(own)
        until = max((events[-1].at_ms for events in self._waiting.values() if events), default=0.0) - (
            LATE_MS if any(new.values()) else 0.0
        )
        ready = {
            broker: [event for event in events if event.at_ms <= until] for broker, events in self._waiting.items()
        }
        self._waiting = {broker: events[len(ready[broker]) :] for broker, events in self._waiting.items()}
        return list(merged(ready.values()))
