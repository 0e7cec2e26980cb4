"""A process that has imported what others need, and forks one of them for each request: tests start hundreds."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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


def fork_for_each(
    number: int, descriptors: int, after_fork: Callable[[socket.socket, int], None]
) -> tuple[dict[str, Any], list[int]]:
    """Forks for each request. Returns the request and its descriptors, in the fork; ends this process when the connection ends.

    `after_fork` is called in this process, with the connection and the fork's process id.
    """
    requests = socket.socket(fileno=number)
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, given, _, _ = socket.recv_fds(requests, REQUEST_MAX, descriptors)
        if not data:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            requests.close()
            return json.loads(data), given
        for one in given:
            os.close(one)
        after_fork(requests, pid)


def take_on(environment: Mapping[str, str], directory: str, arguments: Sequence[str]) -> None:
    """Makes them this process's own."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = arguments
