"""The event log of one process (RUN-3): JSON lines of what happened, from which a timeline is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from broker.clock import Clock


class EventLog:
    """Appends one JSON object a line: `{"time_ms": ..., "kind": ..., <fields>}`. Without a path it writes nothing.

    Line buffered, so that a killed process leaves whole lines. A failing disk turns the log off: it must never
    stop the broker.
    """

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._clock = clock
        self._file: IO[str] | None = None
        if path is not None:
            self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        """Notes one event. Values that JSON does not know are written as their text."""
        if self._file is None:
            return
        row = {"time_ms": self._clock.wall_ms(), "kind": kind, **fields}
        try:
            self._file.write(json.dumps(row, default=str, separators=(",", ":")) + "\n")
        except OSError:
            self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


EventWriter = Callable[..., None]
"""`EventLog.write`: (kind, **fields)."""
