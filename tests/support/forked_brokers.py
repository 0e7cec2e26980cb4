"""Brokers of tests, without importing everything again: a process that has imported a broker forks one for each start.

A broker needs most of a second of a processor for its imports, and tests start hundreds. Apart from that, a fork is as what
`python -m broker` starts: its own session, environment, directory and output, its own command line in /proc, and it dies with its
owner. A broker whose environment changes Python or its libraries (LD_PRELOAD, another PYTHONPATH) is started as usual.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from struct import Struct
from typing import Any

from broker import compiled
from tests.support import fork_server
from tools.cluster.ownership import OWNER_IS_GONE, PR_SET_PDEATHSIG, Popen
from tools.cluster.process_handle import ProcessHandle

BROKER = [sys.executable, "-m", "broker"]
"""How the command of a broker begins."""
OF_PYTHON = ("LD_", "PYTHON", compiled.SWITCH)
"""How the names of the variables begin that decide what a process is before it is a broker."""
PADDING = 4096
"""Bytes. A fork writes its command line over that of the process that forks, which therefore must not be shorter."""
PID = Struct("=i")
ARG_START, ARG_END = 47, 48
"""The fields of /proc/self/stat, from 0, with the addresses of the command line: proc(5) counts from 1."""
POLL_S = 0.01


class ForkedBroker(subprocess.Popen[bytes]):
    """A process that is no child of this one, so its exit code is unknown."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = ProcessHandle(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if self._handle.is_over() else None

    def send_signal(self, sig: int) -> None:
        self._handle.send(signal.Signals(sig))

    def wait(self, timeout: float | None = None) -> int:
        """`timeout` is not kept: only a broker that was killed is waited for."""
        while self.poll() is None:
            time.sleep(POLL_S)
        return 0


def popen(command: Sequence[str], **options: Any) -> Popen:
    """As `subprocess.Popen`, for a server process of a cluster."""
    environment: dict[str, str] = options.get("env", {})
    if list(command[: len(BROKER)]) != BROKER or _of_python(environment) != USUAL:
        return subprocess.Popen(command, **options)
    request = {
        "command": command,
        "environment": environment,
        "directory": str(options["cwd"]),
        "umask": options["umask"],
    }
    server = _server(os.getpid(), options["preexec_fn"])
    fork_server.send(server, request, [options["stdout"].fileno()])
    (pid,) = PID.unpack(server.recv(PID.size))
    return ForkedBroker(pid)


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(OF_PYTHON)}


def _usual_environment() -> dict[str, str]:
    """What a cluster gives to a broker if a test changes nothing."""
    given = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(fork_server.REPOSITORY), given]))}


USUAL = _of_python(_usual_environment())
"""Before any test has changed its own environment."""


@cache
def _server(owner: int, before_exec: Callable[[], None]) -> socket.socket:
    """The connection of this process to the one that forks, which ends with it. A fork of this process gets one of its own."""
    module = "tests.support.forked_brokers"
    return fork_server.start(module, " " * PADDING, env=_usual_environment(), preexec_fn=before_exec)


def serve(number: int) -> Callable[[], None]:
    """Forks for each request. Returns in the process of a broker, which calls what was returned; else ends this process."""
    form = compiled.use()
    from broker.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a broker ended
    owner = os.getpid()
    request, (log,), requests = fork_server.fork_for_each(number, 1)
    _become(request, log, owner)
    with requests:
        requests.send(PID.pack(os.getpid()))  # now that others recognise it
    return partial(main, form=form)


def _become(request: Mapping[str, Any], log: int, owner: int) -> None:
    """Takes on what `subprocess` gives to a new process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:
        os._exit(OWNER_IS_GONE)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.umask(request["umask"])
    fork_server.take_on(request["environment"], request["directory"], request["command"][len(BROKER) :])
    _show(request["command"])


def _show(command: Sequence[str]) -> None:
    """Makes this the command line of this process in /proc, by which others recognise it."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = (int(stat[field - 2]) for field in (ARG_START, ARG_END))
    words = b"".join(word.encode() + b"\0" for word in command)
    assert len(words) <= end - start, "PADDING is too small"
    memory = os.open("/proc/self/mem", os.O_WRONLY)
    os.pwrite(memory, words.ljust(end - start, b"\0"), start)
    os.close(memory)
