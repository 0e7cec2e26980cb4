"""What the members of groups that run as processes share: their journal, their settings, their start and their end.

`group_chaos_member` and `pipeline_worker` are such members.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError

from tools.faults.reporting_clients import PROMPT

SESSION_MS = 4_000
HEARTBEAT_MS = 300
TUNED = {**PROMPT, "retry.backoff.max.ms": 200}
"""As the producers of these tests; without it librdkafka's defaults."""
HARMLESS = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}
METADATA_MAGIC = b"CGMDv2:"
"""How librdkafka begins a group's metadata; the generation follows."""
INPUT_ENDED = 3
"""The exit code when standard input has ended: the test is over."""


class Journal:
    """Each line is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, **fields: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic(), "what": what, **fields}).encode() + b"\n")


class Member(Protocol):
    """`run` returns soon after `stopping` is set."""

    stopping: threading.Event

    def run(self) -> None: ...


def run_member(path: str, make: Callable[[Journal], Member]) -> int:
    """Runs the member until SIGTERM, and returns the exit code. An exception is the last line of the journal at `path`."""
    journal = Journal(Path(path))
    try:
        member = make(journal)
        signal.signal(signal.SIGTERM, lambda *_: member.stopping.set())
        threading.Thread(target=_end_with_standard_input, daemon=True).start()
        member.run()
    except Exception:
        journal.write("failed", error=traceback.format_exc())
        raise
    return 0


def _end_with_standard_input() -> None:
    """Reads the file itself: a lock of `sys.stdin` would be held at the end of the process."""
    while os.read(0, 1024):
        pass
    os._exit(INPUT_ENDED)


def generation_of(metadata: Any) -> tuple[int, str]:
    """Generation (-1: none), member id, of librdkafka's group metadata."""
    data = bytes(metadata)
    assert data.startswith(METADATA_MAGIC), data
    (generation,) = struct.unpack_from("=i", data, len(METADATA_MAGIC))
    _, member, *_ = data[len(METADATA_MAGIC) + 4 :].split(b"\0")
    return generation, member.decode()
