"""A cluster as one broker's Metadata response describes it: plain values, no client library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.types import TopicPartition
from tools.admin.topic_views import PartitionView


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live broker and its address for clients."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The live brokers, the controller that the answering broker knows (None if none), and all partitions."""

    controller: int | None
    nodes: tuple[NodeView, ...]
    topics: Mapping[str, tuple[PartitionView, ...]]

    @property
    def live_brokers(self) -> frozenset[int]:
        return frozenset(node.id for node in self.nodes)

    @property
    def assigned_brokers(self) -> frozenset[int]:
        """All brokers that hold a replica, live or not."""
        return frozenset(broker for view in self.partitions().values() for broker in view.replicas)

    @property
    def partition_counts(self) -> dict[str, int]:
        return {topic: len(partitions) for topic, partitions in self.topics.items()}

    def partitions(self) -> dict[TopicPartition, PartitionView]:
        """Every partition of every topic, in order."""
        return {
            TopicPartition(topic, view.partition): view
            for topic, partitions in self.topics.items()
            for view in partitions
        }
