"""Server processes of a run directory: started detached, found again by later commands, signalled, stopped.

The process that starts them may own them (`ownership.py`); then they end with it.

A process is recognised by its configuration file, which is in its command line. The pid file is tried first. A pid that now
belongs to another program is ignored, and a server that was started by hand is found as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.numbers import is_plain_number
from tools.cluster import ownership
from tools.cluster.forks import CannotFork, Forks
from tools.cluster.log_parts import LogReader, parts_of
from tools.cluster.process_handle import ProcessHandle
from tools.failures import ExpectedError
from tools.private_files import open_log, server_umask, write_anew

POLL_S = 0.02
KILL_TIMEOUT_S = 10.0
KILL_AGAIN_S = 1.0
PROC = Path("/proc")
PID_MAX = 2**22
PAUSE_TIMEOUT_S = 5.0
"""A process is paused in its next turn on a processor, or after a read from a disk that does not answer."""
PAUSE_POLL_S = 0.001
PAUSED = ("T", "t")
COMPLAINT = re.compile(r"(?P<time>\S+Z) (?:(?:WARNING|ERROR) |.*cannot (?:connect|log in)).*")
"""A line of a broker's log that says what fails."""
TAIL_BYTES = 65_536
SAYS_NOTHING = re.compile(r"\s*|\s+at .*|\s+\.\.\. \d+ more|.* exiting abnormally.*|.* Exiting JVM with code.*")
"""Empty lines, and what ZooKeeper's log has behind the reason why it ends."""
OVER = ("Z", "X", "?")
"""States of a process that has ended: as in ps, and `?` if it is gone."""


class ClusterError(ExpectedError):
    """A cluster command failed; the message says why and what to do."""


@dataclass
class ServerProcess:
    """One server of a run directory, running or not.

    `marker` is an argument in every command line of such a server, beside the path of `config_file`.
    """

    name: str
    directory: Path
    config_file: Path
    marker: str

    def __post_init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._seen: ProcessHandle | None = None
        self._since_start = LogReader(self.log_file)

    @property
    def pid_file(self) -> Path:
        return self.directory / "pid"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts it in its own session, so that a Ctrl-C here does not reach it; appends its output to `server.log`."""
        self._since_start.skip()
        with open(self.open_log(), "ab") as log:
            self._child = ownership.start(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=dict(environment),
                start_new_session=True,
                umask=server_umask(),
            )
        self._note(self._child.pid)
        return self._child.pid

    def open_log(self) -> int:
        """A descriptor of `server.log`, which is created if it does not exist. Raises ClusterError."""
        try:
            return open_log(self.log_file)
        except OSError as error:
            raise ClusterError(
                f"{self.name} cannot write its log {self.log_file} ({error.strerror}): move it away, or mend its permissions"
            ) from None

    def fork(self, forks: Forks, environment: Mapping[str, str]) -> None:
        """Starts a broker as a fork. Raises ClusterError."""
        self._since_start.skip()
        os.close(self.open_log())
        try:
            self._note(forks.fork(self.directory, environment))
        except CannotFork as problem:
            raise ClusterError(f"{self.name} did not start: {problem}") from None

    def _note(self, pid: int) -> None:
        write_anew(self.pid_file, f"{pid}\n")

    def pid(self) -> int | None:
        """The pid of the running or paused process, else None."""
        handle = self._find()
        return None if handle is None else handle.pid

    def _find(self) -> ProcessHandle | None:
        """A handle on the process. The check comes after the handle, because the pid may belong to another program a moment later."""
        # `poll` alone is not enough: if a signal handler raised inside an earlier `poll`, its lock stays taken, and `poll` returns None.
        if self._child is not None and (self._child.poll() is not None or _state(self._child.pid) in OVER):
            self._child = None
        # An ending process loses its command line first and closes its sockets a moment later: until then, it is still there.
        if self._seen is not None and self._seen.is_over() is False:
            return self._seen
        for pid in self._candidates():
            with contextlib.suppress(ProcessLookupError):
                handle = ProcessHandle(pid)
                if (self._child is not None and pid == self._child.pid) or self._is_this(pid):
                    self._seen = handle
                    return handle
        return None

    def _candidates(self) -> Iterator[int]:
        if self._child is not None:
            yield self._child.pid
        with contextlib.suppress(OSError, ValueError):
            written = self.pid_file.read_text().strip()
            if is_plain_number(written) and 0 < int(written) <= PID_MAX:
                yield int(written)
        yield from _all_pids()

    def is_paused(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        pid = self.pid()
        return pid is not None and _state(pid) in PAUSED

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; returns False if it is not running. SIGSTOP: returns when it is paused, so that an undo finds it so."""
        handle = self._find()
        if handle is None or not handle.send(number):
            return False
        deadline = time.monotonic() + PAUSE_TIMEOUT_S
        while number == signal.SIGSTOP and _state(handle.pid) not in (*PAUSED, *OVER) and time.monotonic() < deadline:
            time.sleep(PAUSE_POLL_S)
        return True

    def wait_gone(self, timeout_s: float) -> bool:
        """Waits until it has ended. Returns False if it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None or (self._seen is not None and not _is_over(self._seen)):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        self._seen = None
        with contextlib.suppress(OSError):
            self.pid_file.unlink()
        return True

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end. It also ends a paused process. Raises ClusterError.

        A process that has just been started may be found only later, when it has its command line. Then the signal is sent again.
        """
        deadline = time.monotonic() + KILL_TIMEOUT_S
        self.send(signal.SIGKILL)
        while not self.wait_gone(KILL_AGAIN_S):
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} (pid {self.pid()}) did not end within {KILL_TIMEOUT_S:g} s of SIGKILL")
            self.send(signal.SIGKILL)

    def last_words(self) -> str:
        """The last line of its log that says something."""
        for part in reversed(parts_of(self.log_file)):
            try:
                with part.open("rb") as log:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
                    lines = log.read().decode(errors="replace").splitlines()
            except OSError:
                continue
            said = next((line.strip() for line in reversed(lines) if not SAYS_NOTHING.fullmatch(line)), "")
            if said:
                return said
        return ""

    def last_complaint(self, since: str) -> str:
        """The last line of its log that says what fails, since a time as logs write it; "" if there is none."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        for line in reversed(lines):
            found = COMPLAINT.fullmatch(line)
            if found is not None and found["time"] >= since:
                return line
        return ""

    def words_since_start(self) -> list[str]:
        """The lines of its log since the last call, or since `start`; all lines if it was not started here."""
        return [line.decode(errors="replace").rstrip("\n") for line in self._since_start.new_lines()]

    def _is_this(self, pid: int) -> bool:
        arguments = _arguments(pid)
        return self.marker in arguments and any(
            argument.endswith(self.config_file.name) and _resolved(pid, argument) == self.config_file.resolve()
            for argument in arguments
        )


def stop_all(processes: Sequence[ServerProcess], timeout_s: float) -> list[ServerProcess]:
    """Sends SIGTERM to all, then SIGKILL to those that still run after `timeout_s`. Returns those that were killed."""
    for process in processes:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)
    deadline = time.monotonic() + timeout_s
    late = [process for process in processes if not process.wait_gone(max(0.0, deadline - time.monotonic()))]
    for process in late:
        process.kill()
    return late


def _is_over(handle: ProcessHandle) -> bool:
    is_over = handle.is_over()
    return _state(handle.pid) in OVER if is_over is None else is_over


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if is_plain_number(name)]
    except OSError:
        return []


def _arguments(pid: int) -> list[str]:
    """The command line; empty for a process that has ended or is not ours to see."""
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
    """One letter, as in ps; `?` if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return "?"
