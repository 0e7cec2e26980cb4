"""A client's program as a process: its lines, its end, and what it wrote to stderr."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.clients.clients import REPOSITORY, Client

LIMIT_S = 90.0
"""Nothing that a test waits for takes so long, with all clients side by side."""
UNSUPPORTED = 3
SHOWN_LINES = 12

Line = dict[str, Any]


class Unsupported(Exception):
    """The client does not have the feature. The text is the reason."""


class Program:
    """A running program. With `until_stdin_closes`, it ends when `end` is called, otherwise by itself."""

    def __init__(
        self,
        client: Client,
        verb: str,
        request: dict[str, Any],
        log: Path,
        *,
        until_stdin_closes: bool,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`limit_s`: how long to wait for a line, or for its end."""
        self.name = f"{client.name} {verb}"
        self.lines: list[Line] = []
        self._log = log
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._has_closed_stdout = False
        self._times = [time.monotonic()]
        command = [*client.command(), verb, json.dumps(request)]
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if until_stdin_closes else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=REPOSITORY,
                start_new_session=True,  # so that `kill` also ends what a wrapper has started
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
                assert isinstance(line, dict)
            except (ValueError, AssertionError):
                line = {"not JSON": text.decode(errors="replace")}
            with self._changed:
                self.lines.append(line)
                self._times.append(time.monotonic())
                self._changed.notify_all()
        with self._changed:
            self._has_closed_stdout = True
            self._changed.notify_all()

    def values(self, key: str) -> list[Any]:
        """The values of `key` in the lines until now that have it."""
        with self._changed:
            return [line[key] for line in self.lines if key in line]

    def longest_wait_s(self) -> float:
        """For one of the lines until now, after the one before."""
        with self._changed:
            return max(later - earlier for earlier, later in itertools.pairwise(self._times))

    def connections_to(self, port: int) -> set[int]:
        """The local ports of the open connections to that port of this machine that the program, or what it has started, has now."""
        mine = psutil.Process(self._process.pid)
        return {
            connection.laddr.port
            for process in (mine, *mine.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_ESTABLISHED and connection.raddr.port == port
        }

    def wait_for(self, check: Callable[[], Any], what: str) -> Any:
        """Waits until `check` returns something true, and returns that. `check` is called after each line.

        Raises Unsupported, or AssertionError if the program ends before, or after self._limit_s.
        """

        def checked() -> bool:
            nonlocal found
            found = check()
            return bool(found) or self._has_closed_stdout

        found: Any = None
        with self._changed:
            self._changed.wait_for(checked, self._limit_s)
        if found:
            return found
        if self._has_closed_stdout:
            code = self._process.wait(self._limit_s)
            self._raise_if_unsupported(code)
            raise AssertionError(f"{self.name} ended with exit code {code} before {what}\n{self.shown()}")
        raise AssertionError(f"{self.name}: not in {self._limit_s:g} s: {what}\n{self.shown()}")

    def wait_for_count(self, key: str, count: int) -> list[Any]:
        """Waits for that many lines with `key`. -> their values"""
        self.wait_for(lambda: sum(key in line for line in self.lines) >= count, f"it printed {count} times {key!r}")
        return self.values(key)

    def result(self) -> list[Line]:
        """Waits until the program has ended by itself. -> all its lines

        Raises Unsupported, or AssertionError if its exit code is not 0.
        """
        try:
            code = self._process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {self._limit_s:g} s\n{self.shown()}") from None
        with self._changed:
            self._changed.wait_for(lambda: self._has_closed_stdout, self._limit_s)
        self._raise_if_unsupported(code)
        assert code == 0, f"{self.name} ended with exit code {code}\n{self.shown()}"
        return self.lines

    def write_line(self, text: str) -> None:
        """To its stdin. Without effect if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, request: dict[str, Any]) -> Line:
        """Writes a line of JSON to its stdin, and waits for the next line on stdout."""
        count = len(self.lines)
        self.write_line(json.dumps(request))
        self.wait_for(lambda: len(self.lines) > count, "it answered")
        return self.lines[count]

    def end(self) -> list[Line]:
        """Closes its stdin and waits. -> all its lines"""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.result()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def last_error(self) -> str:
        """The last line with an error that it wrote to stderr, or the last line; empty if it wrote none."""
        lines = self._log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")

    def kill(self) -> None:
        """Ends the program and what it started, by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def shown(self) -> str:
        """The last lines of stdout and stderr, for an error message."""
        with self._changed:
            lines = [json.dumps(line) for line in self.lines[-SHOWN_LINES:]]
        errors = self._log.read_text(errors="replace").splitlines()[-2 * SHOWN_LINES :]
        return "\n".join(["  stdout ends:", *lines, "  stderr ends:", *errors])

    def _raise_if_unsupported(self, code: int) -> None:
        reasons = self.values("unsupported")
        if code == UNSUPPORTED and reasons:
            raise Unsupported(reasons[0])
