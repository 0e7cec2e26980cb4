"""One member of a consumer group by the consumer protocol (KIP-848): heartbeats are all it sends to be one, and the coordinator shares out
the partitions.

ConsumerGroupHeartbeat v0, which every broker with this protocol serves; v1 only adds the regular expression.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition
from tools.wire.cluster_view import ClusterView
from tools.wire.group_member import Committed, GroupMember, check, committed_in

HEARTBEAT_VERSION = 0
TOPIC_IDS_VERSION = 10
"""Of Metadata: the first one that has the topics' ids."""
FEATURES_VERSION = 3
"""Of ApiVersions: the first one that has the cluster's features. Whoever serves ConsumerGroupHeartbeat serves it."""
GROUP_VERSION = "group.version"
"""The feature with which a cluster has groups of this protocol."""
JOINING, LEAVING = 0, -1
"""In the place of an epoch."""

IdPartition = tuple[uuid.UUID, int]
"""A topic's id, and a partition."""


@dataclass(slots=True)
class ConsumerMember(GroupMember):
    """The methods raise GroupError, OSError and MalformedRequest. It has an id of its own from the start, and keeps it."""

    VERSIONS: ClassVar[Mapping[ApiKey, int]] = {
        ApiKey.CONSUMER_GROUP_HEARTBEAT: HEARTBEAT_VERSION,
        ApiKey.OFFSET_FETCH: 9,
        ApiKey.OFFSET_COMMIT: 9,
    }

    rebalance_ms: int = field(kw_only=True)
    """How long the coordinator waits for the member to give up a partition."""
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    generation: int = JOINING
    interval_s: float = 0.0
    """When the coordinator wants the next heartbeat, after the last one."""

    @property
    def is_in_group(self) -> bool:
        return self.generation > JOINING

    async def heartbeat(
        self, topics: Collection[str] | None = None, owned: Collection[IdPartition] | None = None
    ) -> frozenset[IdPartition] | None:
        """Joins if the epoch is JOINING. Returns what the member may read; None: what the last answer with partitions said.

        `topics`: what it subscribes to. `owned`: what it reads. None: as the last heartbeat that said it; a first one says both.
        """
        body = {
            **self._named(self.generation),
            "rebalance_timeout": -1 if topics is None else self.rebalance_ms,
            "subscribed_topic_names": None if topics is None else sorted(topics),
            "topic_partitions": None if owned is None else _by_id(owned),
        }
        answer = await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)
        check(answer.error_code)
        self.generation = int(answer.member_epoch)
        self.interval_s = answer.heartbeat_interval.total_seconds()
        if answer.assignment is None:
            return None
        rows = answer.assignment.topic_partitions
        return frozenset((row.topic_id, int(partition)) for row in rows for partition in row.partitions)

    async def committed(self) -> dict[TopicPartition, Committed]:
        group = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.generation, "topics": None}
        answer = await self.ask(ApiKey.OFFSET_FETCH, {"groups": [group], "require_stable": False})
        return committed_in(answer.groups[0])

    async def leave(self) -> None:
        body = {**self._named(LEAVING), "rebalance_timeout": -1, "topic_partitions": None}
        check((await self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, body)).error_code)
        self.forget()

    def forget(self) -> None:
        """It is no member any more: its next heartbeat joins."""
        self.generation = JOINING

    def _named(self, epoch: int) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": self.member_id, "member_epoch": epoch}


async def why_no_consumer_protocol(view: ClusterView) -> str | None:
    """Why the cluster has no groups of this protocol; None if it has. Raises Unreachable."""
    served = await view.ask_any(ApiKey.API_VERSIONS, 0, {})
    reason = f"has not finalized the feature {GROUP_VERSION}"
    if ApiKey.CONSUMER_GROUP_HEARTBEAT not in {row.api_key for row in served.api_keys}:
        reason = "does not serve ConsumerGroupHeartbeat"
    else:
        body = {"client_software_name": view.client.name, "client_software_version": "1"}
        features = (await view.ask_any(ApiKey.API_VERSIONS, FEATURES_VERSION, body)).finalized_features
        if any(row.name == GROUP_VERSION and row.max_version_level >= 1 for row in features):
            return None
    return f"the cluster has no groups of KIP-848: it {reason} (one of ottla has them with broker.api.level=4)"


async def topic_ids(view: ClusterView, topics: Collection[str]) -> dict[uuid.UUID, str]:
    """Id -> name of the topics that exist. Raises Unreachable."""
    rows = [{"topic_id": None, "name": topic} for topic in topics]
    body = {"topics": rows, "allow_auto_topic_creation": False}
    answer = await view.ask_any(ApiKey.METADATA, TOPIC_IDS_VERSION, body)
    return {topic.topic_id: str(topic.name) for topic in answer.topics if topic.topic_id is not None}


def _by_id(partitions: Collection[IdPartition]) -> list[dict[str, Any]]:
    found: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in found.items()]
