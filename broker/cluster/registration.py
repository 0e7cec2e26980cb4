"""This broker's registration in ZooKeeper: `/brokers/ids/<id>` and `/cluster/id` (STA-1, STA-3, STA-4, BUG-7, BUG-17).

  not registered --creates the ephemeral node--> registered (the node's czxid is the broker epoch)
  registered --the session expired, or the node was deleted in a live session--> lost: leads nothing, registers again

A node with this id may exist already:

* It is of this same session, because the answer to an earlier create was lost. Then it is ours.
* It has this process's addresses. An earlier life was killed, and its session has not expired yet. The node is replaced in one step,
  so that the id is never free. If in truth two live processes advertise the same address, behind different interfaces or names, the
  first still has its session, and replaces the second's node. The second finds a node of the session that it took for dead, and
  ends. The first continues.
* It has other addresses. If something answers there, the id is in use, which is an error. Otherwise this broker waits until that
  session ends.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable

from broker.process.clock import Clock
from broker.process.event_log import EventLog
from protocol import self_connection
from protocol.types import BrokerInfo, Endpoint
from protocol.zk.session import (
    CreateOp,
    DeleteOp,
    MultiFailed,
    NodeExists,
    NoNode,
    SessionState,
    Stat,
    WatchEvent,
    WatchKind,
    ZkError,
    ZooKeeperSession,
)
from protocol.zk.znodes import PERSISTENT_PATHS, BrokerIdZNode, ClusterIdZNode

log = logging.getLogger(__name__)

RETRY_S = 0.1
PROBE_TIMEOUT_S = 1.0
NO_EPOCH = -1


class BrokerIdInUse(Exception):
    """Another live broker has this id; the text names it."""


class ClusterIdUnreadable(ZkError):
    """`/cluster/id` contains no valid id; the text says what to do."""


class AnotherLives(BrokerIdInUse):
    """The node that seemed to be of an earlier life belongs to a live process, which has registered again."""


async def prepare_paths(zk: ZooKeeperSession) -> None:
    """Creates the persistent nodes that Kafka expects. Raises ZkError."""
    found = await zk.get_versions(PERSISTENT_PATHS)
    missing = [path for path, node in zip(PERSISTENT_PATHS, found, strict=True) if node is None]
    await asyncio.gather(*map(zk.ensure_path, missing))  # at once, as ZooKeeper syncs its disk for all together


async def cluster_id(zk: ZooKeeperSession) -> str:
    """The cluster's id. The first broker of a cluster chooses it here. Raises ClusterIdUnreadable, ZkError."""
    while True:
        try:
            data, _ = await zk.get(ClusterIdZNode.PATH)
            try:
                return ClusterIdZNode.decode(data)
            except ValueError as error:
                raise ClusterIdUnreadable(
                    f"{ClusterIdZNode.PATH} is not readable: {error}; write the cluster.id of a broker's meta.properties there"
                ) from None
        except NoNode:
            chosen = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            try:
                await zk.create(ClusterIdZNode.PATH, ClusterIdZNode.encode(chosen))
            except NodeExists:
                continue
            return chosen


class Registration:
    """Keeps this broker registered. Calls `lost(reason)` at once when the registration is lost, and `registered(epoch)`.

    Calls `taken` if another live process has this broker's id and address: this process must end.
    """

    def __init__(
        self,
        zk: ZooKeeperSession,
        broker: BrokerInfo,
        clock: Clock,
        events: EventLog,
        lost: Callable[[str], None],
        registered: Callable[[int], Awaitable[None]],
        taken: Callable[[BrokerIdInUse], None],
    ) -> None:
        self._zk = zk
        self._broker = broker
        self._path = BrokerIdZNode.path(broker.id)
        self._clock = clock
        self._events = events
        self._lost = lost
        self._registered = registered
        self._taken = taken
        self._epoch = NO_EPOCH
        self._is_registered = False
        self._is_watched = False
        self._made_way: set[int] = set()
        self._is_closing = False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The current broker epoch; the last one while the broker is not registered; -1 before the first registration."""
        return self._epoch

    async def start(self) -> None:
        """Registers for the first time. Raises BrokerIdInUse. Raises ZkError if ZooKeeper disappears; may then be called again."""
        await self._register()
        self._zk.add_listener(self._session_changed)

    def stop_watching(self) -> None:
        """Called when this broker stops on purpose. From now on the loss of the registration is not reported."""
        self._is_closing = True
        if self._keeper is not None:
            self._keeper.cancel()

    # -- losing it ----------------------------------------------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        if self._is_closing:
            return
        if state is SessionState.EXPIRED:
            self._lose("the ZooKeeper session expired")
        elif state is SessionState.CONNECTED and not (self._is_registered and self._is_watched):
            self._keep()

    def _node_changed(self, session_id: int, event: WatchEvent) -> None:
        """The one-shot watch on our own node fired. If the node was deleted in a live session, the controller took this broker for
        dead (CTL-16).

        The watch may fire before `_is_there` has its answer, so `_is_there` and its callers check whether it is still set.
        """
        if self._is_closing or self._zk.session_id != session_id:
            return
        self._is_watched = False
        if self._is_registered:
            if event.kind is WatchKind.DELETED:
                self._lose("the broker's znode was deleted")
            self._keep()

    def _lose(self, reason: str) -> None:
        if not self._is_registered:
            return
        self._is_registered = False
        self._events.write("registration_lost", broker_epoch=self._epoch, reason=reason)
        self._lost(reason)

    # -- getting it back ----------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._keep_registered())

    async def _keep_registered(self) -> None:
        """Runs until the broker is registered and its node watched, or the connection is lost. A new connection starts it again."""
        while not self._is_closing:
            try:
                if not self._is_registered:
                    await self._register()
                elif not self._is_watched and not await self._is_there():
                    self._lose("the broker's znode was deleted")
                if self._is_registered and self._is_watched:
                    return
                continue
            except AnotherLives as error:
                self._taken(error)
                return
            except BrokerIdInUse as error:
                log.error("%s; trying again", error)
            except ZkError as error:
                log.warning("not registered: %s", error)
                if self._zk.state is not SessionState.CONNECTED:
                    return
            await asyncio.sleep(RETRY_S)

    async def _is_there(self) -> bool:
        """True if our node exists. Sets the watch. `_is_watched` is false if the watch has already fired."""
        session_id = self._zk.session_id
        self._is_watched = True
        try:
            stat = await self._zk.exists(self._path, lambda event: self._node_changed(session_id, event))
        except BaseException:
            self._is_watched = False
            raise
        return stat is not None and stat.czxid == self._epoch

    async def _register(self) -> None:
        data = BrokerIdZNode.encode(self._broker, self._clock.wall_ms())
        waited_until: float | None = None
        while True:
            session_id = self._zk.session_id
            try:
                _, stat = await self._zk.create(self._path, data, ephemeral=True)
            except NodeExists:
                found = await self._found()
                if found is None:
                    continue
                stat = found[1]
                if stat.ephemeral_owner != session_id:
                    waited_until = await self._make_way(*found, data, waited_until)
                    continue
            self._epoch = stat.czxid
            if await self._is_there() and self._is_watched:
                break
        self._is_registered = True
        log.info("registered as broker %d, broker epoch %d", self._broker.id, self._epoch)
        self._events.write("registered", broker=self._broker.id, broker_epoch=self._epoch, session=self._zk.session_id)
        await self._registered(self._epoch)

    async def _found(self) -> tuple[BrokerInfo | None, Stat] | None:
        """The node with our id; its broker is None if the node is not readable. None: there is no node."""
        try:
            data, stat = await self._zk.get(self._path)
        except NoNode:
            return None
        try:
            return BrokerIdZNode.decode(self._broker.id, data, stat.czxid), stat
        except ValueError as error:
            log.warning("%s contains no valid broker: %s", self._path, error)
            return None, stat

    async def _make_way(
        self, other: BrokerInfo | None, stat: Stat, data: bytes, waited_until: float | None
    ) -> float | None:
        """One step towards a node with `data`. Returns until when to wait for the end of another session, None if there is no such
        wait yet. Raises BrokerIdInUse."""
        if stat.ephemeral_owner in self._made_way:
            raise AnotherLives(
                f"broker id {self._broker.id} with {', '.join(map(str, self._broker.endpoints))} is registered by another live "
                f"process, ZooKeeper session 0x{stat.ephemeral_owner:x}: two brokers must not have one broker.id and one "
                "advertised address; this one ends"
            )
        endpoints = other.endpoints if other is not None else ()
        mine = _addresses(self._broker.endpoints)
        is_mine = _addresses(endpoints) == mine
        # At its own addresses only this process would answer, so only other addresses are tried.
        answering = await _first_that_answers(e for e in endpoints if (e.host, e.port) not in mine)
        if answering is not None:
            raise BrokerIdInUse(
                f"broker id {self._broker.id} is registered by a live broker at {answering.host}:{answering.port}; "
                "stop that broker or choose another broker.id"
            )
        if is_mine:
            await self._replace_earlier_life(stat, data)
            return None
        now = self._clock.monotonic()
        if waited_until is None:
            log.info(
                "broker id %d is registered by a session that has not expired yet: waiting for it", self._broker.id
            )
            waited_until = now + 2 * self._zk.session_timeout_ms / 1000 + 1
        elif now > waited_until:
            raise BrokerIdInUse(
                f"broker id {self._broker.id} is registered by the live ZooKeeper session 0x{stat.ephemeral_owner:x}; "
                "stop its owner or choose another broker.id"
            )
        await asyncio.sleep(RETRY_S)
        return waited_until

    async def _replace_earlier_life(self, stat: Stat, data: bytes) -> None:
        """Replaces the node, unless another process already did. `_register` reads the result.

        Deletion and creation in two steps would let another live process take the id in between.

        The czxid and the owner tell the lives apart; the version is 0 in each of them. ZooKeeper cannot make a deletion conditional on the
        czxid. If another process with this id registers between the read and the multi, its node is replaced: it then leads nothing,
        and finds this process when it registers again (`_make_way`). Its control requests are fenced by its own broker epoch (STA-3).
        """
        try:
            _, now = await self._zk.get(self._path)
            if now.czxid == stat.czxid:
                log.info(
                    "replacing the node that an earlier life of broker %d left (epoch %d)", self._broker.id, stat.czxid
                )
                self._made_way.add(stat.ephemeral_owner)
                await self._zk.multi([DeleteOp(self._path, now.version), CreateOp(self._path, data, ephemeral=True)])
        except (NoNode, MultiFailed):
            return


def _addresses(endpoints: Iterable[Endpoint]) -> set[tuple[str, int]]:
    return {(endpoint.host, endpoint.port) for endpoint in endpoints}


async def _first_that_answers(endpoints: Iterable[Endpoint]) -> Endpoint | None:
    loop = asyncio.get_running_loop()
    for endpoint in endpoints:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                transport, _ = await loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
        except (OSError, TimeoutError):
            continue
        is_other = not self_connection.is_to_itself(transport)
        transport.close()
        if is_other:
            return endpoint
    return None
