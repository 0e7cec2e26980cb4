"""A process of `ottla links` before a cluster."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.cli import COMMAND
from tools.cluster.ports import LOCAL_HOST, free_ports

END_TIMEOUT_S = 30


@contextlib.contextmanager
def links_before(bootstrap_servers: str, directory: Path, end: signal.Signals = signal.SIGTERM) -> Iterator[Path]:
    """Yields its directory when clients can connect. It must end with exit code 0 at this signal, and complain of nothing."""
    (port,) = free_ports(1)
    words = [
        "links",
        "--bootstrap-server",
        bootstrap_servers,
        "--listen",
        f"{LOCAL_HOST}:{port}",
        "--dir",
        str(directory),
    ]
    directory.parent.mkdir(parents=True, exist_ok=True)
    complaints = directory.with_suffix(".stderr")
    with complaints.open("wb") as stderr:
        process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=stderr)
        try:
            assert process.stdout is not None
            assert b"The links to" in process.stdout.readline(), complaints.read_text()
            # What rules hit is said there, too; nobody reads it, and the pipe is far from full.
            yield directory
            process.send_signal(end)
            assert process.wait(END_TIMEOUT_S) == 0
            assert "Traceback" not in complaints.read_text()
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
