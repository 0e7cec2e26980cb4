"""One member of a consumer group, whatever its protocol (`classic_member`, `consumer_member`): its requests to the group's coordinator, of
which both protocols have those about offsets. What to do after an error is up to the caller.

Versions that both Kafka 2.1 and Kafka 4 serve, as in `frames`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from protocol.errors import ErrorCode, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.wire import frames
from tools.wire.cluster_view import ClusterView
from tools.wire.connection import BrokerConnection

FIND_COORDINATOR_VERSION = 2
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""What a coordinator is asked for."""
NOT_IN_GROUP = -1
"""In the place of a generation or an epoch."""


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

    VERSIONS: ClassVar[Mapping[ApiKey, int]] = {ApiKey.OFFSET_FETCH: 5, ApiKey.OFFSET_COMMIT: 6}

    client: str
    group: str
    timeout_s: float
    """How long to wait for an answer."""
    connection: BrokerConnection | None = None
    """To the coordinator. The caller opens and closes it."""
    member_id: str = ""
    generation: int = NOT_IN_GROUP
    """In the consumer protocol: the member's epoch."""

    @property
    def is_in_group(self) -> bool:
        """As far as it knows."""
        return self.generation > NOT_IN_GROUP

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and self.connection.is_open

    async def committed(self) -> dict[TopicPartition, Committed]:
        """What the group has committed."""
        answer = await self.ask(ApiKey.OFFSET_FETCH, {"group_id": self.group, "topics": None})
        return committed_in(answer)

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

    async def ask(self, key: ApiKey, body: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        if self.connection is None:
            raise ConnectionResetError("there is no connection to the coordinator")
        version = self.VERSIONS[key]
        frame = frames.request_frame(key, version, self.client, body)
        answer = await self.connection.ask(frame, self.timeout_s if timeout_s is None else timeout_s)
        return frames.answer(key, version, answer)


async def find_coordinator(view: ClusterView, name: str, key_type: int = GROUP_KEY) -> tuple[int, Address]:
    """The broker of a group, or of a transactional id. Raises GroupError, Unreachable."""
    key, body = ApiKey.FIND_COORDINATOR, {"key": name, "key_type": key_type}
    answer = await view.ask_any(key, FIND_COORDINATOR_VERSION, body)
    check(answer.error_code)
    return int(answer.node_id), (str(answer.host), int(answer.port))


def committed_in(group: Any) -> dict[TopicPartition, Committed]:
    """The offsets in an answer to OffsetFetch, or in its part about one group. Raises GroupError."""
    check(group.error_code)
    return {
        TopicPartition(topic.name, int(row.partition_index)): Committed(int(row.committed_offset), row.metadata or "")
        for topic in group.topics
        for row in topic.partitions
        if row.committed_offset >= 0
    }


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
