"""Consumer groups under load: how long a rebalance of all members takes, and how many commits are answered.

Each member has a connection of its own, and does what a consumer does: it joins, syncs, and learns from a heartbeat that it has to join
again. In a rebalance all members join again at the same time, each with another subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.consumer_protocol import assignment, subscription
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.admin.bootstrap import addresses_of
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, Progress, measurement
from tools.bench.closed_loop.request_plan import CLIENT_ID
from tools.bench.closed_loop.target import Target
from tools.wire import frames
from tools.wire.classic_member import ClassicMember
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.group_member import GroupError, find_coordinator

SESSION_MS, REBALANCE_MS = 45_000, 60_000
ANSWER_TIMEOUT_S = REBALANCE_TIMEOUT_S = 90.0
COORDINATOR_TIMEOUT_S = 30.0
RETRY_S = 0.05
HEARTBEAT_S = 0.1
"""Time between two heartbeats of a member that waits until all members are in its generation."""
ONCE_MORE = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """`members` in each of `groups`. `topic` is an existing topic, for whose partition 0 the members commit."""

    groups: int
    members: int
    rebalances: int
    topic: str
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Times in seconds. `first_s`: until all members of all groups were in one generation; it has Kafka's initial delay in it."""

    first_s: float
    rebalances_s: list[float]
    commits: Measurement


@dataclass(slots=True)
class _Member(ClassicMember):
    is_in: bool = False
    """Whether it has its assignment in this generation."""


def measure_groups(target: Target, load: GroupLoad, on_progress: OnProgress) -> GroupResult:
    """Raises BenchError."""
    try:
        return uvloop.run(_measure(target, load, on_progress))
    except (Unreachable, OSError, MalformedRequest) as problem:
        raise BenchError(f"the groups cannot be measured: {str(problem) or 'no answer in time'}") from None


async def _measure(target: Target, load: GroupLoad, on_progress: OnProgress) -> GroupResult:
    client = Client(CLIENT_ID, target.security)
    view = ClusterView(client, addresses_of(target.bootstrap_server), [load.topic])
    await view.start()
    run = f"{load.topic}-{time.time_ns():x}"
    groups: list[list[_Member]] = []
    try:
        for number in range(load.groups):
            name = f"{run}-{number}"
            address = await _coordinator(view, name)
            members: list[_Member] = []
            groups.append(members)
            for _ in range(load.members):
                connection = await client.connect(address)
                members.append(
                    _Member(
                        CLIENT_ID,
                        name,
                        ANSWER_TIMEOUT_S,
                        connection,
                        session_ms=SESSION_MS,
                        rebalance_ms=REBALANCE_MS,
                    )
                )
        first_s = await _rebalanced(groups, 0)
        rebalances_s = [await _rebalanced(groups, number + 1) for number in range(load.rebalances)]
        commits = await _commits(groups, load, on_progress)
        return GroupResult(first_s, rebalances_s, commits)
    finally:
        await _leave(groups)


async def _coordinator(view: ClusterView, group: str) -> Address:
    """Raises BenchError if the group has none in time, Unreachable."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    while True:
        try:
            return (await find_coordinator(view, group))[1]
        except GroupError as problem:
            if not is_retriable(problem.error) or time.monotonic() > deadline:
                raise BenchError(f"the group has no coordinator: {problem}") from None
        await asyncio.sleep(RETRY_S)


async def _rebalanced(groups: Sequence[Sequence[_Member]], number: int) -> float:
    """Seconds until all members of all groups are in the same generation of their group, with assignments."""
    began = time.perf_counter()
    await asyncio.gather(*(_rebalance(members, number) for members in groups))
    return time.perf_counter() - began


async def _rebalance(members: Sequence[_Member], number: int) -> None:
    together = asyncio.Event()
    for member in members:
        member.is_in = False
    await asyncio.gather(*(_enter(member, members, number, together) for member in members))


async def _enter(member: _Member, members: Sequence[_Member], number: int, together: asyncio.Event) -> None:
    """Joins until all members are in the same generation. Raises BenchError."""
    while not together.is_set():
        member.is_in = False
        try:
            others = await _join(member, number)
            await member.sync(dict.fromkeys(others, assignment([])))
            member.is_in = True
            if all(other.is_in and other.generation == member.generation for other in members):
                together.set()
            while not together.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(together.wait(), HEARTBEAT_S)
                if not together.is_set():
                    await member.heartbeat()
        except GroupError as problem:
            if problem.error == ErrorCode.UNKNOWN_MEMBER_ID:
                member.member_id = ""
            elif problem.error not in ONCE_MORE:
                raise BenchError(f"a member of {member.group} is answered {problem}") from None


async def _join(member: _Member, number: int) -> list[str]:
    """Joins the next generation. Returns its members if this one leads it, else nothing. Raises BenchError."""
    deadline = time.monotonic() + REBALANCE_TIMEOUT_S
    # Another subscription than before: it lets a follower start a rebalance, too.
    topics = subscription(["bench"], number.to_bytes(4, "big"))
    while True:
        try:
            return list(await member.join(topics))
        except GroupError as problem:
            if problem.error == ErrorCode.UNKNOWN_MEMBER_ID and member.member_id:
                member.member_id = ""
            elif is_retriable(problem.error) and time.monotonic() < deadline:
                await asyncio.sleep(RETRY_S)
            else:
                raise BenchError(f"JoinGroup is answered {problem}") from None


async def _commits(groups: Sequence[Sequence[_Member]], load: GroupLoad, on_progress: OnProgress) -> Measurement:
    """Each member commits one offset again and again, with one request in flight. Raises BenchError."""
    latencies: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    until = began + load.seconds

    async def commit(member: _Member) -> None:
        key, version = ApiKey.OFFSET_COMMIT, member.VERSIONS[ApiKey.OFFSET_COMMIT]
        frame = frames.request_frame(key, version, CLIENT_ID, member.commit_body({TopicPartition(load.topic, 0): 0}))
        good: memoryview | None = None
        assert member.connection is not None
        while (sent_at := time.perf_counter()) < until:
            answer = await member.connection.ask(frame, ANSWER_TIMEOUT_S)
            latencies.append(time.perf_counter() - sent_at)
            if answer != good:  # all good answers have the same bytes, so one is decoded
                code = int(frames.answer(key, version, answer).topics[0].partitions[0].error_code)
                if code:
                    raise BenchError(f"OffsetCommit is answered {error_name(code)}")
                good = memoryview(bytes(answer))

    async def report() -> None:
        for second in range(1, int(load.seconds) + 1):
            await asyncio.sleep(began + second - time.perf_counter())
            on_progress(Progress(second, len(latencies), len(latencies), 0))

    reporting = asyncio.create_task(report())
    try:
        await asyncio.gather(*(commit(member) for members in groups for member in members))
    finally:
        reporting.cancel()
    elapsed = time.perf_counter() - began
    return measurement(len(latencies), len(latencies), 0, elapsed, latencies, time.process_time() - cpu)


async def _leave(groups: Sequence[Sequence[_Member]]) -> None:
    """Members leave, so that the broker forgets them now, and connections are closed."""
    members = [member for group in groups for member in group]
    await asyncio.gather(*(member.leave() for member in members if member.member_id), return_exceptions=True)
    for member in members:
        if member.connection is not None:
            member.connection.close()
