"""Free ports for servers. If possible, they are outside the range that the kernel uses for outgoing connections.

A client's outgoing connection could take a port from that range while a server restarts.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import socket
from pathlib import Path

from tools.failures import ExpectedError

LOCAL_HOST = "127.0.0.1"
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000
HIGHEST = 65_535
BLOCK = 50


class NoFreePorts(ExpectedError):
    """There are too few free ports on this machine."""


class ClaimedPorts:
    """Ports that only this process hands out. Until it ends, no other process of ottla does, even while no server listens there.

    Otherwise a cluster that starts in another process could take the port of a broker that was just killed. The ports are claimed in
    blocks. A claim is a socket in Linux's abstract namespace, which belongs to the network namespace, as ports do.
    """

    def __init__(self, candidates: range) -> None:
        self._blocks = [candidates[at : at + BLOCK] for at in range(0, len(candidates), BLOCK)]
        random.shuffle(self._blocks)
        self._claims: list[socket.socket] = []
        self._ports: list[int] = []

    def take(self) -> int:
        """A port that this process has not handed out before. Raises NoFreePorts."""
        while not self._ports:
            if not self._blocks:
                raise NoFreePorts(f"every port on {LOCAL_HOST} is in use or claimed by another process of ottla")
            block = self._blocks.pop()
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0ottla-ports-{block[0]}")
            except OSError:
                claim.close()
                continue
            self._claims.append(claim)
            self._ports = random.sample(block, len(block))
        return self._ports.pop()


def free_ports(count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 without a listener. Each port is handed out once. Raises NoFreePorts."""
    ports = _claimed_ports(os.getpid())
    chosen: list[int] = []
    while len(chosen) < count:
        port = ports.take()
        if is_free(LOCAL_HOST, port):
            chosen.append(port)
    return chosen


@functools.cache
def _claimed_ports(pid: int) -> ClaimedPorts:
    """The ports of this process; a forked one gets its own."""
    low, high = _ephemeral_range()
    candidates = range(LOWEST, low) if low - LOWEST > 2000 else range(high + 1, HIGHEST + 1)
    return ClaimedPorts(candidates if len(candidates) >= 2000 else range(LOWEST, HIGHEST + 1))


def is_free(host: str, port: int) -> bool:
    """Whether no server listens on that address. An address that this machine does not have counts as free: the server reports it."""
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
    except (OSError, UnicodeError, OverflowError):
        return False


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = map(int, EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999
    return low, high
