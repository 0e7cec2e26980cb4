"""A replayed client as a member of a real consumer group: it joins, sends heartbeats, commits offsets and leaves (RPL-2).

The group assigns the partitions, and a member reads those that it owns, from where the group committed. A member talks to its coordinator
over a connection of its own, one request at a time. After a failure it finds the coordinator again, and joins again if the group says so.
Meanwhile it reads on, as Kafka's consumers do. What depends on the group's protocol is in `classic_membership` and `consumer_membership`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from protocol.errors import ErrorCode, error_name
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition
from tools.group_protocols import CLASSIC
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.group_member import GroupError, GroupMember, find_coordinator

COMMIT_S = 5.0
"""As Kafka's consumers by default."""
REBALANCE_MS = 10_000
ANSWER_TIMEOUT_S = 5.0
RETRY_S, RETRY_MAX_S = 0.1, 1.0
"""Pause before the coordinator is looked for again. It doubles until a heartbeat succeeds."""
REFUSED_RETRY_S = 5.0
"""Pause after an error that will not pass by itself."""
IDLE_NS = 45_000_000_000
"""A member leaves if it has nothing to fetch for this time, Kafka's `session.timeout.ms`: in the trace, it probably ended."""

ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(slots=True)
class GroupFigures:
    """What one group saw in one task. Durations are in seconds."""

    protocol: str = CLASSIC
    """Kafka's `group.protocol`."""
    members: int = 0
    """Clients that were a member at some time."""
    joins: int = 0
    """Assignments that members took, all members together. Classic: one in each generation that a member joined. Consumer protocol: the
    first one, and those that gave partitions to a member or took some."""
    rebalances: int = 0
    """Generations after its first one that the member saw which saw most. Consumer protocol: epochs, one for each assignment that the
    coordinator made for the group."""
    commits: int = 0
    failed_commits: int = 0
    longest_without_heartbeat_s: float = 0.0
    """Between two heartbeats (or SyncGroups) of a member that succeeded; also from the last one to the end."""
    longest_without_commit_s: float = 0.0
    longest_overdue_s: float = 0.0
    """How late the latest answer to a fetch was, after the time for which the fetch waits for records."""
    error: str = ""
    """The last error that does not pass by itself, such as a missing permission."""
    read: int = 0
    """Records, without those of aborted transactions if the members read committed ones."""
    ranges: dict[str, list[list[int]]] = field(default_factory=dict)
    """Partition -> the ranges of offsets that were read, each as [first, last + 1]."""


class Reader(Protocol):
    """The client that fetches what the member owns."""

    def offsets(self) -> dict[TopicPartition, int]:
        """Where it reads next."""

    def revoke(self) -> None:
        """It fetches nothing until `assign`."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """It no longer fetches these partitions, and goes on with the others."""

    async def assign(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """It fetches these partitions, and goes on with those of them that it has. `offsets`: where it starts in the others, as far as the
        group has committed in this replay."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the members of a task share."""

    view: ClusterView
    connecting: asyncio.Semaphore
    """Limits the members that connect at the same time."""
    run_name: str
    """The metadata of commits, which tells them from those of earlier replays."""
    now_ns: Callable[[], int]


class Membership(ABC):
    """One client in one group. `expect` says what it will fetch; `run` keeps it in the group until `stop`."""

    _REMOVED: ClassVar[tuple[ErrorCode, ...]]
    """After these the member must join anew."""
    _PASSING: ClassVar[tuple[ErrorCode, ...]]
    """These change what the member does next. After any other error of a commit, retriable or not, it stays in the group."""

    def __init__(self, member: GroupMember, reader: Reader, figures: GroupFigures, shared: Shared) -> None:
        self.figures = figures
        self.settled = asyncio.Event()
        """It has its first assignment."""
        self._member = member
        self._reader = reader
        self._shared = shared
        self._topics: set[str] = set()
        self._wanted_until = 0
        """By `now_ns`: when it has had nothing to fetch for too long."""
        self._generations_seen = 0
        self._is_stopping = self._has_left = False
        self._woken = asyncio.Event()
        self._retry_s = RETRY_S
        self._heartbeat_at = self._commit_at = 0.0
        """When the last one succeeded, since the member joined for the first time."""
        self._commit_due = 0.0

    def expect(self, topic: str, due: int) -> None:
        """The client will fetch from the topic at that time, in nanoseconds since 1970 UTC."""
        self._wanted_until = max(self._wanted_until, due + IDLE_NS)
        self._topics.add(topic)
        self._woken.set()

    def note_read(
        self, first: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], records: int, overdue_ns: int
    ) -> None:
        """The client has an answer. `first`: what it had asked for. `ends`: the offset after the last record, -1 without one."""
        self.figures.read += records
        self.figures.longest_overdue_s = max(self.figures.longest_overdue_s, overdue_ns / 1e9)
        for partition, begin in first.items():
            end = ends.get(partition, -1)
            if end > begin:
                known = self.figures.ranges.setdefault(str(partition), [])
                if known and known[-1][1] == begin:
                    known[-1][1] = end
                else:
                    known.append([begin, end])

    def stop(self) -> None:
        """Makes `run` commit and leave, so that the group does not wait for the member's session to end."""
        self._is_stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Joins and stays, except while it is idle, until it is stopped."""
        while not self._has_left:
            try:
                await self._connect()
                if self._is_wanted():
                    await self._take_part()
                else:
                    await self._leave()
            except GroupError as problem:
                await asyncio.sleep(self._react(problem.error))
            except (OSError, MalformedRequest, Unreachable):
                self._disconnect()
                await asyncio.sleep(self._next_retry_s())

    def close(self) -> None:
        """Ends the connection. The member's figures are complete."""
        if self._generations_seen:
            self._count_heartbeat()
            self._count_commit()
        self._disconnect()

    # -- what depends on the protocol -----------------------------------------------------------------------------------

    @abstractmethod
    async def _take_part(self) -> None:
        """Joins if it must. Sends heartbeats and commits until the member must join again, or is no longer wanted. Raises GroupError,
        OSError, MalformedRequest, Unreachable."""

    @abstractmethod
    async def _leave_group(self) -> None:
        """Raises GroupError, OSError, MalformedRequest."""

    @abstractmethod
    def _forget_group(self) -> None:
        """It is no member any more, and owns nothing."""

    @abstractmethod
    def _react(self, error: int) -> float:
        """What the next attempt needs to know; the seconds until then."""

    # -- in the group ---------------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        return not self._is_stopping and self._shared.now_ns() <= self._wanted_until

    async def _connect(self) -> None:
        """Finds the coordinator and connects to it, unless the connection is open. Raises GroupError, OSError, Unreachable."""
        if self._member.is_connected:
            return
        async with self._shared.connecting:
            _, address = await find_coordinator(self._shared.view, self._member.group)
            self._member.connection = await self._shared.view.client.connect(address, lambda _: self._woken.set())

    def _check_connection(self) -> None:
        """Raises ConnectionResetError."""
        if not self._member.is_connected:
            raise ConnectionResetError("the connection to the coordinator ended")

    async def _wait_until(self, due: float) -> None:
        """Waits for that time, or until something else is to be done."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(due - time.monotonic()):
                await self._woken.wait()

    async def _own_commits(self) -> dict[TopicPartition, int]:
        """Where the group has committed in this replay. Raises GroupError, OSError, MalformedRequest."""
        committed = await self._member.committed()
        return {
            partition: found.offset for partition, found in committed.items() if found.metadata == self._shared.run_name
        }

    def _to_commit(self) -> dict[TopicPartition, int]:
        return self._reader.offsets()

    async def _commit(self) -> None:
        """Commits the client's positions. Raises GroupError, OSError, MalformedRequest."""
        self._commit_due = time.monotonic() + COMMIT_S
        offsets = self._to_commit()
        try:
            if offsets:
                await self._member.commit(offsets, self._shared.run_name)
                self.figures.commits += 1
        except (OSError, MalformedRequest):
            self.figures.failed_commits += 1
            raise
        except GroupError as problem:
            self.figures.failed_commits += 1
            if problem.error in self._PASSING:
                raise
            self.figures.error = str(problem)  # the member stays in the group, which does not refuse it
            return
        self._count_commit()

    async def _leave(self) -> None:
        """Leaves, and waits until it has something to fetch. Raises GroupError, OSError, MalformedRequest."""
        try:
            if self._member.is_in_group:
                await self._commit()
                await self._leave_group()
        except GroupError as problem:
            if problem.error not in self._REMOVED:
                raise
        self._forget_group()
        self._reader.revoke()
        self._has_left = self._is_stopping
        while not self._has_left and not self._is_wanted():
            self._woken.clear()
            await self._woken.wait()
            self._has_left = self._is_stopping
        self._heartbeat_at = self._commit_at = time.monotonic()

    def _refused(self, error: int) -> float:
        """Notes an error that does not pass by itself; the seconds until the next attempt."""
        self.figures.error = error_name(error)
        return REFUSED_RETRY_S

    def _next_retry_s(self) -> float:
        """The next pause. Members that lost the same coordinator do not come back at the same moment."""
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return pause * random.uniform(0.5, 1)

    def _count_generation(self) -> None:
        """It is in a generation, or has an epoch, that is new to it."""
        figures = self.figures
        self._generations_seen += 1
        if self._generations_seen == 1:
            figures.members += 1
            self._heartbeat_at = self._commit_at = time.monotonic()
        figures.rebalances = max(figures.rebalances, self._generations_seen - 1)

    def _count_heartbeat(self) -> None:
        figures, now = self.figures, time.monotonic()
        figures.longest_without_heartbeat_s = max(figures.longest_without_heartbeat_s, now - self._heartbeat_at)
        self._heartbeat_at = now
        self._retry_s = RETRY_S

    def _count_commit(self) -> None:
        figures, now = self.figures, time.monotonic()
        figures.longest_without_commit_s = max(figures.longest_without_commit_s, now - self._commit_at)
        self._commit_at = now

    def _disconnect(self) -> None:
        if self._member.connection is not None:
            self._member.connection.close()
