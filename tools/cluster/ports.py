"""Free ports for servers that keep them: outside the range that the kernel uses for outgoing connections.

A client's connection could take a port from that range while its server restarts.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from pathlib import Path

LOCAL_HOST = "127.0.0.1"
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000
HIGHEST = 65_535
ATTEMPTS = 10_000


class NoFreePorts(Exception):
    """There are too few free ports on this machine."""


def free_ports(count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 without a listener. They are random, so that two callers seldom choose the same."""
    low, high = _ephemeral_range()
    candidates = range(LOWEST, low) if low - LOWEST > 2000 else range(high + 1, HIGHEST + 1)
    if len(candidates) < 2000:
        candidates = range(LOWEST, HIGHEST + 1)
    chosen: list[int] = []
    for _ in range(ATTEMPTS):
        if len(chosen) == count:
            return chosen
        port = random.choice(candidates)
        if port not in chosen and is_free(LOCAL_HOST, port):
            chosen.append(port)
    raise NoFreePorts(f"found only {len(chosen)} of {count} free ports on {LOCAL_HOST}")


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on that address now. An address of another machine counts as free; others check that."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        return True
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def accepts_connections(host: str, port: int, timeout_s: float) -> bool:
    """Whether something listens there. A connection with itself does not count (`protocol/self_connection.py`)."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = map(int, EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999
    return low, high
