"""Consumer groups under load: how long a rebalance takes, and how many commits are answered.

Each member has a connection of its own, and does what a consumer does. What a rebalance is depends on the group's protocol
(`classic_rebalance`, `consumer_rebalance`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from protocol.errors import error_name, is_retriable
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.admin.bootstrap import addresses_of
from tools.bench.closed_loop import classic_rebalance, consumer_rebalance
from tools.bench.closed_loop.measurement import BenchError, Measurement, OnProgress, Progress, measurement
from tools.bench.closed_loop.request_plan import CLIENT_ID
from tools.bench.closed_loop.target import Target
from tools.group_protocols import CLASSIC, CONSUMER
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.connection import BrokerConnection
from tools.wire.consumer_member import why_no_consumer_protocol
from tools.wire.group_member import GroupError, find_coordinator

COORDINATOR_TIMEOUT_S = 30.0
RETRY_S = 0.05

Member = classic_rebalance.Member | consumer_rebalance.Member
Rebalance = Callable[[Any, int], Awaitable[None]]
"""Of the members of a group, which are of one kind, and the number of the rebalance: 0 is that in which all join."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """`members` in each of `groups`. `topic` exists, with so many `partitions`; the members commit for the first one.

    `protocol`: Kafka's `group.protocol`.
    """

    groups: int
    members: int
    rebalances: int
    topic: str
    seconds: float
    protocol: str = CLASSIC

    @property
    def partitions(self) -> int:
        """Of the topic: in the classic protocol the members share out nothing."""
        return self.members if self.protocol == CONSUMER else 1


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Times in seconds. `first_s`: until all members of all groups were in one generation, or had the same epoch; by the classic protocol
    it has Kafka's initial delay in it."""

    first_s: float
    rebalances_s: list[float]
    commits: Measurement


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
    new_member: Callable[[str, BrokerConnection], Member] = classic_rebalance.new_member
    if load.protocol == CONSUMER:
        new_member = consumer_rebalance.new_member
        if problem := await why_no_consumer_protocol(view):
            raise BenchError(f"--group-protocol {CONSUMER}: {problem}")
    run = f"{load.topic}-{time.time_ns():x}"
    groups: list[list[Member]] = []
    try:
        for number in range(load.groups):
            name = f"{run}-{number}"
            address = await _coordinator(view, name)
            members: list[Member] = []
            groups.append(members)
            for _ in range(load.members):
                connection = await client.connect(address)
                members.append(new_member(name, connection))
        first_s = await _rebalanced(groups, load, 0)
        rebalances_s = [await _rebalanced(groups, load, number + 1) for number in range(load.rebalances)]
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


def _rebalance_of(load: GroupLoad) -> Rebalance:
    if load.protocol == CONSUMER:
        return partial(consumer_rebalance.rebalance, topic=load.topic, partitions=load.partitions)
    return classic_rebalance.rebalance


async def _rebalanced(groups: Sequence[Sequence[Member]], load: GroupLoad, number: int) -> float:
    """Seconds until all members of all groups are through. Raises BenchError."""
    began, rebalance = time.perf_counter(), _rebalance_of(load)
    await asyncio.gather(*(rebalance(members, number) for members in groups))
    return time.perf_counter() - began


async def _commits(groups: Sequence[Sequence[Member]], load: GroupLoad, on_progress: OnProgress) -> Measurement:
    """Each member commits one offset again and again, with one request in flight. Raises BenchError."""
    latencies: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    until = began + load.seconds

    async def commit(member: Member) -> None:
        key, version = ApiKey.OFFSET_COMMIT, member.VERSIONS[ApiKey.OFFSET_COMMIT]
        frame = frames.request_frame(key, version, CLIENT_ID, member.commit_body({TopicPartition(load.topic, 0): 0}))
        good: memoryview | None = None
        assert member.connection is not None
        while (sent_at := time.perf_counter()) < until:
            answer = await member.connection.ask(frame, member.timeout_s)
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


async def _leave(groups: Sequence[Sequence[Member]]) -> None:
    """Members leave, so that the broker forgets them now, and connections are closed."""
    members = [member for group in groups for member in group]
    await asyncio.gather(*(member.leave() for member in members if member.is_in_group), return_exceptions=True)
    for member in members:
        if member.connection is not None:
            member.connection.close()
