"""A member of a replayed group by the consumer protocol (KIP-848): it reads on in what it keeps, whatever the others do (RPL-2).

The coordinator shares out the partitions, and the answer to a heartbeat says which ones a member may read. The member gives up the others
and commits where it stopped, takes the new ones, and says by another heartbeat, at once, what it reads now. Heartbeats are as far apart
as the coordinator wants them: that decides how soon a member learns what changed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection

from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tools.replay.load.membership import (
    ANSWER_TIMEOUT_S,
    ELSEWHERE,
    REBALANCE_MS,
    GroupFigures,
    Membership,
    Reader,
    Shared,
)
from tools.wire.consumer_member import JOINING, ConsumerMember, IdPartition, topic_ids
from tools.wire.group_member import GroupError

Owned = frozenset[IdPartition]
NOTHING: Owned = frozenset()
SETTLED_BEATS = 2
"""After so many heartbeats a member without partitions is not to have any: the others have heard of it, and given up what it was to get."""


class ConsumerMembership(Membership):
    _REMOVED = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
    _PASSING = *ELSEWHERE, *_REMOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH

    _member: ConsumerMember

    def __init__(self, client: str, group: str, reader: Reader, figures: GroupFigures, shared: Shared) -> None:
        member = ConsumerMember(client, group, ANSWER_TIMEOUT_S, rebalance_ms=REBALANCE_MS)
        super().__init__(member, reader, figures, shared)
        self._target = NOTHING
        """What it may read, as the coordinator said last."""
        self._owned: Owned | None = None
        """What it reads; None: it has no assignment."""
        self._counted: Owned | None = None
        """What it read when it was counted last that it took an assignment."""
        self._given_up: dict[TopicPartition, int] = {}
        """Where it stopped to read, until that is committed."""
        self._releasing = NOTHING
        """These partitions. Until then the coordinator is told that it owns them."""
        self._told: tuple[frozenset[str], Owned] | None = None
        """Its topics and what it owns, as the last heartbeat said; None: the next one says all."""
        self._names: dict[uuid.UUID, str] = {}
        self._nameless = NOTHING
        """Partitions of its target whose topic no broker knows. The next heartbeat looks again."""
        self._epoch = JOINING
        self._beats = 0
        """Its heartbeats since it has an assignment."""
        self._heartbeat_due = 0.0

    async def _take_part(self) -> None:
        self._told = None  # an answer may be lost, or the coordinator another one
        self._heartbeat_due = 0.0
        while self._is_wanted():
            self._check_connection()
            now = time.monotonic()
            if now >= self._heartbeat_due or self._told != (self._topics, self._holds()):
                await self._heartbeat()
            elif self._releasing or self._owned != self._target - self._nameless:
                await self._reconcile()
            elif now >= self._commit_due:
                await self._commit()
            else:
                await self._wait_until(min(self._heartbeat_due, self._commit_due))

    def _holds(self) -> Owned:
        return (self._owned or NOTHING) | self._releasing

    async def _heartbeat(self) -> None:
        """Says what is new. Raises GroupError, OSError, MalformedRequest."""
        topics, holds = frozenset(self._topics), self._holds()
        told_topics, told_holds = self._told or (None, None)
        assigned = await self._member.heartbeat(
            None if topics == told_topics else topics, None if holds == told_holds else holds
        )
        self._told = topics, holds
        self._heartbeat_due = time.monotonic() + self._member.interval_s
        self._nameless = NOTHING
        if assigned is not None:
            self._target = assigned
        if self._member.generation != self._epoch:
            self._epoch = self._member.generation
            self._count_generation()
        self._count_heartbeat()
        self._beats += self._owned is not None
        if self._beats >= SETTLED_BEATS:
            self.settled.set()

    async def _reconcile(self) -> None:
        """Gives up what it may not read, or takes what it may. Raises GroupError, OSError, MalformedRequest, Unreachable."""
        if gone := (self._owned or NOTHING) - self._target:
            self._give_up(gone)
        if self._releasing:
            await self._commit()  # which may bring another target
        else:
            await self._take()
        is_done = not self._releasing and self._owned == self._target - self._nameless
        if is_done and self._owned != self._counted:
            self._counted = self._owned
            self.figures.joins += 1

    def _give_up(self, gone: Owned) -> None:
        reached, names = self._reader.offsets(), self._named(gone)
        self._given_up |= {partition: reached[partition] for partition in names if partition in reached}
        self._reader.release(names)
        self._owned = (self._owned or NOTHING) - gone
        self._releasing |= gone

    async def _take(self) -> None:
        """Reads all of its target. Raises as `_reconcile`."""
        if any(topic_id not in self._names for topic_id, _ in self._target):
            self._names |= await topic_ids(self._shared.view, self._topics)
        self._nameless = frozenset(each for each in self._target if each[0] not in self._names)
        target = self._target - self._nameless
        added = self._named(target - (self._owned or NOTHING))
        starts = await self._own_commits() if added else {}
        await self._reader.assign(self._named(target), {place: starts[place] for place in added if place in starts})
        self._owned = target
        if added:
            self._commit_due = 0.0  # at once: the next owner of a partition starts where the group has committed
        if target:
            self.settled.set()

    def _named(self, partitions: Collection[IdPartition]) -> list[TopicPartition]:
        return [TopicPartition(self._names[topic_id], partition) for topic_id, partition in partitions]

    def _to_commit(self) -> dict[TopicPartition, int]:
        return {**self._given_up, **self._reader.offsets()}

    async def _commit(self) -> None:
        try:
            await super()._commit()
        except GroupError as problem:
            if problem.error != ErrorCode.STALE_MEMBER_EPOCH:
                raise
            await self._heartbeat()  # its answer has the epoch
            await super()._commit()
        self._given_up.clear()
        self._releasing = NOTHING

    async def _leave_group(self) -> None:
        await self._member.leave()

    def _forget_group(self) -> None:
        self._member.forget()
        self._target = self._releasing = NOTHING
        self._owned = self._counted = self._told = None
        self._given_up.clear()

    def _react(self, error: int) -> float:
        if error in ELSEWHERE:
            self._disconnect()
        if error in self._REMOVED:
            self._forget_group()
            self._reader.revoke()
        return self._next_retry_s() if error in self._PASSING else self._refused(error)
