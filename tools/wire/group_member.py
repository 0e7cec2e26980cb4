"""One member of a consumer group: its requests to the group's coordinator. What to do after an error is up to the caller.

Versions that both Kafka 2.1 and Kafka 4 serve, as in `frames`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.consumer_protocol import PROTOCOL_TYPE
from protocol.types import Address, TopicPartition
from tools.wire import frames
from tools.wire.cluster_view import ClusterView
from tools.wire.connection import BrokerConnection

VERSIONS = {
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.HEARTBEAT: 2,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.OFFSET_COMMIT: 6,
    ApiKey.LEAVE_GROUP: 2,
}
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What a coordinator is asked for."""
ASSIGNOR = "range"
NO_GENERATION = -1


class GroupError(Exception):
    """An error in a coordinator's answer."""

    def __init__(self, error: int) -> None:
        super().__init__(error_name(error))
        self.error = error


class Committed(NamedTuple):
    offset: int
    metadata: str


@dataclass(slots=True)
class GroupMember:
    """The methods raise GroupError, OSError and MalformedRequest."""

    client: str
    group: str
    session_ms: int
    rebalance_ms: int
    timeout_s: float
    """How long to wait for an answer. JoinGroup and SyncGroup are answered when all members have joined."""
    connection: BrokerConnection | None = None
    """To the coordinator. The caller opens and closes it."""
    member_id: str = ""
    generation: int = NO_GENERATION

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and self.connection.is_open

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

    async def committed(self) -> dict[TopicPartition, Committed]:
        """What the group has committed."""
        answer = await self.ask(ApiKey.OFFSET_FETCH, {"group_id": self.group, "topics": None})
        check(answer.error_code)
        return {
            TopicPartition(topic.name, int(row.partition_index)): Committed(
                int(row.committed_offset), row.metadata or ""
            )
            for topic in answer.topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }

    async def commit(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Raises the error of the first partition that has one."""
        answer = await self.ask(ApiKey.OFFSET_COMMIT, self.commit_body(offsets, metadata))
        for topic in answer.topics:
            for row in topic.partitions:
                check(row.error_code)

    def commit_body(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> dict[str, Any]:
        rows = {
            partition: {
                "partition_index": partition.partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
            for partition, offset in offsets.items()
        }
        named = {"group_id": self.group, "member_id": self.member_id}
        return {**named, "generation_id_or_member_epoch": self.generation, "topics": by_topic(rows)}

    async def leave(self) -> None:
        check((await self.ask(ApiKey.LEAVE_GROUP, {"group_id": self.group, "member_id": self.member_id})).error_code)
        self.member_id, self.generation = "", NO_GENERATION

    async def ask(self, key: ApiKey, body: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        if self.connection is None:
            raise ConnectionResetError("there is no connection to the coordinator")
        frame = frames.request_frame(key, VERSIONS[key], self.client, body)
        answer = await self.connection.ask(frame, self.timeout_s if timeout_s is None else timeout_s)
        return frames.answer(key, VERSIONS[key], answer)

    def _in_generation(self) -> dict[str, Any]:
        return {"group_id": self.group, "generation_id": self.generation, "member_id": self.member_id}


async def find_coordinator(view: ClusterView, name: str, key_type: int = GROUP_KEY) -> tuple[int, Address]:
    """The broker of a group, or of a transactional id. Raises GroupError, Unreachable."""
    key = ApiKey.FIND_COORDINATOR
    answer = await view.ask_any(key, VERSIONS[key], {"key": name, "key_type": key_type})
    check(answer.error_code)
    return int(answer.node_id), (str(answer.host), int(answer.port))


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


def check(error: int) -> None:
    """Raises GroupError."""
    if error != ErrorCode.NONE:
        raise GroupError(int(error))


def by_topic(rows: Mapping[TopicPartition, Any]) -> list[dict[str, Any]]:
    """Rows of partitions as requests have them."""
    topics: dict[str, list[Any]] = {}
    for (topic, _), row in rows.items():
        topics.setdefault(topic, []).append(row)
    return [{"name": topic, "partitions": of_topic} for topic, of_topic in topics.items()]
