"""ACLs in ZooKeeper: read at the start, followed while the broker runs, changed by compare and set (AclAuthorizer, ZkAclStore).

A change is written to the pattern's node and announced by a child of `/kafka-acl-changes` or `/kafka-acl-extended-changes`, in one
transaction. Every broker follows those announcements (`broker/process/announcements.py`), and reads the named patterns again. A node that
cannot be read is logged, and the pattern's earlier ACLs stay. If this broker has none of it, only super users may use the pattern's
resources: what the node denies must not become allowed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.authorization.acl_index import AclIndex
from broker.authorization.authorizer import Authorizer
from broker.process.announced_writes import write_announced
from broker.process.announcements import Announcements
from broker.process.clock import Clock
from broker.process.event_log import EventLog
from protocol.acls import (
    ANYBODY,
    RESOURCE_TYPES,
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    Permission,
    ResourceType,
    name_of,
    word_of,
)
from protocol.topic_names import shown
from protocol.zk import acl_znodes
from protocol.zk.session import (
    BadVersion,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    SetOp,
    ZkError,
    ZooKeeperSession,
    each_readable,
)

log = logging.getLogger(__name__)

DECODED_AT_ONCE: Final = 16 * 1024
ENCODED_AT_ONCE: Final = 200
"""Bytes, and ACLs, of one pattern for which no thread is needed."""
PATTERNS_IN_A_TURN: Final = 100
"""Nodes that are decoded in one turn of the loop."""
ATTEMPTS_MAX: Final = 10
"""Attempts to change a node that others change, too (AclAuthorizer.maxUpdateRetries)."""
RETRY_S: Final = 0.1
"""Pause after an attempt."""
NO_ACLS: Final[frozenset[Acl]] = frozenset()
UNREADABLE: Final = frozenset((Acl(ANYBODY, WILDCARD, Operation.ALL, Permission.DENY),))
"""Stand for the ACLs of a node that cannot be read."""

Change = Callable[[frozenset[Acl]], frozenset[Acl]]


class CannotChangeAcls(Exception):
    """Others changed the same node in each attempt."""


class AclStore:
    """Call `start` before clients are served, then `run` as a task."""

    def __init__(self, authorizer: Authorizer, zk: ZooKeeperSession, clock: Clock, events: EventLog) -> None:
        self._authorizer = authorizer
        self._zk = zk
        self._events = events
        decoders = {parent: partial(acl_znodes.decode_change, kind) for kind, parent in acl_znodes.CHANGES.items()}
        self._announcements = Announcements(zk, clock, self, decoders, "ACLs")

    # -- following the changes --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Creates the parents, reads all ACLs and watches for changes. Raises ZkError; may then be called again."""
        for path in acl_znodes.PERSISTENT_PATHS:
            await self._zk.ensure_path(path)
        await self._announcements.start()

    async def run(self) -> None:
        """Follows the changes until cancelled."""
        await self._announcements.run()

    async def read_all(self) -> None:
        """As a `Follower`."""
        patterns: list[Pattern] = []
        for pattern_type, parent in acl_znodes.PARENTS.items():
            for name in await self._zk.children(parent):
                kind = word_of(ResourceType, name)
                if kind in RESOURCE_TYPES and name == name_of(kind):
                    found = await self._zk.children(f"{parent}/{name}")
                    patterns += [Pattern(kind, resource, pattern_type) for resource in found]
                else:
                    log.warning("%s/%s is not a type of resources: its ACLs are ignored", parent, shown(name))
        index = AclIndex()
        await self._read_into(index, patterns)
        self._authorizer.use(index)
        self._events.write("acls_read", count=len(index))
        log.info("read %d ACLs of %d patterns", len(index), len(index.patterns()))

    async def read_changed(self, patterns: Sequence[Pattern]) -> None:
        """As a `Follower`."""
        index = self._authorizer.index
        await self._read_into(index, patterns)
        self._authorizer.use(index)
        self._events.write("acls_changed", patterns=[str(pattern) for pattern in patterns[:10]], count=len(patterns))

    async def _read_into(self, index: AclIndex, patterns: Sequence[Pattern]) -> None:
        for at in range(0, len(patterns), PATTERNS_IN_A_TURN):
            some = patterns[at : at + PATTERNS_IN_A_TURN]
            nodes = await each_readable([acl_znodes.path_of(pattern) for pattern in some], self._zk.get_many)
            for pattern, node in zip(some, nodes, strict=True):
                try:
                    if isinstance(node, ZkError):
                        raise ValueError(node)
                    index.put(pattern, await _decoded(node[0]) if node is not None else NO_ACLS)
                except ValueError as error:
                    earlier = self._authorizer.index.patterns().get(pattern, UNREADABLE)
                    index.put(pattern, earlier)
                    then = "everything is denied" if earlier is UNREADABLE else "the earlier ones stay"
                    log.warning("the ACLs of %s cannot be read, %s: %s", shown(str(pattern)), then, error)

    # -- changing ---------------------------------------------------------------------------------------------------

    async def change(self, pattern: Pattern, change: Change, timeout_s: float) -> tuple[frozenset[Acl], frozenset[Acl]]:
        """Replaces the pattern's ACLs with `change(acls)`, applies them here, and announces them. Returns the ACLs before and after.

        `change` is called again if others have changed the ACLs meanwhile. Raises ZkError, CannotChangeAcls.
        """
        attempt = _Attempt()
        async with self._announcements.busy:
            return await self._zk.repeated(lambda: self._change(pattern, change, attempt), timeout_s)

    async def _change(
        self, pattern: Pattern, change: Change, attempt: _Attempt
    ) -> tuple[frozenset[Acl], frozenset[Acl]]:
        path = acl_znodes.path_of(pattern)
        for _ in range(ATTEMPTS_MAX):
            before, version = await self._read(path)
            after = change(before)
            try:
                if after != before:
                    attempt.before = before  # if the answer is lost, the next attempt does not know what was before
                    await self._write(pattern, after, version)
                elif attempt.before is not None:
                    before = attempt.before
                elif self._authorizer.index.patterns().get(pattern, NO_ACLS) != after:
                    # This broker had not heard of them. Perhaps a broker of Kafka died before it told the others.
                    await write_announced(self._zk, None, acl_znodes.announcement(pattern))
            except (BadVersion, NodeExists, NoNode):
                attempt.before = None
                await asyncio.sleep(RETRY_S)
                continue
            index = self._authorizer.index
            index.put(pattern, after)
            self._authorizer.use(index)
            return before, after
        raise CannotChangeAcls(f"the ACLs of {pattern} were changed by others in each of {ATTEMPTS_MAX} attempts")

    async def _read(self, path: str) -> tuple[frozenset[Acl], int]:
        try:
            data, stat = await self._zk.get(path)
        except NoNode:
            return NO_ACLS, -1
        return await _decoded(data), stat.version

    async def _write(self, pattern: Pattern, acls: frozenset[Acl], version: int) -> None:
        path, announcement = acl_znodes.path_of(pattern), acl_znodes.announcement(pattern)
        if version < 0:
            create = CreateOp(path, await _encoded(acls))
            try:
                await write_announced(self._zk, create, announcement)
            except NoNode:
                await self._zk.ensure_path(path.rpartition("/")[0])
                await write_announced(self._zk, create, announcement)
        elif acls:
            await write_announced(self._zk, SetOp(path, await _encoded(acls), version), announcement)
        else:
            await write_announced(self._zk, DeleteOp(path, version), announcement)


async def _decoded(data: bytes) -> frozenset[Acl]:
    """Raises ValueError. A pattern may have 10,000 ACLs, which take a tenth of a second."""
    if len(data) <= DECODED_AT_ONCE:
        return acl_znodes.decode(data)
    return await asyncio.to_thread(acl_znodes.decode, data)


async def _encoded(acls: frozenset[Acl]) -> bytes:
    if len(acls) <= ENCODED_AT_ONCE:
        return acl_znodes.encode(sorted(acls))
    return await asyncio.to_thread(lambda: acl_znodes.encode(sorted(acls)))


class _Attempt:
    """What a change has written before ZooKeeper's answer was lost. `before`: the ACLs that it replaced."""

    before: frozenset[Acl] | None = None
