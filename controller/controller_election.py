"""Becoming controller (CTL-1): the first to create `/controller` wins, and raises the epoch in the same multi (INV-9)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from protocol.zk.session import (
    BadVersion,
    CreateOp,
    DeleteOp,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    Stat,
    WatchCallback,
    ZooKeeperSession,
)
from protocol.zk.znodes import ControllerEpochZNode, ControllerZNode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Won:
    """The epoch of the new term, and the version of its znode, which fences the term's writes."""

    epoch: int
    epoch_version: int


@dataclass(frozen=True, slots=True)
class Lost:
    """`controller_id` is the controller; None if its znode could not be read or was removed in the meantime."""

    controller_id: int | None


class EpochUnreadable(ValueError):
    """`/controller_epoch` contains no epoch: no election is possible until a person repairs it. The text says how."""


async def elect(zk: ZooKeeperSession, broker_id: int, wall_ms: Callable[[], int], watch: WatchCallback) -> Won | Lost:
    """Reads who is controller, and tries to be elected if there is none. `watch` fires when `/controller` changes or is removed.

    Only a registered broker may call this: its id is then its own, so a `/controller` with that id and another session was left by an
    earlier life that was killed. It is replaced without waiting for its expiry.

    Raises ConnectionLoss or SessionExpired: the result is then unknown, and the caller tries again (a node that this session created
    is recognised as its own). Raises EpochUnreadable.
    """
    while True:
        owner = await zk.exists(ControllerZNode.PATH, watch)
        if owner is not None and owner.ephemeral_owner == zk.session_id:
            won = await _recover_own_win(zk, owner)
            if won is not None:
                return won
            continue
        # Before reading who is controller: anyone elected after that read raises the epoch, and our multi fails.
        epoch, version = await _read_epoch(zk)
        left_behind: list[Op] = []
        if owner is not None:
            controller_id = await _read_controller(zk)
            if controller_id != broker_id:
                return Lost(controller_id)
            log.info("replacing the %s that an earlier life of broker %d left", ControllerZNode.PATH, broker_id)
            left_behind = [DeleteOp(ControllerZNode.PATH, owner.version)]
        try:
            results = await zk.multi(
                [
                    *left_behind,
                    CreateOp(ControllerZNode.PATH, ControllerZNode.encode(broker_id, wall_ms()), ephemeral=True),
                    SetOp(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(epoch + 1), version),
                ]
            )
        except MultiFailed as failure:
            if not isinstance(failure.error, NodeExists | NoNode | BadVersion):
                raise failure.error from failure
            continue  # another broker was faster: read again
        stat = results[-1]
        assert isinstance(stat, Stat)
        return Won(epoch + 1, stat.version)


async def _recover_own_win(zk: ZooKeeperSession, owner: Stat) -> Won | None:
    """The multi was applied but its answer was lost: both its writes have the same transaction id."""
    data, stat = await zk.get(ControllerEpochZNode.PATH)
    if stat.mzxid == owner.czxid:
        return Won(_decoded(data), stat.version)
    # The epoch was raised by another broker since then, so this node is obsolete.
    log.warning("%s of this session belongs to an earlier term and was removed", ControllerZNode.PATH)
    with contextlib.suppress(NoNode, BadVersion):
        await zk.delete(ControllerZNode.PATH, owner.version)
    return None


async def _read_controller(zk: ZooKeeperSession) -> int | None:
    try:
        return ControllerZNode.decode((await zk.get(ControllerZNode.PATH))[0])
    except NoNode:
        return None
    except ValueError as error:
        log.error("%s is not readable: %s; delete it to elect again", ControllerZNode.PATH, error)
        return None


async def _read_epoch(zk: ZooKeeperSession) -> tuple[int, int]:
    """(epoch, version) of `/controller_epoch`, which is created with 0 if it does not exist."""
    while True:
        try:
            data, stat = await zk.get(ControllerEpochZNode.PATH)
        except NoNode:
            try:
                await zk.create(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(0))
            except NodeExists:
                continue
            continue
        return _decoded(data), stat.version


def _decoded(epoch: bytes) -> int:
    try:
        return ControllerEpochZNode.decode(epoch)
    except ValueError as error:
        raise EpochUnreadable(
            f"{ControllerEpochZNode.PATH} is not readable, no controller can be elected: {error}; write a number to it that is "
            "larger than the controller_epoch in every partition's state"
        ) from None
