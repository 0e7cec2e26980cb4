"""What `ottla topic list|describe` shows: plain values, Kafka's filters, Kafka's text. No client library."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from protocol.topic_names import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from protocol.types import Assignment, TopicPartition
from tools.admin.config_values import DEFAULT_SOURCE, TOPIC_SOURCE, ConfigValue

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
MIN_ISR = "min.insync.replicas"
NOTHING_KNOWN: Mapping[TopicPartition, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition in the cluster's metadata; `leader` is None if there is none.

    During a reassignment, `replicas` includes those being added and those being removed.
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def replication_factor(self) -> int:
        """The number of replicas without those being added, as in Kafka."""
        return len(self.replicas) - len(self.adding_replicas)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; `configs` is None if the cluster does not support DescribeConfigs."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionView, ...]
    configs: Mapping[str, ConfigValue] | None

    @property
    def replication_factor(self) -> int:
        """The first partition's replication factor, as in Kafka's tool."""
        return self.partitions[0].replication_factor if self.partitions else 0

    @property
    def set_configs(self) -> dict[str, str]:
        """Configs set on the topic or its brokers, which Kafka's tool prints."""
        configs = self.configs or {}
        return {key: config.value or "" for key, config in configs.items() if config.source != DEFAULT_SOURCE}

    @property
    def has_overrides(self) -> bool:
        """Whether a config was set on the topic itself."""
        return any(config.source == TOPIC_SOURCE for config in (self.configs or {}).values())

    @property
    def min_insync_replicas(self) -> int:
        """Raises KeyError if the configs are unknown."""
        return int((self.configs or {})[MIN_ISR].value or "")


class PartitionFilter(Enum):
    """The partition filters of `topic describe`; the value is the option's name."""

    UNDER_REPLICATED = "--under-replicated-partitions"
    UNAVAILABLE = "--unavailable-partitions"
    UNDER_MIN_ISR = "--under-min-isr-partitions"
    AT_MIN_ISR = "--at-min-isr-partitions"

    @property
    def needs_configs(self) -> bool:
        """Whether the filter needs min.insync.replicas."""
        return self in (PartitionFilter.UNDER_MIN_ISR, PartitionFilter.AT_MIN_ISR)


def partition_predicate(
    kind: PartitionFilter, live_brokers: Collection[int]
) -> Callable[[TopicView, PartitionView], bool]:
    """Kafka's definition of the filter; `live_brokers` are the ids in the metadata."""
    match kind:
        case PartitionFilter.UNDER_REPLICATED:
            return lambda _, partition: len(partition.isr) < partition.replication_factor
        case PartitionFilter.UNAVAILABLE:
            return lambda _, partition: partition.leader not in live_brokers
        case PartitionFilter.UNDER_MIN_ISR:
            return lambda topic, partition: len(partition.isr) < topic.min_insync_replicas
        case PartitionFilter.AT_MIN_ISR:
            return lambda topic, partition: len(partition.isr) == topic.min_insync_replicas


def select_topics(names: Iterable[str], patterns: Collection[str], *, exclude_internal: bool = False) -> list[str]:
    """The names that fully match a pattern (all names without patterns), sorted. Raises re.error.

    A pattern that equals a topic's name selects only that topic, although a dot is also a wildcard.
    """
    known = set(names)
    matchers = [re.compile(re.escape(pattern) if pattern in known else pattern) for pattern in patterns]
    return sorted(
        name
        for name in known
        if not (exclude_internal and name in INTERNAL_TOPICS)
        and (not matchers or any(matcher.fullmatch(name) for matcher in matchers))
    )


def describe_lines(topic: TopicView, why_leaderless: Mapping[TopicPartition, str] = NOTHING_KNOWN) -> Iterator[str]:
    """Kafka's lines for one topic: a header, then one line per partition. After a partition without a leader comes the cause."""
    yield header_line(topic)
    for partition in topic.partitions:
        yield partition_line(topic, partition)
        why = why_leaderless.get(TopicPartition(topic.topic, partition.partition))
        if why is not None:
            yield f"\t\t{why}"


def header_line(topic: TopicView) -> str:
    """`Topic: T  TopicId: …  PartitionCount: n  ReplicationFactor: n  Configs: k=v,…`, separated by tabs."""
    configs = ",".join(f"{key}={value}" for key, value in sorted(topic.set_configs.items()))
    return (
        f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {topic.replication_factor}\tConfigs: {configs}"
    )


def partition_line(topic: TopicView, partition: PartitionView) -> str:
    """`Topic: T  Partition: 0  Leader: 1  Replicas: 1,2,3  Isr: 1,2,3`, with a tab before each field.

    During a reassignment, `Adding Replicas: 3  Removing Replicas: 1` follows.
    """
    leader = "none" if partition.leader is None else partition.leader
    moving = (
        f"\tAdding Replicas: {ids_text(partition.adding_replicas)}"
        f"\tRemoving Replicas: {ids_text(partition.removing_replicas)}"
    )
    return (
        f"\tTopic: {topic.topic}\tPartition: {partition.partition}\tLeader: {leader}"
        f"\tReplicas: {ids_text(partition.replicas)}\tIsr: {ids_text(partition.isr)}"
        f"{moving if partition.is_moving else ''}"
    )


def describe_json(topic: TopicView, why_leaderless: Mapping[TopicPartition, str] = NOTHING_KNOWN) -> dict[str, Any]:
    """The topic for scripts; `configs` is null if the cluster does not support DescribeConfigs.

    A partition without a leader also has `why_leaderless`.
    """
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": None if topic.configs is None else topic.set_configs,
        "partitions": [
            partition_json(partition) | ({"why_leaderless": why_leaderless[tp]} if tp in why_leaderless else {})
            for partition in topic.partitions
            for tp in (TopicPartition(topic.topic, partition.partition),)
        ],
    }


def partition_json(partition: PartitionView) -> dict[str, Any]:
    """`{partition, leader, replicas, isr, adding_replicas, removing_replicas}`; leader is null if there is none."""
    return asdict(partition)


def with_moves(topic: TopicView, under_way: Mapping[TopicPartition, Assignment]) -> TopicView:
    """The topic with the reassignments from ListPartitionReassignments."""
    partitions = []
    for partition in topic.partitions:
        move = under_way.get(TopicPartition(topic.topic, partition.partition))
        if move is not None:
            partition = replace(partition, adding_replicas=move.adding, removing_replicas=move.removing)
        partitions.append(partition)
    return replace(topic, partitions=tuple(partitions))


def ids_text(broker_ids: Iterable[int]) -> str:
    """`1,2,3`."""
    return ",".join(str(broker_id) for broker_id in broker_ids)
