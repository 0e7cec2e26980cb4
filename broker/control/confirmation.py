"""Confirms the sender of a control request: asks ZooKeeper before the broker believes it (INV-8, INV-9, STA-3).

Anybody who reaches the control listener can claim to be the controller of a later epoch. If the broker believed that, it would
refuse the true controller's requests until it restarts. A broker therefore believes a new controller epoch only if
`/controller_epoch` has it and `/controller` names the sender. A claim of a higher controller epoch, or of an unknown broker
epoch, causes one sync and one read of these nodes and of this broker's registration; claims that wait together share it. The
sync comes first, so that a lagging server of the ensemble does not make the true controller look forged.

    epoch higher than ZooKeeper's                NotConfirmed: the connection is closed
    ZooKeeper's epoch, but another controller    NotConfirmed
    ZooKeeper cannot be asked                    the request waits, after HELD_MAX_S NotConfirmed; the controller sends it again
    epoch lower than ZooKeeper's                 a deposed controller: ZooKeeper's epoch is noted, and the request is refused later

While ZooKeeper cannot be asked, the request waits: a controller that was just elected could reach ZooKeeper, so this broker
will reach it soon too, or lose its session.

A false sender that uses the controller's id and epoch and this broker's epoch is not detected. Detection would need a secret
(`ControlConnections._is_welcome`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from protocol.types import NO_EPOCH
from protocol.zk.session import ConnectionLoss, SessionExpired, Stat, ZkError
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, ControllerZNode

log = logging.getLogger(__name__)

HELD_MAX_S = 30.0
"""The default of `controller.socket.timeout.ms`: after this time the controller gives up the request."""
RETRY_S = 0.05
NOBODY = -1


class NotConfirmed(ValueError):
    """ZooKeeper does not confirm the sender's claim. The text says why."""


class ZooKeeper(Protocol):
    """The part of the ZooKeeper session that is used here."""

    async def heartbeat(self) -> None: ...

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]: ...


class Confirmation:
    """Calls `refuse_epochs_below(epoch)` when ZooKeeper has a new controller epoch."""

    def __init__(self, zk: ZooKeeper, own_id: int, refuse_epochs_below: Callable[[int], None]) -> None:
        self._zk = zk
        self._own_path = BrokerIdZNode.path(own_id)
        self._refuse_epochs_below = refuse_epochs_below
        self._epoch = NO_EPOCH
        self._controller = NOBODY
        self._broker_epoch = NO_EPOCH
        self._reading: asyncio.Task[None] | None = None

    async def of_controller(self, controller_id: int, controller_epoch: int) -> None:
        """Asks ZooKeeper about an epoch above the known one. A lower epoch passes; its request is refused later.

        Raises NotConfirmed, also for the known epoch from another sender.
        """
        if controller_epoch > self._epoch:
            await self._read_until_answered()
        if controller_epoch > self._epoch:
            raise NotConfirmed(
                f"broker {controller_id} says that it is the controller of epoch {controller_epoch}, ZooKeeper has epoch {self._epoch}"
            )
        if controller_epoch == self._epoch and controller_id != self._controller:
            who = "nobody" if self._controller == NOBODY else f"broker {self._controller}"
            raise NotConfirmed(
                f"broker {controller_id} says that it is the controller of epoch {controller_epoch}, but ZooKeeper says that {who} is"
            )

    async def of_broker_epoch(self, broker_epoch: int) -> None:
        """Confirms this broker's own epoch, which the controller may know before the broker does. Raises NotConfirmed."""
        if broker_epoch != self._broker_epoch:
            await self._read_until_answered()
        if broker_epoch != self._broker_epoch:
            raise NotConfirmed(
                f"the request is for broker epoch {broker_epoch}, but ZooKeeper has {self._broker_epoch}"
            )

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read_until_answered(self) -> None:
        is_logged = False
        try:
            async with asyncio.timeout(HELD_MAX_S):
                while True:
                    try:
                        await self._read_again()
                    except (ConnectionLoss, SessionExpired) as error:
                        if not is_logged:
                            log.info("a control request waits until ZooKeeper can be asked about its sender: %s", error)
                        is_logged = True
                        await asyncio.sleep(RETRY_S)
                    except ZkError as error:
                        raise NotConfirmed(f"ZooKeeper cannot say who the sender of the request is: {error}") from None
                    else:
                        return
        except TimeoutError:
            raise NotConfirmed(
                f"ZooKeeper could not be asked about the sender of the request for {HELD_MAX_S:g} s"
            ) from None

    async def _read_again(self) -> None:
        """Returns after a read that started after this call. Callers that wait together share one read."""
        earlier = self._reading
        if earlier is not None and not earlier.done():
            await asyncio.wait((earlier,))
        if self._reading is None or self._reading is earlier:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="who is controller?")
            self._reading.add_done_callback(_retrieve_error)
        # Shielded: the connection that asked first may end while the others still wait.
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        # One session sends both, so ZooKeeper answers the reads after the sync.
        paths = (ControllerEpochZNode.PATH, ControllerZNode.PATH, self._own_path)
        _, (epoch, controller, own) = await asyncio.gather(self._zk.heartbeat(), self._zk.get_many(paths))
        self._broker_epoch = own[1].czxid if own is not None else NO_EPOCH
        if epoch is None:
            return
        found = ControllerEpochZNode.decode(epoch[0])
        if found >= self._epoch:
            self._controller = ControllerZNode.decode(controller[0]) if controller is not None else NOBODY
        if found > self._epoch:
            self._epoch = found
            self._refuse_epochs_below(found)


def _retrieve_error(read: asyncio.Task[None]) -> None:
    """Without this, asyncio would log the error if all connections that asked have ended."""
    if not read.cancelled():
        read.exception()
