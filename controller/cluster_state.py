"""What the controller knows of the cluster (Kafka's ControllerContext). Pure: reactions change it after ZooKeeper has agreed.

Two indexes, partitions by leader and by replica, make the cost of a broker's death that of its own partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.partition_states import PartitionState
from controller.partition_states import may_become as partition_may_become
from controller.replica_states import ReplicaState
from controller.replica_states import may_become as replica_may_become
from protocol.types import NO_LEADER, Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UNASSIGNED = Assignment(())


@dataclass(slots=True)
class ClusterState:
    """`epoch` is the controller epoch, `epoch_version` the version of its znode, which fences every write (INV-9)."""

    epoch: int = 0
    epoch_version: int = -1
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    topic_ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[int, Assignment]] = field(default_factory=dict)
    leadership: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: dict[tuple[TopicPartition, int], ReplicaState] = field(default_factory=dict)
    _led_by: dict[int, set[TopicPartition]] = field(default_factory=dict)
    _replicas_on: dict[int, set[TopicPartition]] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[int]:
        """Brokers that may lead: registered and not on their way out."""
        return frozenset(self.brokers) - self.stopping

    @property
    def topic_count(self) -> int:
        return len(self.topics)

    def assignment(self, tp: TopicPartition) -> Assignment:
        """The replicas; none for a partition that is not known."""
        return self.topics.get(tp.topic, {}).get(tp.partition, UNASSIGNED)

    def partitions(self) -> Iterable[TopicPartition]:
        for topic, partitions in self.topics.items():
            for partition in partitions:
                yield TopicPartition(topic, partition)

    def led_by(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._led_by.get(broker, ()))

    def replicas_on(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._replicas_on.get(broker, ()))

    def waiting_for_leader(self) -> list[TopicPartition]:
        """New and offline partitions, which a change of the live brokers may bring online."""
        return [
            tp for tp, state in self.partition_states.items() if state in (PartitionState.NEW, PartitionState.OFFLINE)
        ]

    def set_assignment(self, topic: str, topic_id: str | None, assignment: Mapping[int, Assignment]) -> None:
        """The whole topic as `/brokers/topics/<topic>` has it."""
        before = self.topics.get(topic, {})
        for partition, old in before.items():
            for replica in old.replicas:
                self._replicas_on.get(replica, set()).discard(TopicPartition(topic, partition))
        self.topics[topic] = dict(assignment)
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
        for partition, new in assignment.items():
            for replica in new.replicas:
                self._replicas_on.setdefault(replica, set()).add(TopicPartition(topic, partition))

    def set_leadership(self, tp: TopicPartition, state: LeaderAndIsr) -> None:
        """What ZooKeeper has for the partition; a leader epoch that goes back is our own mistake (INV-7)."""
        old = self.leadership.get(tp)
        if old is not None:
            assert state.leader_epoch >= old.leader_epoch, f"{tp}: {old} -> {state}"
            self._led_by.get(old.leader, set()).discard(tp)
        self.leadership[tp] = state
        if state.leader != NO_LEADER:
            self._led_by.setdefault(state.leader, set()).add(tp)

    def remove_topic(self, topic: str) -> list[TopicPartition]:
        """Forgets the topic. Returns its partitions."""
        gone = [TopicPartition(topic, partition) for partition in self.topics.get(topic, {})]
        for tp in gone:
            state = self.leadership.pop(tp, None)
            if state is not None:
                self._led_by.get(state.leader, set()).discard(tp)
            for replica in self.assignment(tp).replicas:
                self._replicas_on.get(replica, set()).discard(tp)
                self.replica_states.pop((tp, replica), None)
            self.partition_states.pop(tp, None)
        self.topics.pop(topic, None)
        self.topic_ids.pop(topic, None)
        return gone

    def move_partition(self, tp: TopicPartition, target: PartitionState) -> bool:
        """Changes the partition's state; False, and logged, when the transition is not allowed (CTL-4)."""
        current = self.partition_states.get(tp, PartitionState.NON_EXISTENT)
        if not partition_may_become(current, target):
            log.error("%s: illegal transition from %s to %s refused", tp, current.value, target.value)
            return False
        if target is PartitionState.NON_EXISTENT:
            del self.partition_states[tp]
        else:
            self.partition_states[tp] = target
        return True

    def move_replica(self, tp: TopicPartition, replica: int, target: ReplicaState) -> bool:
        """Changes the replica's state; False, and logged, when the transition is not allowed (CTL-4)."""
        current = self.replica_states.get((tp, replica), ReplicaState.NON_EXISTENT)
        if not replica_may_become(current, target):
            log.error("%s on %d: illegal transition from %s to %s refused", tp, replica, current.value, target.value)
            return False
        if target is ReplicaState.NON_EXISTENT:
            del self.replica_states[(tp, replica)]
        else:
            self.replica_states[(tp, replica)] = target
        return True

    def imbalanced(self, percentage: int) -> list[TopicPartition]:
        """CTL-12: partitions of brokers too many of whose preferred leaderships are elsewhere."""
        wanted: dict[int, list[TopicPartition]] = {}
        for tp in self.partitions():
            replicas = self.assignment(tp).replicas
            if replicas:
                wanted.setdefault(replicas[0], []).append(tp)
        moved = []
        for broker, partitions in wanted.items():
            elsewhere = [tp for tp in partitions if tp in self.leadership and self.leadership[tp].leader != broker]
            if broker in self.live and 100 * len(elsewhere) > percentage * len(partitions):
                moved += elsewhere
        return moved
