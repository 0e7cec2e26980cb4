"""Elects the controller (CTL-1): the first broker to create `/controller` wins, and raises the epoch in the same multi (INV-9)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from protocol.zk.session import (
    BadVersion,
    CheckOp,
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
    """`/controller_epoch` contains no epoch: no election is possible until a person repairs it. The message says how."""


async def elect(zk: ZooKeeperSession, broker_id: int, wall_ms: Callable[[], int], watch: WatchCallback) -> Won | Lost:
    """Reads who is controller. If there is none, tries to become it. `watch` fires when `/controller` is written or removed.

    Only a registered broker may call this: no other broker then uses its id. A `/controller` with this id and another session was left
    by a killed earlier life of the broker. It is replaced at once, without waiting for that session to expire.

    Raises EpochUnreadable. Raises ConnectionLoss or SessionExpired if the result is unknown; the caller then tries again, and a node that
    this session created is recognised as its own.
    """
    while True:
        owner = await zk.exists(ControllerZNode.PATH, watch)
        if owner is not None and owner.ephemeral_owner == zk.session_id:
            won = await _recover_own_win(zk, owner)
            if won is not None:
                return won
            continue
        # The epoch is read before `/controller`: if another broker is elected after this read, our multi fails.
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
        new_version = results[-1]
        assert isinstance(new_version, int)
        return Won(epoch + 1, new_version)


async def leave_office(zk: ZooKeeperSession) -> None:
    """Removes `/controller` if it is of this session, so that another broker can be elected. Raises ZkError.

    The version of `/controller` is always 0. The version of `/controller_epoch` tells whether another broker has been elected since the
    reads: then nothing is removed.
    """
    try:
        _, epoch = await zk.get(ControllerEpochZNode.PATH)
    except NoNode:
        return  # there has been no election
    owner = await zk.exists(ControllerZNode.PATH)
    if owner is not None and owner.ephemeral_owner == zk.session_id:
        with contextlib.suppress(MultiFailed):
            await zk.multi(
                [CheckOp(ControllerEpochZNode.PATH, epoch.version), DeleteOp(ControllerZNode.PATH, owner.version)]
            )


async def _recover_own_win(zk: ZooKeeperSession, owner: Stat) -> Won | None:
    """Recognises a win whose answer was lost: both writes of the multi have the same transaction id."""
    data, stat = await zk.get(ControllerEpochZNode.PATH)
    if stat.mzxid == owner.czxid:
        return Won(_decoded(data), stat.version)
    # Another broker has raised the epoch since then, so this node is obsolete.
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
