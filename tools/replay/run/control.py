"""Each task has one connection to the driver: for the common clock, its progress, its results, and the order to stop.

Messages are lines of JSON. A task sends `{"ask": n}` and gets `{"ask": n, "now": ns}`: the driver's time in nanoseconds since 1970 UTC.
It sends `{"task": t, "progress": {...}}` every INTERVAL_S, and at its end with `"ended": true`. The driver sends `{"stop": true}` once,
if the tasks must send nothing more.

A result is `{"task": t, "kind": k, "bytes": n}` and n bytes. The driver writes it to a file, whose name it makes itself, and answers
`{"kept": ""}`, or why it could not write. A task has ended when all its results are kept.

If a connection closes before its task has ended, the task is lost. Spark then ends all tasks. The driver therefore stops the others,
which have KILL_TIMEOUT_S to send their rows. `{"wait": true}` is answered when they are gone, or after this time.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from tools.replay.load.results import KINDS, ResultFiles
from tools.replay.load.task import LoadError, Progress

PINGS = 20
"""Questions for the time. The answer with the shortest round trip gives the clock's offset."""
INTERVAL_S = 0.2
TIMEOUT_S = 10.0
"""For the connection, and for an answer about the time."""
KILL_TIMEOUT_S = 15
LINE_BYTES_MAX = 64 * 1024
RESULT_BYTES_MAX = 64 * 1024 * 1024
"""Limit of one result. Some 20,000 operations have a megabyte."""
TASKS_MAX = 4096
ENDED = "it has ended"
POLL_S = 0.05
NAMES = {each.name for each in fields(Progress)}


class Clock:
    """Nanoseconds since 1970 UTC that never jump: the wall clock is read once."""

    def __init__(self) -> None:
        self._base = time.time_ns() - time.perf_counter_ns()

    def now_ns(self) -> int:
        return self._base + time.perf_counter_ns()

    def shifted(self, by_ns: int) -> Clock:
        """The clock that is `by_ns` ahead of this one."""
        clock = Clock()
        clock._base = self._base + by_ns
        return clock


class ControlServer:
    """Listens for the tasks; keeps the newest totals of each, and their results as files of the directory."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", advertised_host: str | None = None) -> None:
        self.clock = Clock()
        self.results = ResultFiles(directory)
        self.progress: dict[int, Progress] = {}
        self.is_stopping = False
        self.lost: dict[int, int] = {}
        """Task -> when its connection closed before its end, in ns since 1970."""
        self._tasks: set[_Handler] = set()
        self._lock = threading.Lock()
        self._server = _Server((host, 0), partial(_Handler, self))
        self.address = f"{advertised_host or host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="control", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def is_watched(self) -> bool:
        """Whether a task is connected."""
        return bool(self._tasks)

    def stop(self) -> None:
        """Orders all tasks to send nothing more, also those that connect later."""
        with self._lock:
            self.is_stopping = True
            for task in self._tasks:
                task.tell({"stop": True})

    def totals(self) -> Progress:
        """Over all tasks; `late_ns` is the largest, `started_ns` the common start or 0."""
        known = list(self.progress.values())
        total = Progress(late_ns=max((each.late_ns for each in known), default=0))
        for each in known:
            for name in ("sent", "acknowledged", "failed", "received", "unanswered", "bytes"):
                setattr(total, name, getattr(total, name) + getattr(each, name))
            total.started_ns = max(total.started_ns, each.started_ns)
        return total

    def joined(self, task: _Handler) -> None:
        with self._lock:
            self._tasks.add(task)
            if self.is_stopping:
                task.tell({"stop": True})

    def left(self, task: _Handler) -> None:
        with self._lock:
            self._tasks.discard(task)
        if task.number is not None and not task.has_ended:
            self.lost[task.number] = self.clock.now_ns()
            self.stop()

    def wait_for_tasks(self) -> None:
        """Returns when no task is connected any more, or after KILL_TIMEOUT_S."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while any(task.number is not None for task in list(self._tasks)) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def understood(line: bytes) -> dict[str, Any]:
    """The message in a line that a task sends, or who waits for the tasks. Raises ValueError for anything else."""
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("a nested message") from None
    match message:
        case {"ask": int()} | {"wait": True}:
            return dict(message)
        case {"task": int(task), "kind": str(kind), "bytes": int(size)}:
            is_known = kind in KINDS and 0 < size <= RESULT_BYTES_MAX
        case {"task": int(task), "progress": dict(totals)}:
            is_known = totals.keys() == NAMES and all(type(value) is int for value in totals.values())
        case _:
            task, is_known = 0, False
    if not is_known or not 0 <= task < TASKS_MAX:
        raise ValueError("no message of a task")
    return dict(message)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Handler(socketserver.StreamRequestHandler):
    number: int | None = None
    has_ended = False

    def __init__(self, control: ControlServer, *of_server: Any) -> None:
        self._control = control
        super().__init__(*of_server)  # handles the connection

    def handle(self) -> None:
        control = self._control
        control.joined(self)
        try:
            while line := self.rfile.readline(LINE_BYTES_MAX):
                said = understood(line)
                if "ask" in said:
                    self.tell({"ask": said["ask"], "now": control.clock.now_ns()})
                elif "wait" in said:
                    control.wait_for_tasks()
                    self.tell({"wait": False})
                elif "kind" in said:
                    self.number = said["task"]
                    self.tell({"kept": self.keep(said)})
                else:
                    self.number = said["task"]
                    self.has_ended |= said.get("ended") is True
                    control.progress[said["task"]] = Progress(**said["progress"])
        except (OSError, ValueError):
            return  # the task is lost, or the peer is no task
        finally:
            control.left(self)

    def keep(self, result: dict[str, Any]) -> str:
        """Returns why the result could not be written. Raises OSError if it ends too early."""
        content = self.rfile.read(result["bytes"])
        if len(content) < result["bytes"]:
            raise ConnectionResetError("the task closed the connection")
        try:
            self._control.results.write(result["kind"], result["task"], content)
        except OSError as problem:
            return str(problem) or repr(problem)  # an empty answer says that it is kept
        return ""

    def tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(message).encode() + b"\n")


class ControlClient:
    """A task's connection. `clock` differs from the driver's clock by at most `uncertainty_ns`."""

    def __init__(self, address: str, task: int, local: Clock | None = None) -> None:
        """Measures the clock's offset. Raises OSError if the driver does not answer. `local`: this machine's clock, if it was read."""
        host, _, port = address.rpartition(":")
        self._address, self._task = address, task
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._stopped = False
        self._local = local or Clock()
        self.offset_ns, self.uncertainty_ns = self._measure(self._local)
        self.clock = self._local.shifted(self.offset_ns)
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._kept: queue.SimpleQueue[str] = queue.SimpleQueue()
        """The driver's answers to results."""

    def keep(self, kind: str, content: bytes) -> None:
        """Returns when the driver has written the result. Only one thread may call it, after `watch`. Raises LoadError."""
        with contextlib.suppress(OSError):  # the thread that listens then says so
            self._send({"task": self._task, "kind": kind, "bytes": len(content)}, content)
        if problem := self._kept.get():
            if problem == ENDED:
                self._kept.put(problem)  # the next result gets no answer, either
            raise LoadError(f"the driver does not keep the results: {problem}")

    def watch(self, progress: Callable[[], Progress], stop: Callable[[], None]) -> None:
        """From now on sends the progress, and calls `stop` when the driver orders it or has ended."""
        self._socket.settimeout(None)
        threading.Thread(target=self._report, args=(progress,), name="progress", daemon=True).start()
        threading.Thread(target=self._listen, args=(stop,), name="orders", daemon=True).start()

    def drift_ns(self) -> tuple[int, int] | None:
        """How far the driver's clock has moved from `clock` since the start, and by how much that may be wrong; None: not known."""
        try:
            again = ControlClient(self._address, self._task, self._local)
        except OSError:
            return None
        again.close(None)
        return again.offset_ns - self.offset_ns, again.uncertainty_ns + self.uncertainty_ns

    def close(self, progress: Progress | None) -> None:
        """Sends the last totals; None: the task has failed."""
        self._ended.set()
        if progress is not None:
            with contextlib.suppress(OSError):
                self._send_progress(progress, ended=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _measure(self, local: Clock) -> tuple[int, int]:
        """(how far the driver's clock is ahead, half of the shortest round trip), as NTP does it."""
        best = (1 << 62, 0)
        for number in range(PINGS):
            begun = local.now_ns()
            self._socket.sendall(json.dumps({"ask": number}).encode() + b"\n")
            while "now" not in (message := self._received()):
                self._stopped |= "stop" in message
            ended = local.now_ns()
            best = min(best, (ended - begun, int(message["now"]) - (begun + ended) // 2))
        return best[1], best[0] // 2

    def _received(self) -> dict[str, Any]:
        """The driver's next message. Raises OSError, also if the driver has closed the connection."""
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the replay's driver closed the connection")
        message: dict[str, Any] = json.loads(line)
        return message

    def _report(self, progress: Callable[[], Progress]) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.wait(INTERVAL_S):
                self._send_progress(progress())

    def _send_progress(self, progress: Progress, *, ended: bool = False) -> None:
        self._send({"task": self._task, "progress": asdict(progress), "ended": ended})

    def _send(self, message: dict[str, Any], content: bytes = b"") -> None:
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n" + content)

    def _listen(self, stop: Callable[[], None]) -> None:
        if self._stopped:
            stop()
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if message.get("stop"):
                    stop()
                if "kept" in message:
                    self._kept.put(message["kept"])
        self._kept.put(ENDED)
        if not self._ended.is_set():
            stop()  # the driver has ended


def wait_for_tasks(address: str) -> None:
    """Returns when the tasks have left the control server, so that it has all their results, or after about KILL_TIMEOUT_S."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.settimeout(KILL_TIMEOUT_S + TIMEOUT_S)
        connection.sendall(b'{"wait": true}\n')
        connection.recv(1)
