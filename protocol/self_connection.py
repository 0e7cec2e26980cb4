"""A connection to itself: what connecting to a port that nobody listens on can end in.

The system picks the local port of a new connection from its ephemeral range. If the wanted port lies in that range, is on this
host, and nobody has it, the system may pick that very port. Then TCP's simultaneous open connects the socket with itself. It
proves the opposite of what it looks like: nobody listens there. And it holds the port, so that whoever wants to listen cannot.
"""

from __future__ import annotations

import asyncio
import errno
import os


def is_to_itself(transport: asyncio.BaseTransport) -> bool:
    """Both ends are one socket."""
    own, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return own is not None and own == peer


def refused(address: tuple[str, int]) -> ConnectionRefusedError:
    """What the system would have said, had it picked another port."""
    host, port = address
    return ConnectionRefusedError(
        errno.ECONNREFUSED, f"{os.strerror(errno.ECONNREFUSED)}: {host}:{port} was connected with itself"
    )
