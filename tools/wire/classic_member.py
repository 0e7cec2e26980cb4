"""One member of a consumer group by the classic protocol: it joins generations, and one of the members shares out the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.consumer_protocol import PROTOCOL_TYPE
from protocol.types import TopicPartition
from tools.wire.group_member import NOT_IN_GROUP, GroupMember, check

ASSIGNOR = "range"


@dataclass(slots=True)
class ClassicMember(GroupMember):
    """The methods raise GroupError, OSError and MalformedRequest."""

    VERSIONS: ClassVar[Mapping[ApiKey, int]] = {
        **GroupMember.VERSIONS,
        ApiKey.JOIN_GROUP: 3,
        ApiKey.SYNC_GROUP: 2,
        ApiKey.HEARTBEAT: 2,
        ApiKey.LEAVE_GROUP: 2,
    }

    session_ms: int = field(kw_only=True)
    rebalance_ms: int = field(kw_only=True)
    """JoinGroup and SyncGroup are answered when all members have joined, which may take so much longer."""

    async def join(self, subscription: bytes) -> dict[str, bytes]:
        """Comes into the next generation. Returns its members' subscriptions if this one leads it, else nothing."""
        body = {
            "group_id": self.group,
            "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms,
            "member_id": self.member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": ASSIGNOR, "metadata": subscription}],
        }
        joined = await self.ask(ApiKey.JOIN_GROUP, body, self.timeout_s + self.rebalance_ms / 1000)
        check(joined.error_code)
        self.member_id, self.generation = str(joined.member_id), int(joined.generation_id)
        return {str(member.member_id): member.metadata for member in joined.members}

    async def sync(self, assignments: Mapping[str, bytes]) -> bytes:
        """This member's assignment. `assignments`: those of all members, by the leader."""
        rows = [{"member_id": name, "assignment": assignment} for name, assignment in assignments.items()]
        body = {**self._in_generation(), "assignments": rows}
        synced = await self.ask(ApiKey.SYNC_GROUP, body, self.timeout_s + self.rebalance_ms / 1000)
        check(synced.error_code)
        return bytes(synced.assignment or b"")

    async def heartbeat(self) -> None:
        check((await self.ask(ApiKey.HEARTBEAT, self._in_generation())).error_code)

    async def leave(self) -> None:
        check((await self.ask(ApiKey.LEAVE_GROUP, {"group_id": self.group, "member_id": self.member_id})).error_code)
        self.forget()

    def forget(self) -> None:
        """It is no member any more."""
        self.member_id, self.generation = "", NOT_IN_GROUP

    def _in_generation(self) -> dict[str, Any]:
        return {"group_id": self.group, "generation_id": self.generation, "member_id": self.member_id}


def ranges(topics: Mapping[str, Iterable[str]], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Member -> its partitions, as Kafka's range assignor gives them. `topics`: those of each member. `counts`: partitions by topic."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    for topic, count in counts.items():
        members = sorted(member for member, its in topics.items() if topic in its)
        each, more = divmod(count, len(members)) if members else (0, 0)
        for number, member in enumerate(members):
            first = each * number + min(number, more)
            end = first + each + (number < more)
            shares[member] += [TopicPartition(topic, partition) for partition in range(first, end)]
    return shares
