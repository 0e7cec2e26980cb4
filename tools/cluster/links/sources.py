"""Which broker opened a connection: the owner of the socket at the other end. Works for processes of the same user, without root."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from protocol.numbers import is_plain_number


def source_of(directory: Path, client_port: int, port: int) -> str | None:
    """The broker of the run directory whose process connected from `client_port` to `port`; None if it is none of them."""
    for broker, pid in broker_pids(directory).items():
        with contextlib.suppress(psutil.Error, OSError):
            for connection in psutil.Process(pid).net_connections("tcp4"):
                if connection.laddr.port == client_port and connection.raddr and connection.raddr.port == port:
                    return broker
    return None


def broker_pids(directory: Path) -> dict[str, int]:
    """Broker -> the pid in its file, which may have ended."""
    found = {}
    for file in directory.glob("broker-*/pid"):
        with contextlib.suppress(OSError):
            text = file.read_text().strip()
            if is_plain_number(text):
                found[file.parent.name.removeprefix("broker-")] = int(text)
    return found
