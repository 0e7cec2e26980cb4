"""Detects a TCP connection with itself, a possible result of connecting to a port without a listener.

The system picks the local port of a new connection from its ephemeral range. If the wanted port is in that range, on this host,
and unused, the system may pick the same port. TCP's simultaneous open then connects the socket with itself. Such a connection looks
like a listener but proves that there is none. It also occupies the port, so that a server cannot listen on it.
"""

from __future__ import annotations

import asyncio
import errno
import os


def is_to_itself(transport: asyncio.BaseTransport) -> bool:
    """Whether both ends are the same socket."""
    own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return own is not None and own == peer


def refused(address: tuple[str, int]) -> ConnectionRefusedError:
    """The error that the system would have raised if it had picked another local port."""
    host, port = address
    return ConnectionRefusedError(
        errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {host}:{port} connected with itself"
    )
