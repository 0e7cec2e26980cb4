"""The event log of one process (RUN-3): one JSON line per event."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.process.clock import Clock
from broker.process.rotated_file import EVENT_LOG_ROTATION, RotatedFile, Rotation

log = logging.getLogger(__name__)

_AS_JSON = json.JSONEncoder(default=str, separators=(",", ":"), allow_nan=False).encode

RETRY_S = 1.0
"""While the file cannot be written, one event in this many seconds is tried, because each try calls a failing disk on the loop."""


class EventLog:
    """Appends one JSON object per line: `{"time_ms": ..., "kind": ..., <fields>}`. Without a path it writes nothing.

    A full file is rotated (`broker.process.rotated_file`). A failing disk must never stop the broker. While the file cannot be written,
    events are dropped, and the server log reports this once. When the file can be written again, both logs report how many were
    dropped.
    """

    def __init__(self, path: Path | None, clock: Clock, rotation: Rotation = EVENT_LOG_ROTATION) -> None:
        self._clock = clock
        self._file = RotatedFile(path, rotation) if path is not None else None
        self._dropped = 0
        """Events, since the file could be written for the last time."""
        self._told = 0
        """Of these, those in a line `events_dropped`, after which the file failed again."""
        self._next_try = 0.0

    def write(self, kind: str, **fields: Any) -> None:
        """Adds one event. Values that JSON does not support are written as their text."""
        if self._file is None:
            return
        if self._dropped and self._clock.monotonic() < self._next_try:
            self._dropped += 1
            return
        try:
            if self._dropped > self._told:
                self._file.append(self._line("events_dropped", {"count": self._dropped - self._told}))
                self._told = self._dropped
            self._file.append(self._line(kind, fields))
        except OSError as error:
            self._failed(self._file, error)
        else:
            self._works(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, kind: str, fields: dict[str, Any]) -> bytes:
        row = {"time_ms": self._clock.wall_ms(), "kind": kind, **fields}
        try:
            text = _AS_JSON(row)
        except (TypeError, ValueError, RecursionError):
            # NaN, a key that is not a string, or a cycle.
            text = _AS_JSON({"time_ms": row["time_ms"], "kind": kind, "text": repr(fields)})
        return text.encode() + b"\n"

    def _failed(self, file: RotatedFile, error: OSError) -> None:
        if not self._dropped:
            reason = error.strerror or error
            log.error("the event log %s cannot be written, so events are dropped until it can: %s", file.path, reason)
        self._dropped += 1
        self._next_try = self._clock.monotonic() + RETRY_S

    def _works(self, file: RotatedFile) -> None:
        if self._dropped:
            log.warning("the event log %s can be written again, %d events were dropped", file.path, self._dropped)
            self._dropped = self._told = 0


class LimitedEvents:
    """Events that clients can cause at any rate: at most `per_second` of them are written, the others are counted (`events_left_out`)."""

    def __init__(self, events: EventLog, monotonic: Callable[[], float], per_second: int = 20) -> None:
        self._events = events
        self._monotonic = monotonic
        self._per_second = per_second
        self._ends = float("-inf")
        self._room = 0
        self._left_out = 0

    def write(self, kind: str, **fields: Any) -> None:
        now = self._monotonic()
        if now >= self._ends:
            self._ends, self._room = now + 1.0, self._per_second
            if self._left_out:
                self._events.write("events_left_out", of=kind, count=self._left_out)
                self._left_out = 0
        if not self._room:
            self._left_out += 1
            return
        self._room -= 1
        self._events.write(kind, **fields)


EventWriter = Callable[..., None]
"""`EventLog.write`: (kind, **fields)."""
