"""A process that has imported what others need, and forks one of them for each request: tests start hundreds."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
REQUEST_MAX = 1024**2


def start(module: str, *arguments: str, **options: Any) -> socket.socket:
    """The connection to a process that calls `serve(number)` of the module, and what this returns. It ends with this process."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (mine, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_MAX)
    code = f"from {module} import serve; serve({theirs.fileno()})()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        **options,
    )
    theirs.close()
    atexit.register(server.wait)
    atexit.register(mine.close)  # before: the last one is called first
    return mine


def send(server: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    data = json.dumps(request).encode()
    assert len(data) < REQUEST_MAX
    socket.send_fds(server, [data], descriptors)


def fork_for_each(number: int, descriptors: int) -> tuple[dict[str, Any], list[int], socket.socket]:
    """Forks for each request. Returns, in the fork, the request, its descriptors and the connection, with whose end this process ends."""
    requests = socket.socket(fileno=number)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, given, _, _ = socket.recv_fds(requests, REQUEST_MAX, descriptors)
        if not data:
            sys.exit()
        if os.fork() == 0:
            return json.loads(data), given, requests
        for one in given:
            os.close(one)
        with contextlib.suppress(ChildProcessError):  # all have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def take_on(environment: Mapping[str, str], directory: str, arguments: Sequence[str]) -> None:
    """Makes them this process's own."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = arguments
