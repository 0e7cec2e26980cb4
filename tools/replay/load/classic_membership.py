"""A member of a replayed group by the classic protocol: all members stop, and join the next generation together (RPL-2).

The member that leads shares out the partitions by Kafka's range assignor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from protocol.errors import ErrorCode
from protocol.kafka.consumer_protocol import assigned, assignment, subscribed, subscription
from tools.replay.load.membership import (
    ANSWER_TIMEOUT_S,
    ELSEWHERE,
    REBALANCE_MS,
    RETRY_S,
    GroupFigures,
    Membership,
    Reader,
    Shared,
)
from tools.wire.classic_member import ClassicMember, ranges
from tools.wire.group_member import GroupError

HEARTBEAT_S = 1.0
"""More often than Kafka's consumers (3 s): a member soon learns that it lost a partition, and a dead coordinator's cost is seen."""
SESSION_MS = 10_000


class ClassicMembership(Membership):
    _REMOVED = ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID
    _PASSING = *ELSEWHERE, *_REMOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS

    _member: ClassicMember

    def __init__(self, client: str, group: str, reader: Reader, figures: GroupFigures, shared: Shared) -> None:
        member = ClassicMember(client, group, ANSWER_TIMEOUT_S, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
        super().__init__(member, reader, figures, shared)
        self._must_join = True
        """False while the group, as far as the member knows, is stable with it; also while the coordinator moves."""
        self._joined_for: frozenset[str] = frozenset()
        """The topics that the group knows of."""

    @property
    def _is_behind(self) -> bool:
        return self._must_join or self._joined_for != self._topics

    async def _take_part(self) -> None:
        if self._is_behind:
            await self._join()
        heartbeat_due = self._heartbeat_at + HEARTBEAT_S
        while self._is_wanted() and not self._is_behind:
            self._check_connection()
            now = time.monotonic()
            if now >= heartbeat_due:
                heartbeat_due = now + HEARTBEAT_S
                await self._heartbeat()
            elif now >= self._commit_due:
                await self._commit()
            else:
                await self._wait_until(min(heartbeat_due, self._commit_due))
        if self._is_behind:
            await self._commit()

    async def _join(self) -> None:
        """Comes into the next generation. Raises GroupError, OSError, MalformedRequest."""
        self._must_join = True
        self._reader.revoke()
        topics = frozenset(self._topics)
        members = await self._member.join(subscription(topics))
        partitions = assigned(await self._member.sync(self._shares(members)))
        await self._reader.assign(partitions, await self._own_commits())
        self._must_join, self._joined_for = False, topics
        self._commit_due = 0.0  # at once: the next owner of a partition starts where the group has committed
        self.figures.joins += 1
        self._count_generation()
        self._count_heartbeat()
        self.settled.set()

    def _shares(self, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """The assignments, from the members' subscriptions; nothing if this member does not lead."""
        topics = {name: subscribed(metadata) for name, metadata in members.items()}
        counts = {topic: self._shared.view.partitions(topic) for its in topics.values() for topic in its}
        return {name: assignment(partitions) for name, partitions in ranges(topics, counts).items()}

    async def _heartbeat(self) -> None:
        try:
            await self._member.heartbeat()
        except GroupError as problem:
            if problem.error == ErrorCode.REBALANCE_IN_PROGRESS:
                await self._commit()  # before partitions change hands, as Kafka's consumers do
            raise
        self._count_heartbeat()

    async def _leave_group(self) -> None:
        await self._member.leave()

    def _forget_group(self) -> None:
        self._member.forget()
        self._must_join = True

    def _react(self, error: int) -> float:
        if error in ELSEWHERE:
            self._disconnect()
        if error in self._REMOVED or error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member.forget()
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return 0.0 if self._is_wanted() else RETRY_S
        return self._next_retry_s() if error in self._PASSING else self._refused(error)
