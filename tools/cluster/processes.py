"""Server processes of a run directory: started detached, found again by later commands, signalled, stopped.

Who starts them may own them (`ownership.py`): then they end with it.

A process is known by its configuration file, which its command line names. The pid file is where to look first; a pid
that now belongs to another program is not believed, and a server that somebody started by hand is found as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.cluster import ownership

POLL_S = 0.02
KILL_TIMEOUT_S = 10.0
PROC = Path("/proc")
OVER = ("Z", "X", "?")
"""Process states, as ps shows them, in which nothing is left but an exit code to fetch."""


@dataclass
class ServerProcess:
    """One server of a run directory, running or not.

    `marker` is an argument that every command line of such a server has, beside the path of `config_file`.
    """

    name: str
    directory: Path
    config_file: Path
    marker: str

    def __post_init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._last_pid: int | None = None
        self._log_start = 0

    @property
    def pid_file(self) -> Path:
        return self.directory / "pid"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts it in a session of its own, so that a Ctrl-C here does not reach it; output is added to `server.log`."""
        with self.log_file.open("ab") as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._child = ownership.start(
                lambda before_exec: subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    env=dict(environment),
                    start_new_session=True,
                    preexec_fn=before_exec,
                )
            )
        self.pid_file.write_text(f"{self._child.pid}\n")
        return self._child.pid

    def pid(self) -> int | None:
        """The pid if it runs (a paused one runs), else None."""
        pid = self._find()
        if pid is not None:
            self._last_pid = pid
        return pid

    def _find(self) -> int | None:
        if self._child is not None:
            if self._child.poll() is None:
                return self._child.pid
            self._child = None
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.pid_file.read_text())
            if self._is_this(pid):
                return pid
        return next((pid for pid in _all_pids() if self._is_this(pid)), None)

    def is_paused(self) -> bool:
        """True while stopped by SIGSTOP."""
        pid = self.pid()
        return pid is not None and _state(pid) in ("T", "t")

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; False when it does not run."""
        pid = self.pid()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout_s: float) -> bool:
        """Waits for its end. False when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        # A process that ends loses its command line first and closes its sockets a moment later.
        while self.pid() is not None or (self._last_pid is not None and _state(self._last_pid) not in OVER):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        self._last_pid = None
        with contextlib.suppress(FileNotFoundError):
            self.pid_file.unlink()
        return True

    def kill(self) -> None:
        """SIGKILL, and waits for the end. A paused process dies of it too."""
        self.send(signal.SIGKILL)
        if not self.wait_gone(KILL_TIMEOUT_S):
            raise TimeoutError(f"{self.name} (pid {self.pid()}) does not die of SIGKILL")

    def last_words(self) -> str:
        """The last line of its log that is not empty."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def words_since_start(self) -> list[str]:
        """The lines of its log since `start` was called here; all lines when it was not."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def _is_this(self, pid: int) -> bool:
        arguments = _arguments(pid)
        return self.marker in arguments and any(
            argument.endswith(self.config_file.name) and _resolved(pid, argument) == self.config_file.resolve()
            for argument in arguments
        )


def stop_all(processes: Sequence[ServerProcess], timeout_s: float) -> list[ServerProcess]:
    """SIGTERM to all at once, SIGKILL to those that still run after `timeout_s`. Returns those that had to be killed."""
    for process in processes:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)
    deadline = time.monotonic() + timeout_s
    late = [process for process in processes if not process.wait_gone(max(0.0, deadline - time.monotonic()))]
    for process in late:
        process.kill()
    return late


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if is_plain_number(name)]
    except OSError:
        return []


def _arguments(pid: int) -> list[str]:
    """The command line; empty for a process that is gone, has ended but was not waited for, or is not ours to see."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _resolved(pid: int, argument: str) -> Path | None:
    try:
        return Path(os.readlink(PROC / str(pid) / "cwd"), argument).resolve()
    except OSError:
        return None


def _state(pid: int) -> str:
    """One letter, as ps shows it; `?` when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
