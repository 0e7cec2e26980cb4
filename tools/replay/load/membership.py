"""Replayed clients as members of real consumer groups: they join, send heartbeats, commit offsets and leave (RPL-2).

The group assigns the partitions, by Kafka's range assignor, and a member reads those that it owns, from where the group committed. A member
talks to its coordinator over a connection of its own, one request at a time. After a failure it finds the coordinator again, and joins
again if the group says so. Meanwhile it reads on, as Kafka's consumers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from protocol.errors import ErrorCode, error_name
from protocol.kafka.consumer_protocol import assigned, assignment, subscribed, subscription
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition
from tools.replay.load.background import Background
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.group_member import NO_GENERATION, GroupError, GroupMember, find_coordinator, ranges

HEARTBEAT_S = 1.0
"""More often than Kafka's consumers (3 s): a member soon learns that it lost a partition, and a dead coordinator's cost is seen."""
COMMIT_S = 5.0
"""As Kafka's consumers by default."""
SESSION_MS = 10_000
REBALANCE_MS = 10_000
ANSWER_TIMEOUT_S = 5.0
RETRY_S, RETRY_MAX_S = 0.1, 1.0
"""Pause before the coordinator is looked for again. It doubles until the member is in a generation."""
CONNECTING_MAX = 8
"""Members of a task that look for their coordinators at the same time: many together would delay fetches."""
REFUSED_RETRY_S = 5.0
"""Pause after an error that will not pass by itself."""
IDLE_NS = 45_000_000_000
"""A member leaves if it has nothing to fetch for this time, Kafka's `session.timeout.ms`: in the trace, it probably ended."""
LEAVE_TIMEOUT_S = 5.0

ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
REMOVED = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
PASSING = (*ELSEWHERE, *REMOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS)
"""After these the member joins again. After any other error of a commit, retriable or not, it stays in the group."""


@dataclass(slots=True)
class GroupFigures:
    """What one group saw in one task. Durations are in seconds."""

    members: int = 0
    """Clients that were a member at some time."""
    joins: int = 0
    """Generations that members joined, all members together."""
    rebalances: int = 0
    """Generations after its first one that the member saw which saw most."""
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

    async def assign(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """It fetches these partitions. `offsets`: where it starts, as far as the group has committed in this replay."""


class Membership:
    """One client in one group. `expect` says what it will fetch; `run` keeps it in the group until `stop`."""

    def __init__(
        self,
        member: GroupMember,
        reader: Reader,
        view: ClusterView,
        figures: GroupFigures,
        connecting: asyncio.Semaphore,
        run_name: str,
        now_ns: Callable[[], int],
    ) -> None:
        """`connecting` limits the members that connect at the same time. Commits have `run_name` as their metadata, which tells them from
        those of earlier replays."""
        self.figures = figures
        self._member = member
        self._reader = reader
        self._view = view
        self._connecting = connecting
        self._run_name = run_name
        self._now = now_ns
        self._topics: set[str] = set()
        self._wanted_until = 0
        """By `now_ns`: when it has had nothing to fetch for too long."""
        self._generations_seen = 0
        self._is_stopping = self._has_left = False
        self._must_join = True
        """False while the group, as far as the member knows, is stable with it; also while the coordinator moves."""
        self._woken = asyncio.Event()
        self.settled = asyncio.Event()
        """It has its first assignment."""
        self._retry_s = RETRY_S
        self._heartbeat_at = self._commit_at = 0.0
        """When the last one succeeded, since the member joined for the first time."""
        self._commit_due = 0.0

    def expect(self, topic: str, due: int) -> None:
        """The client will fetch from the topic at that time, in nanoseconds since 1970 UTC."""
        self._wanted_until = max(self._wanted_until, due + IDLE_NS)
        if topic not in self._topics:
            self._topics.add(topic)
            self._must_join = True
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
                    if self._must_join:
                        await self._join()
                    await self._stay()
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

    # -- in the group -------------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        return not self._is_stopping and self._now() <= self._wanted_until

    async def _commit(self) -> None:
        """Commits the client's positions. Raises GroupError, OSError, MalformedRequest."""
        self._commit_due = time.monotonic() + COMMIT_S
        offsets = self._reader.offsets()
        try:
            if offsets:
                await self._member.commit(offsets, self._run_name)
                self.figures.commits += 1
        except (OSError, MalformedRequest):
            self.figures.failed_commits += 1
            raise
        except GroupError as problem:
            self.figures.failed_commits += 1
            if problem.error in PASSING:
                raise
            self.figures.error = str(problem)  # the member stays in the group, which does not refuse it
            return
        self._count_commit()

    async def _connect(self) -> None:
        """Finds the coordinator and connects to it, unless the connection is open. Raises GroupError, OSError, Unreachable."""
        if self._member.is_connected:
            return
        async with self._connecting:
            _, address = await find_coordinator(self._view, self._member.group)
            self._member.connection = await self._view.client.connect(address, lambda _: self._woken.set())

    async def _join(self) -> None:
        """Comes into the next generation. Raises GroupError, OSError, MalformedRequest."""
        self._reader.revoke()
        topics = frozenset(self._topics)
        members = await self._member.join(subscription(topics))
        partitions = assigned(await self._member.sync(self._shares(members)))
        committed = await self._member.committed()
        own = {partition: found.offset for partition, found in committed.items() if found.metadata == self._run_name}
        await self._reader.assign(partitions, own)
        self._must_join = topics != self._topics
        self._commit_due = 0.0  # at once: the next owner of a partition starts where the group has committed
        self._count_generation()
        self.settled.set()

    def _shares(self, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """The assignments, from the members' subscriptions; nothing if this member does not lead."""
        topics = {name: subscribed(metadata) for name, metadata in members.items()}
        counts = {topic: self._view.partitions(topic) for its in topics.values() for topic in its}
        return {name: assignment(partitions) for name, partitions in ranges(topics, counts).items()}

    async def _stay(self) -> None:
        """Sends heartbeats and commits until the member must join again, or is no longer wanted. Raises as `_join`."""
        heartbeat_due = self._heartbeat_at + HEARTBEAT_S
        while self._is_wanted() and not self._must_join:
            now = time.monotonic()
            if not self._member.is_connected:
                raise ConnectionResetError("the connection to the coordinator ended")
            if now >= heartbeat_due:
                heartbeat_due = now + HEARTBEAT_S
                await self._heartbeat()
            elif now >= self._commit_due:
                await self._commit()
            else:
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(heartbeat_due, self._commit_due) - now):
                        await self._woken.wait()
        if self._must_join:
            await self._commit()

    async def _heartbeat(self) -> None:
        try:
            await self._member.heartbeat()
        except GroupError as problem:
            if problem.error == ErrorCode.REBALANCE_IN_PROGRESS:
                await self._commit()  # before partitions change hands, as Kafka's consumers do
            raise
        self._count_heartbeat()

    async def _leave(self) -> None:
        """Leaves, and waits until it has something to fetch. Raises as `_join`."""
        try:
            if self._member.generation != NO_GENERATION:
                await self._commit()
                await self._member.leave()
        except GroupError as problem:
            if problem.error not in REMOVED:
                raise
        self._member.member_id, self._member.generation = "", NO_GENERATION
        self._must_join = True
        self._reader.revoke()
        self._has_left = self._is_stopping
        while not self._has_left and not self._is_wanted():
            self._woken.clear()
            await self._woken.wait()
            self._has_left = self._is_stopping
        self._heartbeat_at = self._commit_at = time.monotonic()

    def _react(self, error: int) -> float:
        """What the next attempt needs to know; the seconds until then."""
        if error in ELSEWHERE:
            self._disconnect()
        if error in REMOVED or error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member.member_id, self._member.generation = "", NO_GENERATION
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return 0.0 if self._is_wanted() else RETRY_S
        if error in PASSING:
            return self._next_retry_s()
        self.figures.error = error_name(error)
        return REFUSED_RETRY_S

    def _next_retry_s(self) -> float:
        """The next pause. Members that lost the same coordinator do not come back at the same moment."""
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return pause * random.uniform(0.5, 1)

    def _count_generation(self) -> None:
        figures = self.figures
        figures.joins += 1
        self._generations_seen += 1
        if self._generations_seen == 1:
            figures.members += 1
            self._heartbeat_at = self._commit_at = time.monotonic()
        figures.rebalances = max(figures.rebalances, self._generations_seen - 1)
        self._count_heartbeat()

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


class Groups:
    """The members of one task. `prefix` is put before each group's name, so that no production group of the target has new members."""

    def __init__(
        self, view: ClusterView, background: Background, prefix: str, run: int, now_ns: Callable[[], int]
    ) -> None:
        self._view = view
        self._background = background
        self._prefix = prefix
        self._run_name = f"{run:08x}"
        self._now = now_ns
        self._figures: dict[str, GroupFigures] = {}
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)
        self._members: list[tuple[Membership, asyncio.Task[None]]] = []

    def join(self, group: str, client: str, reader: Reader) -> Membership:
        """Makes the client a member of the group, as the trace names it."""
        name = self._prefix + group
        figures = self._figures.setdefault(name, GroupFigures())
        member = GroupMember(client, name, SESSION_MS, REBALANCE_MS, ANSWER_TIMEOUT_S)
        joined = Membership(member, reader, self._view, figures, self._connecting, self._run_name, self._now)
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
