"""The event log of a run directory: what was done to the cluster on purpose (`DIR/faults.jsonl`, docs/EVENTS.md).

Each line is `{"time_ms": ..., "kind": ..., "broker": ...}`, written with one call, so that several commands can write at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from tools.private_files import open_log

FAULT_LOG_NAME = "faults.jsonl"
BYTES_MAX = 16 * 1024 * 1024
"""A file of this size is not added to: some hundred thousand faults."""


_ROLE: ContextVar[str] = ContextVar("role", default="")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def named_as(role: str) -> Iterator[None]:
    """Events that this thread writes in the block have the field `role`, such as `leader of orders-0`."""
    token = _ROLE.set(role)
    try:
        yield
    finally:
        _ROLE.reset(token)


class FaultLog:
    """Writes the log of one run directory. A failure to write does not stop a fault."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FAULT_LOG_NAME

    def write(self, kind: str, time_ms: int | None = None, **fields: object) -> None:
        """Adds an event; `time_ms` is when it happened, in milliseconds since 1970 (None: now)."""
        row = {"time_ms": now_ms() if time_ms is None else time_ms, "kind": kind, **fields}
        if role := _ROLE.get():
            row["role"] = role
        with contextlib.suppress(OSError):
            fd = open_log(self.path)
            try:
                if os.fstat(fd).st_size < BYTES_MAX:
                    os.write(fd, json.dumps(row, separators=(",", ":")).encode() + b"\n")
            finally:
                os.close(fd)
