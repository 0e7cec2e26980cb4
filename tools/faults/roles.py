"""Finds the broker that has a role now. Asks running brokers (Metadata, FindCoordinator), so it also works while ZooKeeper is down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from protocol.conversation.rule import LOOKS_FOR_ROLES
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tools.faults.cluster import Cluster, State
from tools.faults.words import Role
from tools.wire.client import ask
from tools.wire.security import Security

ANSWER_TIMEOUT_S = 1.0
METADATA_VERSION = 9
FIND_COORDINATOR_VERSION = 3
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""FindCoordinator's `key_type`."""
NO_SUCH_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
HOW_MANY = {"broker": 1, "two brokers": 2, "all brokers": None}

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`leader` is None if nobody leads."""

    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def followers(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker != self.leader)

    def is_in_sync(self) -> bool:
        return self.leader in self.isr and set(self.isr) == set(self.replicas)


class Roles:
    """The roles in a cluster. A method returns None if nobody has the role, or if the broker that had it has just ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _security(self) -> Security:
        return self._cluster.security

    def controller(self) -> int | None:
        body = {"topics": [], "allow_auto_topic_creation": False}
        return self._ask(ApiKey.METADATA, METADATA_VERSION, body, lambda answer: self._running(answer.controller_id))

    def coordinator(self, group: str) -> int | None:
        return self._find_coordinator(group, GROUP_KEY)

    def transaction_coordinator(self, transactional_id: str) -> int | None:
        """None also while the brokers create `__transaction_state`, which the first request starts."""
        return self._find_coordinator(transactional_id, TRANSACTION_KEY)

    def _find_coordinator(self, key: str, key_type: int) -> int | None:
        body = {"key": key, "key_type": key_type}
        return self._ask(
            ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, body, lambda answer: self._running(answer.node_id)
        )

    def leader(self, topic: str, partition: int) -> int | None:
        view = self.partitions(topic).get(partition)
        return None if view is None or view.leader is None else self._running(view.leader)

    def follower(self, topic: str, partition: int) -> int | None:
        """The first follower, in the order of the assignment, that runs."""
        view = self.partitions(topic).get(partition)
        followers = () if view is None else view.followers()
        return next((broker for broker in followers if self._running(broker) is not None), None)

    def partitions(self, topic: str) -> dict[int, PartitionView]:
        """Partition -> view; empty if no broker knows the topic."""
        return self._ask(ApiKey.METADATA, METADATA_VERSION, _about(topic), _partitions) or {}

    def partitions_by(self, topic: str, broker: int) -> dict[int, PartitionView]:
        """The same, as this broker knows it; empty if it does not answer."""
        answer = ask(
            self._cluster.address(broker),
            ANSWER_TIMEOUT_S,
            ApiKey.METADATA,
            METADATA_VERSION,
            _about(topic),
            LOOKS_FOR_ROLES,
            self._security,
        )
        return {} if answer is None else _partitions(answer) or {}

    def topics(self) -> dict[str, int]:
        """Topic -> number of partitions, without internal topics; empty if no broker answers."""
        body = {"topics": None, "allow_auto_topic_creation": False}
        return self._ask(ApiKey.METADATA, METADATA_VERSION, body, _topics) or {}

    def of(self, role: Role) -> int | None:
        """The broker that has a role in words. Callers resolve `it`, `broker` and `zookeeper` themselves."""
        if role.kind in ("leader", "follower"):
            find = self.leader if role.kind == "leader" else self.follower
            return find(role.topic, role.partition)
        if role.kind == "coordinator":
            return self.coordinator(role.name)
        if role.kind == "transaction-coordinator":
            return self.transaction_coordinator(role.name)
        return self.controller()

    def why_never(self, role: Role) -> str | None:
        """Why no broker can have the role: there is no such partition, or it has no follower. None if one may have it later."""
        if role.kind not in ("leader", "follower"):
            return None
        partitions = self.partitions(role.topic)
        if not partitions:
            is_unknown = self._ask(ApiKey.METADATA, METADATA_VERSION, _about(role.topic), _is_unknown)
            return f"there is no topic {role.topic}" if is_unknown else None
        if role.partition not in partitions:
            return (
                f"there is no partition {role.topic}-{role.partition}: the topic has {len(partitions)}, numbered from 0"
            )
        if role.kind == "follower" and not partitions[role.partition].replicas[1:]:
            return f"{role.topic}-{role.partition} has one replica, so nobody follows"
        return None

    def some(self, role: str, order: Sequence[int]) -> Sequence[int]:
        """The brokers for a role of a schedule: the first ones of `order`, or the controller (the first of `order` if there is none)."""
        if role == "controller":
            return [self.controller() or order[0]]
        return order[: HOW_MANY[role]]

    def _ask(
        self, api_key: ApiKey, version: int, body: Mapping[str, Any], read: Callable[[Any], Answer | None]
    ) -> Answer | None:
        """Asks the running brokers in turn and returns the first result of `read` that is not None."""
        for broker in self._cluster.broker_ids:
            if self._cluster.broker(broker).state() is not State.RUNNING:
                continue
            answer = ask(
                self._cluster.address(broker), ANSWER_TIMEOUT_S, api_key, version, body, LOOKS_FOR_ROLES, self._security
            )
            found = None if answer is None else read(answer)
            if found is not None:
                return found
        return None

    def _running(self, broker: int) -> int | None:
        """The broker, also while it is paused."""
        if broker not in self._cluster.broker_ids or self._cluster.broker(broker).state() is State.ENDED:
            return None
        return int(broker)


def _about(topic: str) -> dict[str, Any]:
    return {"topics": [{"name": topic}], "allow_auto_topic_creation": False}


def _topics(answer: Any) -> dict[str, int]:
    return {
        str(topic.name): len(topic.partitions)
        for topic in answer.topics
        if not topic.error_code and not topic.is_internal
    }


def _is_unknown(answer: Any) -> bool | None:
    """None: the broker has no metadata yet."""
    (topic,) = answer.topics
    return topic.error_code in NO_SUCH_TOPIC if answer.controller_id >= 0 else None


def _partitions(answer: Any) -> dict[int, PartitionView] | None:
    (topic,) = answer.topics
    if topic.error_code or not topic.partitions:
        return None
    return {
        int(partition.partition_index): PartitionView(
            int(partition.leader_id) if partition.leader_id >= 0 else None,
            tuple(map(int, partition.replica_nodes)),
            tuple(map(int, partition.isr_nodes)),
        )
        for partition in topic.partitions
    }
