"""What the controller needs of the event log (RUN-3). `docs/EVENTS.md` lists the kinds of events and their fields."""

from __future__ import annotations

from typing import Any, Protocol


class EventLog(Protocol):
    """Receives the event log's rows."""

    def write(self, kind: str, **fields: Any) -> None: ...


class NoEventLog:
    """Drops every row."""

    def write(self, kind: str, **fields: Any) -> None:
        pass
