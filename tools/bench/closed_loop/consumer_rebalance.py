"""A rebalance of a group by the consumer protocol (KIP-848): one member leaves and comes back, and all come to the same target.

Members do not wait for the coordinator's interval: what is measured is the coordinator's time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.bench.closed_loop.measurement import BenchError
from tools.bench.closed_loop.request_plan import CLIENT_ID
from tools.wire.connection import BrokerConnection
from tools.wire.consumer_member import ConsumerMember, IdPartition
from tools.wire.group_member import GroupError

REBALANCE_MS = 60_000
ANSWER_TIMEOUT_S = 90.0
HEARTBEAT_S = 0.1
"""Time between two heartbeats of a member that has nothing to give up or to take."""


@dataclass(slots=True)
class Member(ConsumerMember):
    owned: frozenset[IdPartition] = field(default=frozenset())


def new_member(group: str, connection: BrokerConnection) -> Member:
    return Member(CLIENT_ID, group, ANSWER_TIMEOUT_S, connection, rebalance_ms=REBALANCE_MS)


async def rebalance(members: Sequence[Member], number: int, topic: str, partitions: int) -> None:
    """Returns when all members have the same epoch, and together all `partitions` of the topic. In number 0, all join.

    Raises BenchError.
    """
    together = asyncio.Event()
    try:
        if number:
            comes_back = members[number % len(members)]
            await comes_back.leave()
            comes_back.owned = frozenset()
        await asyncio.gather(*(_follow(member, members, topic, partitions, together) for member in members))
    except GroupError as problem:
        raise BenchError(f"a member of {members[0].group} is answered {problem}") from None


async def _follow(
    member: Member, members: Sequence[Member], topic: str, partitions: int, together: asyncio.Event
) -> None:
    """Sends heartbeats, and reads what they say, until all are together. Raises GroupError."""
    is_new = True
    while not together.is_set():
        topics = None if member.is_in_group else [topic]
        assigned = await member.heartbeat(topics, member.owned if is_new else None)
        is_new = assigned is not None and assigned != member.owned
        if assigned is not None:
            member.owned = assigned
        if is_new:
            continue  # says at once what it reads now
        if len({each.generation for each in members}) == 1 and sum(len(each.owned) for each in members) == partitions:
            together.set()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(together.wait(), HEARTBEAT_S)
