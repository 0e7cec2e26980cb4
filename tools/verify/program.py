"""The user's program: started with its environment, read line by line, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.cluster.ownership import start
from tools.cluster.processes import ClusterError
from tools.judge.reports import MARK, BrokenReport, Report, parse

REPORT_VARIABLE = "OTTLA_REPORT"
BOOTSTRAP_VARIABLE = "BOOTSTRAP_SERVERS"
SECURITY_VARIABLE = "OTTLA_SECURITY"
"""The directory `security` of a secured cluster (docs/SECURITY.md)."""
FILE_POLL_S = 0.01
LINE_BYTES_MAX = 1_000_000
LAST_LINES_TIMEOUT_S = 5.0


@dataclass
class Reports:
    """What a program has reported. `broken`: lines that are meant as reports and are none, each with its place and the reason."""

    now: Callable[[], float]
    passes: Callable[[bytes], None]
    """Gets every line of the standard output that is no report."""
    reports: list[Report] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, line: bytes, file: str = "") -> None:
        """`file`: the name of the file if it is not the standard output."""
        with self._lock:
            number = self._lines[file] = self._lines.get(file, 0) + 1
            name = f"{file}:{number}" if file else str(number)
            if not line.endswith(b"\n") and MARK.encode() in line:
                self.broken.append(
                    f"line {name}: it has no end, as if the program had ended while it wrote it: not counted"
                )
                return
            try:
                report = parse(line.decode(errors="backslashreplace"), name, len(self.reports), self.now())
            except BrokenReport as problem:
                self.broken.append(f"line {name}: {problem}: {shown(line)}")
                return
            if report is not None:
                self.reports.append(report)
            elif not file:
                self.passes(line)
            elif line.strip():
                self.broken.append(f"line {name}: every line of the file starts with `{MARK.strip()}`: {shown(line)}")


def shown(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").strip()
    return text if len(text) <= 120 else f"{text[:120]}..."


class Program:
    """A running program. It has a session of its own, so that a Ctrl-C in the terminal is not for it."""

    def __init__(
        self,
        command: Sequence[str],
        bootstrap_servers: str,
        report_file: Path,
        reports: Reports,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it. Raises ClusterError if it cannot be started."""
        self.command = tuple(command)
        self.reports = reports
        self.was_killed = False
        report_file.touch()
        variables = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",  # else Python keeps the lines of a pipe back
            **(environment or {}),
            BOOTSTRAP_VARIABLE: bootstrap_servers,
            REPORT_VARIABLE: str(report_file),
        }
        try:
            self._process = start(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=variables,
                start_new_session=True,
            )
        except OSError as problem:
            raise ClusterError(f"{self.command[0]} cannot be started: {problem.strerror or problem}") from None
        except ValueError as problem:
            raise ClusterError(f"the command cannot be started: {problem}") from None
        self._has_ended = threading.Event()
        assert self._process.stdout is not None
        self._readers = [
            threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_file, args=(report_file,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def exit_code(self) -> int | None:
        """None while it runs; -9 after SIGKILL."""
        return self._process.poll()

    def stop(self, grace_s: float) -> None:
        """Sends SIGTERM, and SIGKILL after `grace_s` seconds. Returns when it and its children have ended and all lines are read."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.exit_code() is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        self.close()

    def close(self) -> None:
        """Kills what still runs of it, and reads the last lines."""
        self.was_killed = self.exit_code() is None
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._has_ended.set()
        for reader in self._readers:
            reader.join(LAST_LINES_TIMEOUT_S)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read_output(self, output: IO[bytes]) -> None:
        while line := output.readline(LINE_BYTES_MAX):
            self.reports.add(line)

    def _read_file(self, path: Path) -> None:
        with path.open("rb") as file:
            rest = b""
            while True:
                is_last = self._has_ended.is_set()
                while line := file.readline(LINE_BYTES_MAX):
                    rest += line
                    if rest.endswith(b"\n"):
                        self.reports.add(rest, REPORT_VARIABLE)
                        rest = b""
                if is_last:
                    break
                self._has_ended.wait(FILE_POLL_S)
            if rest:
                self.reports.add(rest, REPORT_VARIABLE)
