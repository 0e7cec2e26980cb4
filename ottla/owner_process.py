"""The owner: a process that has the cluster of a test run, and does what it is asked over a socket (`tools/testing/owner.py`).

The cluster is not run from the test's own process, because its packages have names such as `tools`, which a project under test may use
as well, and because the owner outlives a crash of the test's process by the moment that it needs to clean up.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

OWNER = "tools.testing.owner"
SOURCE_ROOT = Path(__file__).resolve().parents[1]
REQUEST_TIMEOUT_S = 300.0
"""Above every time limit of the owner's own."""
END_TIMEOUT_S = 30.0
NOT_FOR_SERVERS = ("KAFKA_", "COV_", "COVERAGE_", "PYTEST_", "PYTHON")
"""Variables of the test's program. Brokers would take the first for settings, and measure their own coverage by the next two."""
FOR_SERVERS = ("PYTHONHOME", "PYTHONPATH")


class OttlaError(Exception):
    """The cluster cannot do what it was asked, or has ended; the message says why and what to do."""


class OwnerProcess:
    """A running owner. Several threads may ask; one request is done at a time."""

    def __init__(self) -> None:
        """Starts it. Raises OttlaError."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._received = bytearray()
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="ottla-owner-")  # noqa: SIM115 - closed by `end`
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(REQUEST_TIMEOUT_S)
        try:
            with theirs:
                # A session of its own: a Ctrl-C in the terminal is for the test run, which then stops the owner.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", OWNER, str(theirs.fileno()), str(self._pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    env=_environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as problem:
            self._socket.close()
            raise OttlaError(f"the process that starts the cluster cannot be started: {problem}") from None

    def ask(self, request: str, **arguments: Any) -> Any:
        """The answer. Raises OttlaError."""
        if os.getpid() != self._pid:
            raise OttlaError(f"this cluster belongs to process {self._pid}; process {os.getpid()} is a fork of it")
        with self._lock:
            self._number += 1
            try:
                self._socket.sendall(json.dumps([self._number, request, arguments]).encode() + b"\n")
                while True:
                    number, answer, error = json.loads(self._line())
                    if number == self._number:  # else it answers a request that was interrupted
                        break
            except TimeoutError:
                raise OttlaError(f"no answer to {request!r} within {REQUEST_TIMEOUT_S:g} s") from None
            except OSError:
                raise OttlaError(f"the cluster has ended: {self._last_words() or 'its owner was killed'}") from None
        if error is not None:
            raise OttlaError(error)
        return answer

    def end(self) -> None:
        """Ends the cluster and its owner. Does nothing in a fork of the process that started it. Never raises but for an interrupt."""
        if os.getpid() != self._pid:
            return
        try:
            # The end of the connection ends the owner, also in the middle of a request's work.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
        finally:
            self._process.kill()  # its servers die with it
            self._process.wait()
            self._socket.close()
            self._log.close()

    def _line(self) -> bytes:
        """Keeps what it has received if it is interrupted. Raises OSError."""
        while (end := self._received.find(b"\n")) < 0:
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionResetError
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _environment() -> dict[str, str]:
    variables = {
        key: value for key, value in os.environ.items() if key in FOR_SERVERS or not key.startswith(NOT_FOR_SERVERS)
    }
    paths = [str(SOURCE_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
