"""Consumer groups under load: how long a rebalance of all members takes, and how many commits are answered.

Each member has a connection of its own, and does what a consumer does: it joins, syncs, and learns from a heartbeat that it has to join
again. In a rebalance all members join again at the same time, each with another subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address
from tools.admin.bootstrap import addresses_of
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, Progress, measurement
from tools.bench.closed_loop.request_plan import CLIENT_ID
from tools.bench.closed_loop.target import Target
from tools.wire import frames
from tools.wire.client import TIMEOUT_S, Client
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection

FIND_COORDINATOR_VERSION, JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, COMMIT_VERSION = 2, 5, 3, 3, 7
"""Versions that both Kafka 2.3 and Kafka 4 serve."""
SESSION_MS, REBALANCE_MS = 45_000, 60_000
REBALANCE_TIMEOUT_S = 90.0
COORDINATOR_TIMEOUT_S = 30.0
RETRY_S = 0.05
HEARTBEAT_S = 0.1
"""Time between two heartbeats of a member that waits until all members are in its generation."""
PROTOCOL_TYPE, PROTOCOL_NAME = "consumer", "range"
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
class _Member:
    connection: BrokerConnection
    group: str
    member_id: str = ""
    generation: int = -1
    is_in: bool = False
    """Whether it has its assignment in this generation."""

    async def ask(self, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Raises OSError, MalformedRequest."""
        frame = frames.request_frame(api_key, version, CLIENT_ID, body)
        return frames.answer(api_key, version, await self.connection.ask(frame, REBALANCE_TIMEOUT_S))


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
                members.append(_Member(connection, name))
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
        answer = await view.ask_any(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, {"key": group, "key_type": 0})
        if not answer.error_code:
            return str(answer.host), int(answer.port)
        if not is_retriable(answer.error_code) or time.monotonic() > deadline:
            raise BenchError(f"the group has no coordinator: {error_name(answer.error_code)}")
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
        code = await _sync(member, await _join(member, number))
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            member.member_id = ""
        elif code == ErrorCode.NONE:
            member.is_in = True
            if all(other.is_in and other.generation == member.generation for other in members):
                together.set()
            while code == ErrorCode.NONE and not together.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(together.wait(), HEARTBEAT_S)
                if not together.is_set():
                    code = await _heartbeat(member)
        if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, *ONCE_MORE):
            raise BenchError(f"a member of {member.group} is answered {error_name(code)}")


async def _join(member: _Member, number: int) -> list[str]:
    """Joins the next generation. Returns its members if this one leads it, else nothing. Raises BenchError."""
    deadline = time.monotonic() + REBALANCE_TIMEOUT_S
    user_data = struct.pack(">i", number)  # another subscription than before: it lets a follower start a rebalance, too
    subscription = struct.pack(">hih5si", 0, 1, 5, b"bench", len(user_data)) + user_data
    while True:
        body = {
            "group_id": member.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": member.member_id,
            "group_instance_id": None,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": PROTOCOL_NAME, "metadata": subscription}],
        }
        answer = await member.ask(ApiKey.JOIN_GROUP, JOIN_VERSION, body)
        code = int(answer.error_code)
        if code == ErrorCode.NONE:
            member.member_id, member.generation = str(answer.member_id), int(answer.generation_id)
            return [str(other.member_id) for other in answer.members]
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = str(answer.member_id)
        elif code == ErrorCode.UNKNOWN_MEMBER_ID and member.member_id:
            member.member_id = ""
        elif is_retriable(code) and time.monotonic() < deadline:
            await asyncio.sleep(RETRY_S)
        else:
            raise BenchError(f"JoinGroup is answered {error_name(code)}")


async def _sync(member: _Member, members: Sequence[str]) -> int:
    """`members`: those to which the leader of the generation assigns something. Returns the error code."""
    body = {
        "group_id": member.group,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": None,
        "assignments": [{"member_id": name, "assignment": b"nothing"} for name in members],
    }
    return int((await member.ask(ApiKey.SYNC_GROUP, SYNC_VERSION, body)).error_code)


async def _heartbeat(member: _Member) -> int:
    """Returns the error code."""
    body = {
        "group_id": member.group,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": None,
    }
    return int((await member.ask(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, body)).error_code)


async def _commits(groups: Sequence[Sequence[_Member]], load: GroupLoad, on_progress: OnProgress) -> Measurement:
    """Each member commits one offset again and again, with one request in flight. Raises BenchError."""
    latencies: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    until = began + load.seconds

    async def commit(member: _Member) -> None:
        frame = _commit_frame(member, load.topic)
        good: memoryview | None = None
        while (sent_at := time.perf_counter()) < until:
            answer = await member.connection.ask(frame, REBALANCE_TIMEOUT_S)
            latencies.append(time.perf_counter() - sent_at)
            if answer != good:  # all good answers have the same bytes, so one is decoded
                found = frames.answer(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, answer)
                code = int(found.topics[0].partitions[0].error_code)
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


def _commit_frame(member: _Member, topic: str) -> bytes:
    partition = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    body = {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    return frames.request_frame(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, CLIENT_ID, body)


async def _leave(groups: Sequence[Sequence[_Member]]) -> None:
    """Members leave, so that the broker forgets them now, and connections are closed."""
    leave = partial(frames.request_frame, ApiKey.LEAVE_GROUP, 2, CLIENT_ID)
    members = [member for group in groups for member in group]
    asked = [
        member.connection.ask(leave({"group_id": member.group, "member_id": member.member_id}), TIMEOUT_S)
        for member in members
        if member.member_id and member.connection.is_open
    ]
    await asyncio.gather(*asked, return_exceptions=True)
    for member in members:
        member.connection.close()
