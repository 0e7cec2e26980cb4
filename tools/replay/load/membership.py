"""Replayed clients as members of real consumer groups: they join, send heartbeats, commit offsets and leave (RPL-2).

The partitions that a client reads are those of the trace; the group follows. A member that starts to read a partition that it is not
assigned joins again, with the partition among its claims (`claims`), and the leader assigns the partition to it.

A member talks to its coordinator over a connection of its own, one request at a time. After a failure it finds the coordinator again, and
joins again if the group says so. No fetch waits for this: a client reads on, whatever becomes of its group.

Versions that both Kafka 2.1 and Kafka 4 serve, as in `frames`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from tools.replay.load.background import Background
from tools.replay.load.claims import (
    PROTOCOL,
    PROTOCOL_TYPE,
    assigned_by_claims,
    assignment,
    claims_of,
    partitions_of,
    subscription,
)
from tools.wire import frames
from tools.wire.cluster_view import ClusterView, TopicPartition, Unreachable
from tools.wire.connection import BrokerConnection

VERSIONS = {
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.HEARTBEAT: 2,
    ApiKey.OFFSET_COMMIT: 6,
    ApiKey.LEAVE_GROUP: 2,
}
GROUP_KEY = 0
HEARTBEAT_S = 1.0
"""More often than Kafka's consumers (3 s): a member soon learns that it lost a partition, and a dead coordinator's cost is seen."""
COMMIT_S = 5.0
"""As Kafka's consumers by default."""
SESSION_MS = 10_000
REBALANCE_MS = 10_000
ANSWER_TIMEOUT_S = 5.0
REBALANCE_ANSWER_TIMEOUT_S = REBALANCE_MS / 1000 + ANSWER_TIMEOUT_S
"""JoinGroup and SyncGroup are answered when all members have joined."""
RETRY_S, RETRY_MAX_S = 0.1, 1.0
"""Pause before the coordinator is looked for again. It doubles until the member is in a generation."""
CONNECTING_MAX = 8
"""Members of a task that look for their coordinators at the same time: many together would delay fetches."""
REFUSED_RETRY_S = 5.0
"""Pause after an error that will not pass by itself."""
CLAIM_PAUSE_S, CLAIM_PAUSE_MAX_S = 1.0, 30.0
"""Time between two joins for new claims. It doubles while two members read the same partition, each of which claims it again."""
CALM_FACTOR = 4
"""The pause is the first one again if there was no claim for so many pauses."""
LEAVE_TIMEOUT_S = 5.0

ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
REMOVED = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
PASSING = (*ELSEWHERE, *REMOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS)
"""After these the member joins again. After any other error of a commit, retriable or not, it stays in the group."""
NO_GENERATION = -1


class GroupError(Exception):
    """An error in a coordinator's answer."""

    def __init__(self, error: int) -> None:
        super().__init__(error_name(error))
        self.error = error


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
    error: str = ""
    """The last error that does not pass by itself, such as a missing permission."""


class Membership:
    """One client in one group. `reads` says what it reads; `run` keeps it in the group until it is cancelled; then `commit`, `leave`."""

    def __init__(
        self,
        group: str,
        client: str,
        view: ClusterView,
        figures: GroupFigures,
        connecting: asyncio.Semaphore,
        offsets: Callable[[Iterable[TopicPartition]], dict[TopicPartition, int]],
        lose: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        """`connecting` limits the members that connect at the same time. `offsets` gives the client's positions. `lose` is called with
        partitions that another member has taken over."""
        self._group = group
        self._client = client
        self._view = view
        self._figures = figures
        self._connecting = connecting
        self._offsets = offsets
        self._lose = lose
        self._topics: set[str] = set()
        self._claims: dict[TopicPartition, int] = {}
        self._assigned: set[TopicPartition] = set()
        self._connection: BrokerConnection | None = None
        self._member_id = ""
        self._generation = NO_GENERATION
        self._generations_seen = 0
        self._is_asking = False
        self._must_join = True
        """False while the group, as far as the member knows, is stable with it; also while the coordinator moves."""
        self._woken = asyncio.Event()
        self._retry_s = RETRY_S
        self._claim_pause_s = CLAIM_PAUSE_S
        self._claimed_at = float("-inf")
        self._heartbeat_at = self._commit_at = 0.0
        """When the last one succeeded, since the member joined for the first time."""
        self._commit_due = 0.0

    def reads(self, partition: TopicPartition, scheduled: int) -> None:
        """The client fetches from the partition; `scheduled` in nanoseconds since 1970 UTC."""
        if partition not in self._claims:
            self._claims[partition] = scheduled
            self._topics.add(partition[0])
            self._woken.set()

    async def run(self) -> None:
        """Joins and stays."""
        while True:
            try:
                await self._connect()
                if self._must_join:
                    await self._join()
                await self._stay()
            except GroupError as problem:
                await asyncio.sleep(self._react(problem.error))
            except (OSError, MalformedRequest, Unreachable):
                self._disconnect()
                await asyncio.sleep(self._next_retry_s())

    async def commit(self) -> None:
        """Commits the positions of the assigned partitions. Raises GroupError, OSError, MalformedRequest."""
        self._commit_due = time.monotonic() + COMMIT_S
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in self._offsets(self._assigned).items():
            row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
            topics.setdefault(topic, []).append({**row, "committed_metadata": ""})
        if not topics:
            self._commit_at = time.monotonic()
            return
        body = {
            **self._in_generation(),
            "generation_id_or_member_epoch": self._generation,
            "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
        }
        try:
            answer = await self._ask(ApiKey.OFFSET_COMMIT, body)
        except (OSError, MalformedRequest):
            self._figures.failed_commits += 1
            raise
        errors = [int(row.error_code) for topic in answer.topics for row in topic.partitions if int(row.error_code)]
        if not errors:
            self._figures.commits += 1
            self._count_commit()
            return
        self._figures.failed_commits += 1
        if errors[0] in PASSING:
            raise GroupError(errors[0])
        self._figures.error = error_name(errors[0])  # the member stays in the group, which does not refuse it

    async def stop(self) -> None:
        """Commits for the last time, after `run` was cancelled. Nothing is committed if the group does not accept it any more."""
        if self._generation == NO_GENERATION:
            return
        with contextlib.suppress(GroupError):
            await self._until_answered(self.commit)

    async def leave(self) -> None:
        """Leaves the group, so that it does not wait for the member's session to end."""
        if self._member_id:
            with contextlib.suppress(GroupError):
                await self._until_answered(self._leave)

    def close(self) -> None:
        """Ends the connection. The member's figures are complete."""
        if self._generations_seen:
            self._count_heartbeat()
            self._count_commit()
        self._disconnect()

    # -- in the group -------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Finds the coordinator and connects to it, unless the connection is open. Raises GroupError, OSError, Unreachable."""
        if self._connection is not None and self._connection.is_open:
            return
        key, version = ApiKey.FIND_COORDINATOR, VERSIONS[ApiKey.FIND_COORDINATOR]
        async with self._connecting:
            answer = await self._view.ask_any(key, version, {"key": self._group, "key_type": GROUP_KEY})
            check(int(answer.error_code))
            broker = int(answer.node_id)
            if self._view.address(broker) is None:
                self._view.ask_again(self._woken.set)
            self._connection = await self._view.connect(broker, lambda _: self._woken.set())

    async def _join(self) -> None:
        """Comes into the next generation. Raises GroupError, OSError, MalformedRequest."""
        claims = dict(self._claims)
        joining = {
            "group_id": self._group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self._member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": PROTOCOL, "metadata": subscription(self._topics, claims)}],
        }
        joined = await self._ask(ApiKey.JOIN_GROUP, joining, REBALANCE_ANSWER_TIMEOUT_S)
        check(int(joined.error_code))
        self._member_id, self._generation = str(joined.member_id), int(joined.generation_id)
        assignments: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            # In a thread: the members of a large group have many claims, and no fetch must wait for that.
            assignments = await asyncio.to_thread(assignments_for, joined.members)
        body = {**self._in_generation(), "assignments": assignments}
        synced = await self._ask(ApiKey.SYNC_GROUP, body, REBALANCE_ANSWER_TIMEOUT_S)
        check(int(synced.error_code))
        self._assigned = partitions_of(synced.assignment) if synced.assignment else set()
        lost = claims.keys() - self._assigned
        for partition in lost:
            del self._claims[partition]
        self._lose(lost)
        self._must_join = False
        self._count_generation()

    async def _stay(self) -> None:
        """Sends heartbeats and commits until the member must join again, or does so to claim partitions. Raises as `_join`."""
        heartbeat_due = self._heartbeat_at + HEARTBEAT_S
        while True:
            now = time.monotonic()
            if self._connection is None or not self._connection.is_open:
                raise ConnectionResetError("the connection to the coordinator ended")
            claim_due = self._claimed_at + self._claim_pause_s if self._claims.keys() - self._assigned else float("inf")
            if now >= claim_due:
                is_calm = now > self._claimed_at + CALM_FACTOR * self._claim_pause_s
                self._claim_pause_s = CLAIM_PAUSE_S if is_calm else min(2 * self._claim_pause_s, CLAIM_PAUSE_MAX_S)
                self._claimed_at = now
                self._must_join = True
                await self.commit()
                return
            if now >= heartbeat_due:
                heartbeat_due = now + HEARTBEAT_S
                await self._heartbeat()
            elif now >= self._commit_due:
                await self.commit()
            else:
                self._woken.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(heartbeat_due, self._commit_due, claim_due) - now):
                        await self._woken.wait()

    async def _heartbeat(self) -> None:
        answer = await self._ask(ApiKey.HEARTBEAT, self._in_generation())
        if int(answer.error_code) == ErrorCode.REBALANCE_IN_PROGRESS:
            await self.commit()  # before partitions change hands, as Kafka's consumers do
        check(int(answer.error_code))
        self._count_heartbeat()

    async def _leave(self) -> None:
        answer = await self._ask(ApiKey.LEAVE_GROUP, {"group_id": self._group, "member_id": self._member_id})
        check(int(answer.error_code))

    async def _until_answered(self, act: Callable[[], Any]) -> None:
        """Does it, with the coordinator that the group has by then. Raises GroupError if the group refuses it."""
        if self._is_asking:
            # What was cancelled still waits there, and a broker serves one request of a connection at a time.
            self._disconnect()
        while True:
            try:
                await self._connect()
                await act()
                return
            except GroupError as problem:
                if problem.error in REMOVED:
                    raise
                await asyncio.sleep(max(self._react(problem.error), RETRY_S))
            except (OSError, MalformedRequest, Unreachable):
                self._disconnect()
                await asyncio.sleep(self._next_retry_s())

    def _react(self, error: int) -> float:
        """What the next attempt needs to know; the seconds until then."""
        if error in ELSEWHERE:
            self._disconnect()
        if error in REMOVED or error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id, self._generation = "", NO_GENERATION
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return 0.0
        if error in PASSING:
            return self._next_retry_s()
        self._figures.error = error_name(error)
        return REFUSED_RETRY_S

    def _next_retry_s(self) -> float:
        """The next pause. Members that lost the same coordinator do not come back at the same moment."""
        pause, self._retry_s = self._retry_s, min(2 * self._retry_s, RETRY_MAX_S)
        return pause * random.uniform(0.5, 1)

    def _count_generation(self) -> None:
        figures = self._figures
        figures.joins += 1
        self._generations_seen += 1
        if self._generations_seen == 1:
            figures.members += 1
            self._heartbeat_at = self._commit_at = time.monotonic()
            self._commit_due = self._commit_at + COMMIT_S
        figures.rebalances = max(figures.rebalances, self._generations_seen - 1)
        self._count_heartbeat()

    def _count_heartbeat(self) -> None:
        figures, now = self._figures, time.monotonic()
        figures.longest_without_heartbeat_s = max(figures.longest_without_heartbeat_s, now - self._heartbeat_at)
        self._heartbeat_at = now
        self._retry_s = RETRY_S

    def _count_commit(self) -> None:
        figures, now = self._figures, time.monotonic()
        figures.longest_without_commit_s = max(figures.longest_without_commit_s, now - self._commit_at)
        self._commit_at = now

    def _in_generation(self) -> dict[str, Any]:
        return {"group_id": self._group, "generation_id": self._generation, "member_id": self._member_id}

    async def _ask(self, key: ApiKey, body: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Raises OSError, MalformedRequest."""
        if self._connection is None or not self._connection.is_open:
            raise ConnectionResetError("the connection to the coordinator ended")
        self._is_asking = True
        frame = frames.request_frame(key, VERSIONS[key], self._client, body)
        answer = await self._connection.ask(frame, timeout_s)
        self._is_asking = False
        return frames.answer(key, VERSIONS[key], answer)

    def _disconnect(self) -> None:
        self._is_asking = False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()


class Groups:
    """The members of one task. `prefix` is put before each group's name, so that no production group of the target has new members."""

    def __init__(self, view: ClusterView, background: Background, prefix: str) -> None:
        self._view = view
        self._background = background
        self._prefix = prefix
        self._figures: dict[str, GroupFigures] = {}
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)
        self._members: list[tuple[Membership, asyncio.Task[None]]] = []

    def join(
        self,
        group: str,
        client: str,
        offsets: Callable[[Iterable[TopicPartition]], dict[TopicPartition, int]],
        lose: Callable[[Iterable[TopicPartition]], None],
    ) -> Membership:
        """Makes the client a member of the group, as the trace names it."""
        name = self._prefix + group
        figures = self._figures.setdefault(name, GroupFigures())
        member = Membership(name, client, self._view, figures, self._connecting, offsets, lose)
        self._members.append((member, self._background.start(member.run())))
        return member

    async def leave(self) -> None:
        """All members commit and leave, for at most LEAVE_TIMEOUT_S each."""
        for _, running in self._members:
            running.cancel()
        members = [member for member, _ in self._members]
        if self._members:
            await asyncio.wait([running for _, running in self._members])
        self._members = []
        try:
            for act in (Membership.stop, Membership.leave):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_TIMEOUT_S):
                        await asyncio.gather(*map(act, members))
        finally:
            for member in members:
                member.close()

    def write(self, directory: Path, task: int) -> None:
        """Writes `task-NNNN.json`: group -> its figures. Nothing if there was no group."""
        if self._figures:
            directory.mkdir(parents=True, exist_ok=True)
            partial = directory / f".task-{task:04}.partial"
            partial.write_text(json.dumps({name: asdict(figures) for name, figures in self._figures.items()}) + "\n")
            os.replace(partial, directory / f"task-{task:04}.json")


def assignments_for(members: Iterable[Any]) -> list[dict[str, Any]]:
    """The assignments of SyncGroup, from the members in the leader's answer. A member whose metadata is not a replay's has no claims."""
    claims: dict[str, dict[TopicPartition, int]] = {}
    for member in members:
        claims[str(member.member_id)] = {}
        with contextlib.suppress(MalformedRequest):
            claims[str(member.member_id)] = claims_of(member.metadata)
    assigned = assigned_by_claims(claims)
    return [{"member_id": name, "assignment": assignment(partitions)} for name, partitions in assigned.items()]


def check(error: int) -> None:
    """Raises GroupError."""
    if error != ErrorCode.NONE:
        raise GroupError(error)
