"""Whether this broker still coordinates what it leads, while ZooKeeper does not say so (INV-23, INV-24, TXN-4).

A coordinator that is cut off does not hear that another broker has taken its place, and its answers from memory are old from then on. As
long as ZooKeeper has lately confirmed the session, nobody can have taken it because the session expired. Otherwise each request that is
answered from memory first waits for a *round*, in which every other member of the ISR must fetch twice from this leader. The first of the
two fetches may have been on its way for long; the second one was sent when the first was answered. So its sender still followed this
leader after the round had begun, and nobody else led before. (As the read index of Raft, section 6.4 of its dissertation, with fetches as
heartbeats.) Only fetches that were under way on two connections at a time, one of them given up, would deceive it.

A round answers the fetches that wait here, so it takes a few round trips and not `replica.fetch.wait.max.ms`. Requests that come during
a round share the next one. What goes through the log, such as a commit, needs no round: the ISR confirms it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.cluster.lease import LeadershipLease
from broker.process.clock import Clock
from broker.replication.partition import Partition, Role

FOLLOWERS_SILENCE_S_MAX = 2.0
"""Followers fetch at least once a second, whatever replica.fetch.wait.max.ms says (`leader_endpoint.WAIT_MS_MAX`)."""
LOOK_S = 0.02
DOUBT_S = 1.0
"""For so long a round's doubt counts. The requests that have waited for it are served at once."""


class Certainty(Protocol):
    """Whether a coordinator is certain that it still is one. If not, it must `confirm` that before it serves a request."""

    def is_certain(self) -> bool: ...

    async def confirm(self) -> None: ...


class Confirmation:
    """The rounds for the partitions of one topic. `led`: those that this broker leads. `answer_followers`: `Fetches.answer_followers`."""

    def __init__(
        self,
        clock: Clock,
        lease: LeadershipLease,
        led: Callable[[], Iterable[Partition]],
        answer_followers: Callable[[tuple[()]], None],
    ) -> None:
        self._clock = clock
        self._lease = lease
        self._led = led
        self._answer_followers = answer_followers
        self._doubted: frozenset[Partition] = frozenset()
        self._doubted_at = clock.monotonic()
        self._round: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def is_needed(self) -> bool:
        """Whether ZooKeeper has been silent, so that a request must wait for a round."""
        return not self._lease.is_proven()

    def is_doubted(self, partition: Partition) -> bool:
        """Whether another broker may lead the partition. Without a round, only what followers have fetched lately counts."""
        if not self.is_needed():
            return False
        is_in_doubt = partition in self._doubted and self._clock.monotonic() - self._doubted_at <= DOUBT_S
        return is_in_doubt or not self._is_followed(partition)

    async def round(self) -> None:
        """Returns when a round has ended that began after this call. `is_doubted` then says what it has not confirmed."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run_next())
        await asyncio.shield(self._next)

    def close(self) -> None:
        """Ends the rounds, and cancels whoever waits for one."""
        for task in (self._next, self._round):
            if task is not None:
                task.cancel()

    async def _run_next(self) -> None:
        if self._round is not None:
            await asyncio.wait([self._round])
        self._round, self._next = self._next, None
        self._doubted = await self._unconfirmed()
        self._doubted_at = self._clock.monotonic()

    async def _unconfirmed(self) -> frozenset[Partition]:
        """The partitions of which one round cannot say that nobody else led them when it began. Who is silent is not waited for."""
        began = self._clock.monotonic()
        first_fetches: dict[tuple[Partition, int], float] = {}
        confirmed: set[Partition] = set()
        open_ = [partition for partition in self._led() if self._is_followed(partition)]
        while self.is_needed():
            confirmed.update(one for one in open_ if _is_confirmed(one, began, first_fetches))
            open_ = [one for one in open_ if one.role is Role.LEADER and one not in confirmed]
            if not open_ or self._clock.monotonic() - began > FOLLOWERS_SILENCE_S_MAX:
                return frozenset(self._led()) - confirmed
            self._answer_followers(())
            await asyncio.sleep(LOOK_S)
        return frozenset()

    def _is_followed(self, partition: Partition) -> bool:
        return partition.is_followed_since(self._clock.monotonic() - FOLLOWERS_SILENCE_S_MAX)


def _is_confirmed(partition: Partition, began: float, first_fetches: dict[tuple[Partition, int], float]) -> bool:
    """Whether each other member of the ISR has fetched twice after that time. `first_fetches`: when each has fetched for the first time."""
    times = partition.heard_of_isr()
    for member, at in times.items():
        if at > began:
            first_fetches.setdefault((partition, member), at)
    return all(at > first_fetches.get((partition, member), at) for member, at in times.items())
