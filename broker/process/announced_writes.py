"""Writes a change to ZooKeeper and announces it, in one transaction: every broker hears of a change that was made, whoever dies meanwhile.

In Kafka these are two requests. If its broker dies between them, a token that was ended still counts at the others, and a user who was
removed still logs in, until they have new sessions. `broker/process/announcements.py` is the other side.
"""

from __future__ import annotations

from typing import Final

from protocol.zk.session import CheckOp, CreateOp, MultiFailed, NoNode, Op, ZkError, ZooKeeperSession

ATTEMPTS_MAX: Final = 2
"""The second one is made after the parent of the announcements was missing."""


class NoGuard(ZkError):
    """The node that must exist for the change does not exist."""


async def write_announced(
    zk: ZooKeeperSession, write: Op | None, announcement: CreateOp, *, guard: str | None = None
) -> None:
    """Does both, or neither, and nothing unless the node `guard` exists. `announcement` is sequential. Without a `write`, only announces.

    After a lost answer it is unknown whether both were done, as with any write. Who does not know it may announce again: the brokers
    read again what is named.

    Raises NoGuard, ZkError, and the error of the write alone: BadVersion, NodeExists, NoNode, NotEmpty.
    """
    before: list[Op] = [] if guard is None else [CheckOp(guard)]
    writes: list[Op] = [] if write is None else [write]
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            await zk.multi([*before, *writes, announcement])
            return
        except MultiFailed as failure:
            if failure.index < len(before):
                raise NoGuard(f"{guard} does not exist") from None
            if failure.index < len(before) + len(writes):
                raise failure.error from None
            if not isinstance(failure.error, NoNode) or attempt == ATTEMPTS_MAX:
                raise ZkError(f"the change is not made, because it cannot be announced: {failure.error}") from None
            await zk.ensure_path(announcement.path.rpartition("/")[0])
