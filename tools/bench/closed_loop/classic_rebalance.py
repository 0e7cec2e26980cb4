"""A rebalance of a group by the classic protocol: all members join again at the same time, each with another subscription.

A member joins, syncs, and learns from a heartbeat that it has to join again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ErrorCode, is_retriable
from protocol.kafka.consumer_protocol import assignment, subscription
from tools.bench.closed_loop.measurement import BenchError
from tools.bench.closed_loop.request_plan import CLIENT_ID
from tools.wire.classic_member import ClassicMember
from tools.wire.connection import BrokerConnection
from tools.wire.group_member import GroupError

SESSION_MS, REBALANCE_MS = 45_000, 60_000
ANSWER_TIMEOUT_S = REBALANCE_TIMEOUT_S = 90.0
RETRY_S = 0.05
HEARTBEAT_S = 0.1
"""Time between two heartbeats of a member that waits until all members are in its generation."""
ONCE_MORE = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)


@dataclass(slots=True)
class Member(ClassicMember):
    is_in: bool = False
    """Whether it has its assignment in this generation."""


def new_member(group: str, connection: BrokerConnection) -> Member:
    return Member(CLIENT_ID, group, ANSWER_TIMEOUT_S, connection, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)


async def rebalance(members: Sequence[Member], number: int) -> None:
    together = asyncio.Event()
    for member in members:
        member.is_in = False
    await asyncio.gather(*(_enter(member, members, number, together) for member in members))


async def _enter(member: Member, members: Sequence[Member], number: int, together: asyncio.Event) -> None:
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


async def _join(member: Member, number: int) -> list[str]:
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
