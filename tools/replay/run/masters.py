"""The Spark masters of a replay, and this machine's address as their workers see it."""

from __future__ import annotations

import re
import socket

from tools.replay.run.plan import ReplayError

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 5.0
LOCAL = re.compile(r"local(\[(\d+|\*)\])?")
STANDALONE = "spark://"


def checked_master(master: str) -> str:
    """`local[4]`, or `spark://host:port`. Raises ValueError for anything else."""
    if not LOCAL.fullmatch(master) and not _standalone_addresses(master):
        raise ValueError(
            f"{master!r} is neither local[N] nor spark://HOST:PORT; for YARN and Kubernetes, see `ottla replay submit-command`"
        )
    return master


def is_local(master: str | None) -> bool:
    return master is None or LOCAL.fullmatch(master) is not None


def host_towards(master: str | None) -> str:
    """The address of this machine for Spark's executors. Raises ReplayError if a standalone master does not answer."""
    if master is None or is_local(master):
        return LOOPBACK
    problem: OSError | None = None
    for address in _standalone_addresses(master):
        try:
            with socket.create_connection(address, CONNECT_TIMEOUT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            problem = error
    raise ReplayError(f"--master {master}: no connection ({problem}); is the Spark master running there?")


def _standalone_addresses(master: str) -> list[tuple[str, int]]:
    """The addresses in `spark://host:port,host:port`; none if it is something else."""
    found = []
    for server in master.removeprefix(STANDALONE).split(",") if master.startswith(STANDALONE) else []:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            return []
        found.append((host, int(port)))
    return found
