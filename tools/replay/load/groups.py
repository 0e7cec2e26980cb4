"""The consumer groups of one task: which of its clients are members, by which protocol, and what the groups did (RPL-2)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict

from tools.group_protocols import CLASSIC, CONSUMER
from tools.replay.load.background import Background
from tools.replay.load.classic_membership import ClassicMembership
from tools.replay.load.consumer_membership import ConsumerMembership
from tools.replay.load.membership import GroupFigures, Membership, Reader, Shared
from tools.wire.cluster_view import ClusterView

CONNECTING_MAX = 8
"""Members of a task that look for their coordinators at the same time: many together would delay fetches."""
LEAVE_TIMEOUT_S = 5.0


class Groups:
    """The members of one task. `prefix` is put before each group's name, so that no production group of the target has new members."""

    def __init__(
        self,
        view: ClusterView,
        background: Background,
        prefix: str,
        run: int,
        now_ns: Callable[[], int],
        protocol: str = CLASSIC,
    ) -> None:
        self._background = background
        self._prefix = prefix
        self._shared = Shared(view, asyncio.Semaphore(CONNECTING_MAX), f"{run:08x}", now_ns)
        self._protocol = protocol
        self._figures: dict[str, GroupFigures] = {}
        self._members: list[tuple[Membership, asyncio.Task[None]]] = []

    def join(self, group: str, client: str, reader: Reader) -> Membership:
        """Makes the client a member of the group, as the trace names it."""
        name = self._prefix + group
        figures = self._figures.setdefault(name, GroupFigures(protocol=self._protocol))
        kind = ConsumerMembership if self._protocol == CONSUMER else ClassicMembership
        joined = kind(client, name, reader, figures, self._shared)
        self._members.append((joined, self._background.start(joined.run())))
        return joined

    async def until_settled(self, timeout_s: float) -> None:
        """Waits until each member has its first assignment, at most for that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(member.settled.wait() for member, _ in self._members))

    async def leave(self) -> None:
        """All members commit and leave, for at most LEAVE_TIMEOUT_S."""
        for member, _ in self._members:
            member.stop()
        if self._members:
            await asyncio.wait([running for _, running in self._members], timeout=LEAVE_TIMEOUT_S)
        for member, running in self._members:
            running.cancel()
            member.close()

    def to_json(self) -> bytes | None:
        """Group -> its figures; None if there was no group."""
        figures = {name: asdict(figures) for name, figures in self._figures.items()}
        return json.dumps(figures).encode() if figures else None
