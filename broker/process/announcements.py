"""Follows what brokers and Kafka's tools announce in ZooKeeper: which ACLs, settings or tokens have changed.

A change is announced by a sequential child of a node such as `/config/changes`, which names what has changed. Every broker watches the
children, and reads again what new ones name (`ZkNodeChangeNotificationListener`). A broker whose session expired has lost its watch,
and reads everything again.

Nothing is missed: the watch is set before anything is read, and what was announced counts as seen only when it was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from broker.process.clock import Clock
from protocol.topic_names import number_of, shown
from protocol.zk.session import (
    ConnectionLoss,
    NoNode,
    SessionExpired,
    SessionState,
    WatchEvent,
    ZkError,
    ZooKeeperSession,
    each_readable,
)

log = logging.getLogger(__name__)

CHANGE_KEPT_MS = 15 * 60 * 1000
CHANGES_MAX = 10_000
"""Limit of the announcements below one node, because every broker lists all of them at each change. The oldest are removed early. A
broker that missed so many has a new session, and reads everything."""
PURGED_AT_ONCE = 100
RETRY_S = 0.5

Entity = TypeVar("Entity", bound=Hashable)
Named = TypeVar("Named", bound=Hashable, contravariant=True)


class Follower(Protocol[Named]):
    """What the announcements are for. Both methods may raise ZkError, and are then called again."""

    async def read_all(self) -> None:
        """Anything may have changed."""
        ...

    async def read_changed(self, entities: Sequence[Named]) -> None:
        """These have changed, in this order. Each is named once."""
        ...


class Announcements(Generic[Entity]):
    """Call `start` before what is followed is needed, then `run` as a task."""

    def __init__(
        self,
        zk: ZooKeeperSession,
        clock: Clock,
        follower: Follower[Entity],
        parents: Mapping[str, Callable[[bytes], Entity]],
        what: str,
    ) -> None:
        """`parents`: the nodes with announcements, and what decodes these; it raises ValueError. `what`: for the log, such as `ACLs`."""
        self.busy = asyncio.Lock()
        """Held while anything is read. A follower that must not change anything meanwhile takes it, too."""
        self._zk = zk
        self._clock = clock
        self._follower = follower
        self._parents = parents
        self._what = what
        self._seen: dict[str, frozenset[str]] = dict.fromkeys(parents, frozenset())
        self._unremovable: dict[str, set[str]] = {parent: set() for parent in parents}
        self._is_behind = True
        self._is_started = False
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Reads everything, and watches for changes. Raises ZkError; may then be called again."""
        if not self._is_started:
            self._is_started = True
            self._zk.add_listener(self._session_changed)
        await self._catch_up()

    async def run(self) -> None:
        """Follows the changes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._catch_up()
            except ZkError as error:
                log.debug("changes of %s are waiting for ZooKeeper: %s", self._what, error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._wake.wait()
                self._wake.set()
            except Exception:
                # The boundary of the task: the next change is processed, even if data in ZooKeeper makes this one fail.
                log.exception("a change of %s could not be applied", self._what)
                await asyncio.sleep(RETRY_S)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._is_behind = True
        elif state is SessionState.CONNECTED:
            self._wake.set()

    def _woken(self, _: WatchEvent) -> None:
        self._wake.set()

    async def _catch_up(self) -> None:
        async with self.busy:
            names = {
                parent: sorted(await self._zk.children(parent, self._woken), key=_order) for parent in self._parents
            }
            if self._is_behind:
                # The watches are set already: they fire for changes during this read.
                self._is_behind = False
                try:
                    await self._follower.read_all()
                except BaseException:
                    self._is_behind = True
                    raise
            else:
                changed: dict[Entity, None] = {}
                for parent, found in names.items():
                    seen = self._seen[parent]
                    changed.update(
                        dict.fromkeys(await self._announced(parent, [name for name in found if name not in seen]))
                    )
                if changed:
                    await self._follower.read_changed(list(changed))
            self._seen = {parent: frozenset(found) for parent, found in names.items()}
        for parent, found in names.items():
            await self._purge(parent, found)

    async def _announced(self, parent: str, names: Sequence[str]) -> list[Entity]:
        nodes = await each_readable([f"{parent}/{name}" for name in names], self._zk.get_many)
        entities = []
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                if isinstance(node, ZkError):
                    raise ValueError(node)
                entities.append(self._parents[parent](node[0]))
            except ValueError as error:
                log.warning("%s/%s cannot be read: %s", parent, shown(name), error)
        return entities

    async def _purge(self, parent: str, names: Sequence[str]) -> None:
        """Removes old announcements. A broker that missed one of them has a new session, and reads everything."""
        unremovable = self._unremovable[parent]
        unremovable.intersection_update(names)
        too_many = len(names) - CHANGES_MAX
        removable = [name for name in names if name not in unremovable][:PURGED_AT_ONCE]
        found = await each_readable([f"{parent}/{name}" for name in removable], self._zk.get_many)
        for at, (name, node) in enumerate(zip(removable, found, strict=True)):
            if isinstance(node, ZkError):
                unremovable.add(name)
            elif node is not None and (at < too_many or self._clock.wall_ms() - node[1].ctime_ms > CHANGE_KEPT_MS):
                try:
                    await self._zk.delete(f"{parent}/{name}")
                except (ConnectionLoss, SessionExpired):
                    raise
                except NoNode:
                    pass
                except ZkError:  # the znode has children or is protected, so no broker created it
                    unremovable.add(name)


def _order(name: str) -> tuple[int, str]:
    """Sorts announcements by ZooKeeper's sequence numbers. Names without a number come first."""
    number = number_of(name.rpartition("_")[2].lstrip("0") or "0")
    return (-1 if number is None else number), name
