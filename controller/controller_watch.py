"""Lets every other broker notice that the controller's process died, so that a new controller is elected (CTL-16).

The controller deletes the registrations of other dead brokers, but nobody deletes its own. Therefore each other broker keeps a
connection to the controller's control listener. When nobody listens there any more, the broker deletes `/controller` and the
controller's registration in one multi; the watches on `/controller` then start an election as always. All brokers may try: one multi
succeeds and the others fail.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from controller.event_log import EventLog
from protocol.failure_detection.connection_watch import WatchConnection
from protocol.failure_detection.evidence import Judgements
from protocol.types import Address
from protocol.zk.session import CheckOp, DeleteOp, MultiFailed, NoNode, Op, WatchEvent, ZkError, ZooKeeperSession
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, ControllerZNode

log = logging.getLogger(__name__)

RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read about the controller while it was still alive."""

    broker_id: int
    broker_epoch: int
    address: Address
    session_id: int
    epoch_version: int
    """The version of `/controller_epoch`. Every election raises it: while it is unchanged, `/controller` is the same node."""


class ControllerWatch:
    """Call `look_at` with the current controller; nothing is watched if `watch` is None."""

    def __init__(
        self,
        zk: ZooKeeperSession,
        control_listener: str,
        judgements: Judgements,
        events: EventLog,
        watch: WatchConnection | None,
    ) -> None:
        self._zk = zk
        self._control_listener = control_listener
        self._judgements = judgements
        self._events = events
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def look_at(self, controller_id: int | None) -> None:
        """Watches the broker that is now controller. Pass None if there is no controller, or if it is this broker."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if controller_id is not None and self._watch is not None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(controller_id, self._watch), name=f"watch of controller {controller_id}"
            )

    async def _run(self, controller_id: int, watch: WatchConnection) -> None:
        while True:
            self._changed.clear()
            try:
                known = await self._look(controller_id)
                if known is None or self._judgements.is_refuted(known.broker_id, known.session_id):
                    await self._changed.wait()
                elif await self._is_found_dead(known, watch):
                    await self._remove(known)
            except ZkError as error:
                # Nothing can be decided without ZooKeeper (CTL-14); the session's expiry ends this watch.
                log.info("the watch of controller %d is waiting for ZooKeeper: %s", controller_id, error)
                await asyncio.sleep(RETRY_S)

    async def _look(self, controller_id: int) -> _Known | None:
        """Reads the broker's data and watches its registration. None if it is not controller or not registered, or is not ottla's."""
        path = BrokerIdZNode.path(controller_id)
        try:
            _, epoch = await self._zk.get(ControllerEpochZNode.PATH)
            data, _ = await self._zk.get(ControllerZNode.PATH)
            await self._zk.exists(path, self._registration_changed)
            registered, stat = await self._zk.get(path)
            broker = BrokerIdZNode.decode(controller_id, registered, stat.czxid)
            if ControllerZNode.decode(data) != controller_id:
                return None
        except (NoNode, ValueError):
            return None
        endpoint = broker.endpoint(self._control_listener)
        if endpoint is None:
            return None
        self._judgements.see(controller_id, stat.ephemeral_owner, stat.czxid)
        address = (endpoint.host, endpoint.port)
        return _Known(controller_id, stat.czxid, address, stat.ephemeral_owner, epoch.version)

    def _registration_changed(self, _: WatchEvent) -> None:
        self._changed.set()

    async def _is_found_dead(self, known: _Known, watch: WatchConnection) -> bool:
        """Waits until the controller is found dead. Returns False if its registration changed first and must be read again."""
        is_dead = False

        def found_dead() -> None:
            nonlocal is_dead
            is_dead = True
            self._changed.set()

        watching = watch(known.address, found_dead)
        try:
            await self._changed.wait()
        finally:
            watching.close()
        return is_dead

    async def _remove(self, known: _Known) -> None:
        """Deletes `/controller` and the broker's registration, unless a controller was elected or the broker registered again."""
        path = BrokerIdZNode.path(known.broker_id)
        operations: list[Op] = [
            CheckOp(ControllerEpochZNode.PATH, known.epoch_version),
            DeleteOp(ControllerZNode.PATH),
        ]
        stat = await self._zk.exists(path)
        if stat is not None:
            if stat.czxid != known.broker_epoch:
                return
            operations.append(DeleteOp(path, stat.version))
        try:
            await self._zk.multi(operations)
        except MultiFailed as failure:
            log.info("controller %d is already being replaced: %s", known.broker_id, failure.error)
            return
        self._judgements.note(known.broker_id, known.session_id)
        log.warning("controller %d no longer listens: /controller is removed", known.broker_id)
        self._events.write("controller_found_dead", broker=known.broker_id, broker_epoch=known.broker_epoch)
