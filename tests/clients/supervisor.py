"""Keeps clients of the matrix at work, and reports what they do in the lines of docs/VERIFY.md, so that a verdict can judge them.

    python -m tests.clients.supervisor NAME ...

Each client has a topic and a group of its own (`place_of`). Its writer gets a record every PAUSE_S seconds; its reader commits what it
has read. Nothing is reported before all clients have written and read a record: a JVM starts slowly. A program that has ended, or that
has done nothing for STUCK_S seconds although there was work, is started again, as a supervisor would. Such a start is a line of JSON on
stdout: `{"again": name, "what": "writer" or "reader", "why": text}`.

SIGTERM ends it: the writers answer for what they have, and the readers read the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.clients.clients import CLIENTS, Client
from tests.clients.program import Line, Program

PAUSE_S = 0.05
STEP_S = 0.01
STUCK_S = 9.0
"""Longer than the session time-out: a member that comes back under a new name waits until the group has given up the old one."""
AGAIN_S = 1.0
"""At least so long between two starts."""
STARTING_S = 20.0
"""How long a program may take for its first answer."""
WAITING_MAX = 100
"""Records that a writer may have without an answer, before it gets further ones."""
REST_S = 15.0
"""How long writers and readers may take for what is left at the end."""


def place_of(client: Client) -> str:
    """The name of the client's topic, and of its group."""
    return f"card-{client.name}".lower().replace(",", "").replace(" ", "-")


def say(text: str) -> None:
    """A line, from any thread."""
    os.write(sys.stdout.fileno(), text.encode() + b"\n")


class Supervised:
    """A client's writer or reader, which is started again when it has ended or is stuck."""

    def __init__(self, client: Client, what: str, start: Callable[[], Program]) -> None:
        self.starts = 0
        self._client = client
        self._what = what
        self._start = start
        self._begin()

    def _begin(self) -> None:
        self.program = self._start()
        self.starts += 1
        self._seen = 0
        self._began_at = time.monotonic()
        self._active_at = self._began_at + STARTING_S - STUCK_S

    def new_lines(self) -> list[Line]:
        lines = self.program.lines[self._seen :]
        self._seen += len(lines)
        if lines:
            self._active_at = max(self._active_at, time.monotonic())
        return lines

    def is_started_again(self, has_work: bool) -> bool:
        """Starts it again if it must be. `has_work`: whether it should be doing something."""
        now = time.monotonic()
        if not has_work:
            self._active_at = max(self._active_at, now)
        has_ended = self.program.has_ended()
        if now - self._began_at < AGAIN_S or (not has_ended and now - self._active_at < STUCK_S):
            return False
        why = "it ended" if has_ended else f"it did nothing for {STUCK_S:g} s"
        last = self.program.last_error()
        say(json.dumps({"again": self._client.name, "what": self._what, "why": f"{why}: {last}" if last else why}))
        self.program.kill()
        self._begin()
        return True


class Work:
    """One client. `step` is called again and again, by one thread."""

    def __init__(self, client: Client, bootstrap_servers: str, logs: Path) -> None:
        self._client = client
        self._place = place_of(client)
        self._request = {"bootstrap": bootstrap_servers, "topic": self._place, "group": self._place}
        self._request["isolation"] = "read_uncommitted"
        self._logs = logs
        self._is_reporting = False
        self._sent = 0
        self._next_at = 0.0
        self._waiting: set[str] = set()
        self._read: set[str] = set()
        self._unread: set[str] = set()
        """Acknowledged, and not read."""
        self._writer = Supervised(client, "writer", lambda: self._started("write"))
        self._reader: Supervised | None = None
        if "rebalance" not in client.lacks:
            self._reader = Supervised(client, "reader", lambda: self._started("group"))

    def _started(self, verb: str) -> Program:
        log = self._logs / f"{self._place}-{verb}-{time.monotonic_ns()}.log"
        request = {**self._request, "idempotent": "idempotent" not in self._client.lacks}
        return Program(self._client, verb, request, log, until_stdin_closes=True)

    def step(self, is_writing: bool) -> None:
        for line in self._writer.new_lines():
            self._report_written(line)
        if self._writer.is_started_again(bool(self._waiting)):
            for value in self._waiting:  # nobody else will say that these are given up
                self._report(f"failed topic={self._place} producer={self._place}-{self._writer.starts - 1} id={value}")
            self._waiting.clear()
        now = time.monotonic()
        if is_writing and now >= self._next_at and len(self._waiting) < WAITING_MAX:
            self._next_at = now + PAUSE_S
            self._write(f"{self._place} {self._sent}")
            self._sent += 1
        if self._reader is not None:
            for line in self._reader.new_lines():
                self._report_read(line)
            self._reader.is_started_again(is_writing and self._has_unread())

    def _has_unread(self) -> bool:
        return self._reader is not None and bool(self._unread)

    def _report(self, text: str) -> None:
        if self._is_reporting:
            say(f"@ottla {text}")

    def _write(self, value: str) -> None:
        self._waiting.add(value)
        self._report(f"produced topic={self._place} producer={self._place}-{self._writer.starts} id={value}")
        self._writer.program.write_line(value)

    def _report_written(self, line: Line) -> None:
        topic = f"topic={self._place} producer={self._place}-{self._writer.starts}"
        if "acked" in line:
            value = line["acked"]
            self._waiting.discard(value)
            if value not in self._read:
                self._unread.add(value)
            self._report(f"acked {topic} partition={line['partition']} offset={line['offset']} id={value}")
        elif "failed" in line:
            self._waiting.discard(line["failed"])
            self._report(f"failed {topic} id={line['failed']}")

    def _report_read(self, line: Line) -> None:
        of = f"group={self._place} topic={self._place}"
        if "value" in line:
            self._read.add(line["value"])
            self._unread.discard(line["value"])
            self._report(f"consumed {of} partition={line['partition']} offset={line['offset']} id={line['value']}")
        for partition, offset in line.get("committed", {}).items():
            if offset >= 0:  # librdkafka also names partitions without a commit
                self._report(f"committed {of} partition={partition} offset={offset}")

    def warm_up(self, is_ending: threading.Event) -> None:
        """Returns when a record has been written and read."""
        while not is_ending.is_set() and (self._sent == 0 or self._waiting or self._has_unread()):
            self.step(is_writing=self._sent == 0)
            time.sleep(STEP_S)

    def run(self, is_ending: threading.Event, are_warm: threading.Barrier) -> None:
        self.warm_up(is_ending)
        are_warm.wait()
        self._is_reporting = True
        while not is_ending.is_set():
            self.step(is_writing=True)
            time.sleep(STEP_S)
        end = time.monotonic() + REST_S
        while time.monotonic() < end and (self._waiting or self._has_unread()):
            self.step(is_writing=False)
            time.sleep(STEP_S)
        for each in (self._writer, self._reader):
            if each is not None:
                each.program.kill()


def main(names: Sequence[str]) -> int:
    clients = [client for client in CLIENTS if client.name in names]
    is_ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_ending.set())
    with tempfile.TemporaryDirectory() as logs:
        servers = os.environ["BOOTSTRAP_SERVERS"]
        are_warm = threading.Barrier(len(clients))
        work = [Work(client, servers, Path(logs)) for client in clients]
        threads = [threading.Thread(target=each.run, args=(is_ending, are_warm)) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
