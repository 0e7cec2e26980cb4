"""The process that owns the cluster of a test run, and ends with it (RUN-4).

`python -m tools.testing.owner FD PID`: FD is a socket to the process PID, the test run (`ottla/owner_process.py`). Each line there is a
request, `[number, name, arguments]`, and is answered by a line `[number, answer, error]`, one of the last two being null.

When the connection or the test run ends, by whatever cause, the cluster is killed and its files are removed. If this process is killed,
the kernel ends the servers (`tools/cluster/ownership.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from tools.cluster.ownership import own_servers
from tools.cluster.processes import ClusterError
from tools.cluster.zookeeper import ZooKeeperError
from tools.failures import AdminError
from tools.faults.words import FaultError
from tools.testing.judging import Verdicts
from tools.testing.owned_cluster import OwnedCluster

EXPECTED = (AdminError, ClusterError, FaultError, ZooKeeperError)
"""Errors whose text says what is wrong; any other is a bug, and its traceback goes to standard error."""


class Owner:
    """The requests, one after the other, and the end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._cluster = OwnedCluster()
        self._verdicts = Verdicts(self._cluster)
        self._ending = threading.Lock()

    def serve(self) -> NoReturn:
        """Does what it is asked until the process ends; undoes faults that have a time when it is over."""
        received = bytearray()
        while True:
            due_s = self._cluster.next_undo_s()
            ready, _, _ = select.select([self._connection], [], [], due_s)
            if not ready:
                self._cluster.undo_due()
                continue
            chunk = self._connection.recv(1 << 20)
            if not chunk:
                self.end()
            received += chunk
            while (at := received.find(b"\n")) >= 0:
                line = bytes(received[:at])
                del received[: at + 1]
                self._connection.sendall(json.dumps(self._answered(line)).encode() + b"\n")

    def _answered(self, line: bytes) -> tuple[int, Any, str | None]:
        number, name, arguments = json.loads(line)
        try:
            self._cluster.undo_due()
            for holder in (self._cluster, self._cluster.users, self._verdicts):
                work = getattr(holder, name, None)
                if work is not None and name in holder.REQUESTS:
                    return number, work(**arguments), None
            return number, None, f"there is no request {name!r}"
        except EXPECTED as problem:
            return number, None, str(problem)
        except Exception as problem:  # noqa: BLE001 - a bug of ours must not end the cluster
            traceback.print_exc()
            return number, None, f"a bug in ottla: {type(problem).__name__}: {problem}"

    def watch(self, run: int) -> None:
        """Waits, in a thread of its own, for the end of the connection or of the test run: a request may take long."""
        poll = select.poll()
        poll.register(self._connection.fileno(), getattr(select, "POLLRDHUP", 0))
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # then only the connection says it
                poll.register(os.pidfd_open(run), select.POLLIN)
        if os.getppid() == run:
            poll.poll()
        self.end()

    def end(self) -> NoReturn:
        """Ends the cluster and this process, whatever another thread does with it meanwhile."""
        with self._ending:
            try:
                self._cluster.remove()
            finally:
                os._exit(0)


def main(arguments: list[str]) -> NoReturn:
    own_servers()
    owner = Owner(socket.socket(fileno=int(arguments[0])))

    def terminated(*_: object) -> None:
        threading.Thread(target=owner.end).start()

    signal.signal(signal.SIGTERM, terminated)
    threading.Thread(target=owner.watch, args=(int(arguments[1]),), daemon=True).start()
    try:
        owner.serve()
    except OSError:  # the test run has closed the connection: the other thread ends this process
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
