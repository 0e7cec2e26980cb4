"""`ottla ...` as a process of its own, without importing everything again: a process that has done so forks one for each command.

A command needs half a second of a processor to import its modules, and tests call hundreds. What it reads, writes and leaves behind
belongs to its own process, as with `subprocess.run`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from struct import Struct

REPOSITORY = Path(__file__).resolve().parent.parent.parent
REQUEST_MAX = 1024**2
IMPORTED = ("tools.admin.kafka_admin", "tools.groups.kafka_groups")
"""What commands import once they run."""
NUMBER = Struct("=i")
"""The process id and the exit code of a command."""


def run(arguments: Sequence[str], stdin: str | None, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """`ottla` with these arguments, in the environment and the directory of this process."""
    request = json.dumps({"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}).encode()
    assert len(request) < REQUEST_MAX
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write((stdin or "").encode())
        given.seek(0)
        result, result_of_command = os.pipe()
        try:
            descriptors = [given.fileno(), out.fileno(), errors.fileno(), result_of_command]
            try:
                socket.send_fds(_server(), [request], descriptors)
            finally:
                os.close(result_of_command)
            exit_code = _exit_code(result, arguments, timeout_s)
        finally:
            os.close(result)
        out.seek(0)
        errors.seek(0)
        said = [one.read().decode().replace("\r\n", "\n") for one in (out, errors)]
    return subprocess.CompletedProcess(list(arguments), exit_code, *said)


def _exit_code(result: int, arguments: Sequence[str], timeout_s: float) -> int:
    """Waits for the command, and kills it if it takes too long or this process is interrupted, as `subprocess.run` does."""
    poll = select.poll()
    poll.register(result, select.POLLIN)
    (pid,) = NUMBER.unpack(os.read(result, NUMBER.size))
    try:
        if not poll.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired(list(arguments), timeout_s)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    (exit_code,) = NUMBER.unpack(os.read(result, NUMBER.size))
    return int(exit_code)


@cache
def _server() -> socket.socket:
    """The connection to the process that forks. It ends with this process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (mine, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_MAX)
    server = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import serve; serve({theirs.fileno()})()"],
        cwd=REPOSITORY,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    atexit.register(server.wait)
    atexit.register(mine.close)  # before: the last one is called first
    return mine


def serve(number: int) -> Callable[[], object]:
    """Forks for each request. Returns in the process of a command, which calls what was returned; else ends this process."""
    from tools.cli import SUBCOMMANDS, main

    for name in (*IMPORTED, *(one.module for one in SUBCOMMANDS.values())):
        importlib.import_module(name)
    interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    requests = socket.socket(fileno=number)
    while True:
        data, given, _, _ = socket.recv_fds(requests, REQUEST_MAX, 4)
        if not data:
            sys.exit()
        if os.fork() == 0:
            break
        for one in given:
            os.close(one)
        with contextlib.suppress(ChildProcessError):  # all have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    requests.close()
    *standard, result = given
    command = os.fork()
    if command:
        os.write(result, NUMBER.pack(command))
        _, status = os.waitpid(command, 0)
        with contextlib.suppress(BrokenPipeError):  # it took too long, and nobody waits any more
            os.write(result, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    os.close(result)
    signal.signal(signal.SIGINT, interrupts)
    for target, one in enumerate(standard):
        os.dup2(one, target)
        os.close(one)
    request = json.loads(data)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv[1:] = request["arguments"]
    return main
