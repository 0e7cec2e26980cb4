"""Progress from the tasks, wherever they run, to the process that draws the bar: small datagrams with running totals.

They are totals, not increments, so a lost or duplicate datagram only makes the bar less smooth.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, astuple, dataclass
from typing import Self

INTERVAL_S = 0.1
RECEIVE_BUFFER_BYTES = 65536


@dataclass(slots=True)
class TaskProgress:
    """One task's running totals. `started` is the common start (seconds since 1970 UTC), 0 before it is known."""

    task: int
    started: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0


class ProgressSender:
    """The tasks' side. `send` is cheap enough for every loop turn: it sends at most every tenth of a second."""

    def __init__(self, address: str | None, progress: TaskProgress) -> None:
        self.progress = progress
        self._socket: socket.socket | None = None
        self._next_at = 0.0
        if address is not None:
            host, _, port = address.rpartition(":")
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._target = (host, int(port))

    def send(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._socket is None or (now < self._next_at and not at_once):
            return
        self._next_at = now + INTERVAL_S
        try:
            self._socket.sendto(json.dumps(asdict(self.progress)).encode(), self._target)
        except OSError:
            # Nobody listens any more, or the buffer is full: the next totals include these.
            return


class ProgressListener:
    """The drawing side: the newest totals of every task."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self._by_task: dict[int, TaskProgress] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def receive(self, timeout_s: float) -> TaskProgress:
        """Waits up to `timeout_s` for datagrams, handles all that have arrived, and returns the totals over all tasks."""
        self._socket.settimeout(timeout_s)
        try:
            self._take(self._socket.recv(RECEIVE_BUFFER_BYTES))
            self._socket.setblocking(False)
            while True:
                self._take(self._socket.recv(RECEIVE_BUFFER_BYTES))
        except (BlockingIOError, TimeoutError):
            return self.totals()

    def totals(self) -> TaskProgress:
        tasks = self._by_task.values()
        return TaskProgress(
            task=-1,
            started=max((task.started for task in tasks), default=0.0),
            sent=sum(task.sent for task in tasks),
            acknowledged=sum(task.acknowledged for task in tasks),
            failed=sum(task.failed for task in tasks),
            read=sum(task.read for task in tasks),
        )

    def _take(self, datagram: bytes) -> None:
        try:
            progress = TaskProgress(**json.loads(datagram))
        except (ValueError, TypeError, RecursionError):
            return  # not one of ours
        if not all(isinstance(number, int | float) for number in astuple(progress)):
            return
        self._by_task[progress.task] = progress
