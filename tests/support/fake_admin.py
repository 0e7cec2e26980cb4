"""A cluster in memory behind the admin client's methods, for tests of commands without a broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from protocol.types import Assignment, TopicPartition
from tools.admin import kafka_admin, reassign_directories, reassign_run
from tools.admin.cluster_view import ClusterView, NodeView
from tools.admin.config_values import TOPICS, ConfigValue, Entity
from tools.admin.reassign_plan import Place, Replica
from tools.admin.topic_views import PartitionView, TopicView
from tools.failures import AdminError

KNOWN_KEYS = {"retention.ms": "604800000", "min.insync.replicas": "1"}
LEADER_BYTES = 1000


@dataclass
class FakeCluster:
    """`replicas` are partition -> replicas, the first leads if it is live; `live` is broker -> rack.

    A move takes as many looks (`reassignments`) as `looks_per_move` says. `calls` has every change in order.
    """

    replicas: dict[TopicPartition, tuple[int, ...]]
    live: dict[int, str | None]
    controller: int | None = 1
    configs: dict[Entity, dict[str, str]] = field(default_factory=dict)
    under_way: dict[TopicPartition, Assignment] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    elections: dict[TopicPartition, tuple[str, str] | None] = field(default_factory=dict)
    looks_per_move: int = 2
    silent_looks: int = 0
    interrupt_at_look: int | None = None
    places: dict[Replica, Place] = field(default_factory=dict)
    refused_directories: dict[Replica, tuple[str, str]] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}
        self.looks_left: dict[TopicPartition, int] = {}
        self.looks = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
        """Replaces the client by this cluster, and removes all pauses."""
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "fake:1")
        monkeypatch.setattr(kafka_admin, "KafkaAdmin", lambda *_arguments, **_options: self)
        monkeypatch.setattr(reassign_run, "POLL_S", 0.0)
        monkeypatch.setattr(reassign_directories, "POLL_S", 0.0)
        monkeypatch.setattr(reassign_run, "SETTLE_S", 0.0)
        return self

    def cluster(self) -> ClusterView:
        topics: dict[str, list[PartitionView]] = {}
        for partition, replicas in sorted(self.replicas.items()):
            adding = self.under_way[partition].adding if partition in self.under_way else ()
            in_sync = tuple(broker for broker in replicas if broker in self.live and broker not in adding)
            view = PartitionView(partition.partition, in_sync[0] if in_sync else None, replicas, in_sync)
            topics.setdefault(partition.topic, []).append(view)
        return ClusterView(
            self.controller,
            tuple(NodeView(broker, "host", 9000 + broker, rack) for broker, rack in sorted(self.live.items())),
            {topic: tuple(partitions) for topic, partitions in topics.items()},
        )

    def describe_topics(self, topics: Sequence[str]) -> list[TopicView]:
        known = self.cluster().topics
        return [TopicView(topic, "id", known[topic], {}) for topic in topics]

    def delete_topic(self, topic: str) -> bool:
        self.calls.append(("delete", topic))
        gone = [partition for partition in self.replicas if partition.topic == topic]
        for partition in gone:
            del self.replicas[partition]
        return bool(gone)

    def create_partitions(self, topic: str, total: int, added: Sequence[Sequence[int]] | None = None) -> None:
        self.calls.append(("partitions", topic, total, added))

    def alter_configs(self, entity: Entity, changes: Mapping[str, str | None]) -> None:
        unknown = [key for key in changes if entity.kind == TOPICS and key not in KNOWN_KEYS and "throttled" not in key]
        if unknown:
            raise AdminError(f"configs of {entity} were not changed: Unknown topic config name: {unknown[0]}")
        self.calls.append(("configs", str(entity), dict(changes)))
        own = self.configs.setdefault(entity, {})
        for key, value in changes.items():
            if value is None:
                del own[key]
            else:
                own[key] = value

    def describe_configs(self, entities: Sequence[Entity]) -> dict[Entity, dict[str, ConfigValue]]:
        return {
            entity: {key: ConfigValue(value, "DEFAULT_CONFIG") for key, value in KNOWN_KEYS.items()}
            | {key: ConfigValue(value, entity.own_source) for key, value in self.configs.get(entity, {}).items()}
            for entity in entities
        }

    def reassignments(self, patience_s: float = 0) -> dict[TopicPartition, Assignment]:
        self.looks += 1
        if self.looks == self.interrupt_at_look:
            raise KeyboardInterrupt
        if self.silent_looks and self.targets:
            self.silent_looks -= 1
            raise AdminError("no controller is elected")
        for partition in list(self.targets):
            self.looks_left[partition] -= 1
            if self.looks_left[partition] < 0:
                self.replicas[partition] = self.targets.pop(partition)
                del self.under_way[partition]
        return dict(self.under_way)

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, str | None]:
        self.calls.append(("reassign", {str(partition): target for partition, target in targets.items()}))
        for partition, target in targets.items():
            if partition not in self.refused:
                self._begin(partition, target)
        return {partition: self.refused.get(partition) for partition in targets}

    def _begin(self, partition: TopicPartition, target: Sequence[int] | None) -> None:
        if target is None:
            move = self.under_way.pop(partition)
            self.targets.pop(partition, None)
            self.replicas[partition] = tuple(b for b in move.replicas if b not in move.adding)
            return
        before = self.replicas[partition]
        adding = tuple(broker for broker in target if broker not in before)
        removing = tuple(broker for broker in before if broker not in target)
        self.under_way[partition] = Assignment((*target, *removing), adding, removing)
        self.replicas[partition] = (*target, *removing)
        self.targets[partition] = tuple(target)
        self.looks_left[partition] = self.looks_per_move

    def replica_sizes(
        self, brokers: Collection[int], partitions: Collection[TopicPartition]
    ) -> dict[tuple[int, TopicPartition], int]:
        """A new replica has half of the bytes."""
        sizes = {}
        for partition in partitions:
            move = self.under_way.get(partition, Assignment(self.replicas[partition]))
            for broker in set(move.replicas) & set(brokers):
                sizes[broker, partition] = LEADER_BYTES // 2 if broker in move.adding else LEADER_BYTES
        return sizes

    def alter_log_directories(self, targets: Mapping[Replica, str]) -> dict[Replica, tuple[str, str] | None]:
        """Starts a copy. The second look finds it in its place."""
        self.calls.append(("directories", {str(replica): target for replica, target in targets.items()}))
        for replica, target in targets.items():
            place = self.places.get(replica, Place("/old"))
            if replica not in self.refused_directories and place.current != target:
                self.places[replica] = Place(place.current, target)
        return {replica: self.refused_directories.get(replica) for replica in targets}

    def log_directories(self, replicas: Collection[Replica]) -> dict[Replica, Place]:
        found = {replica: self.places[replica] for replica in replicas if replica in self.places}
        for replica, place in found.items():
            self.places[replica] = Place(place.future or place.current)
        return found

    def replicas_without_log(self, replicas: Collection[Replica]) -> set[Replica]:
        """None: every replica has a log."""
        return set()

    def elect_leaders(
        self, *, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, tuple[str, str] | None]:
        self.calls.append(("elect", unclean, None if partitions is None else [str(p) for p in partitions]))
        asked = self.elections if partitions is None else partitions
        return {partition: self.elections[partition] for partition in asked}


def three_brokers(**options: Any) -> FakeCluster:
    """orders-0 on 1 and 2, orders-1 on 2 and 3; brokers 1 to 3 live."""
    replicas = {TopicPartition("orders", 0): (1, 2), TopicPartition("orders", 1): (2, 3)}
    return replace(FakeCluster(replicas, {1: None, 2: None, 3: None}), **options)
