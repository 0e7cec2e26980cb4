"""The number of descriptors that this process may have (RLIMIT_NOFILE), and their distribution (FLT-30, BAD-34).

Clients can use only their own share. Files, the connections of brokers and this broker's own connections always have their shares, so
clients cannot keep the broker from opening a log or replicating.

    limit       clients   brokers   control   files     spare   own
    256              70        32        16      64        16    58
    1,024           448       128        64     256        64    64
    20,000       13,528     1,024       256   5,000        64   128
    1,048,576   784,960     1,024       256   262,144      64   128

Files may use more than their share while others do not use theirs: a log that is written to keeps a file open until it is synced.
"""

from __future__ import annotations

import logging
import resource
from typing import NamedTuple

log = logging.getLogger(__name__)

WANTED_MAX = 1 << 20
"""The broker raises its limit to at most this number, even if the hard limit is higher."""
BROKERS_MAX = 1024
SPARE_MAX = 64
CONTROL_MAX = 256
OWN_MIN, OWN_MAX = 58, 128
"""Descriptors for listeners, ZooKeeper, lock files, logs, and connections to other brokers."""


class DescriptorShares(NamedTuple):
    """The shares of `limit` descriptors. `spare` is a reserve for files; `control` is for connections to the control listener."""

    limit: int
    clients: int
    brokers: int
    control: int
    files: int
    spare: int


def shares_of(limit: int) -> DescriptorShares:
    """Divides the limit. Even if it is too small, clients have one connection."""
    brokers = min(limit // 8, BROKERS_MAX)
    control = min(limit // 16, CONTROL_MAX)
    files = limit // 4
    spare = min(limit // 16, SPARE_MAX)
    own = min(max(limit // 16, OWN_MIN), OWN_MAX)
    clients = limit - brokers - control - files - spare - own
    return DescriptorShares(limit, max(clients, 1), brokers, control, files, spare)


def limit_now() -> int:
    """The soft limit, which may change while the process runs (`prlimit`); WANTED_MAX if it is unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raises the soft limit to the hard limit, but not above WANTED_MAX. Returns the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, WANTED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays %d: %s", soft, error)
    return limit_now()
