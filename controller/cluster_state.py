"""What the controller knows of the cluster (Kafka's ControllerContext). Pure: reactions change it after ZooKeeper has agreed.

Indexes (partitions by leader, by replica, and those that wait for a leader) make the cost of an event that of the partitions
it concerns. A replica's state is not stored as long as it follows from its broker: online where that is registered, else offline.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from controller.partition_states import PartitionState
from controller.partition_states import may_become as partition_may_become
from controller.replica_states import ReplicaState
from controller.replica_states import may_become as replica_may_become
from protocol.types import NO_LEADER, Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UNASSIGNED = Assignment(())
WITHOUT_LEADER = (PartitionState.NEW, PartitionState.OFFLINE)


@dataclass(slots=True)
class ClusterState:
    """`epoch` is the controller epoch of this term."""

    epoch: int = 0
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    topic_ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[int, Assignment]] = field(default_factory=dict)
    leadership: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    _partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    _waiting: set[TopicPartition] = field(default_factory=set)
    _replica_states: dict[int, dict[TopicPartition, ReplicaState]] = field(default_factory=dict)
    _led_by: dict[int, set[TopicPartition]] = field(default_factory=dict)
    _replicas_on: dict[int, set[TopicPartition]] = field(default_factory=dict)

    # -- brokers --------------------------------------------------------------------------------------------------

    @property
    def live(self) -> frozenset[int]:
        """Brokers that may lead: registered and not on their way out."""
        return frozenset(self.brokers) - self.stopping

    def broker_came(self, broker: BrokerInfo) -> None:
        """A new life: what its replicas were told to stop in an earlier one is forgotten."""
        self.brokers[broker.id] = broker
        states = self._replica_states.get(broker.id, {})
        for tp in [tp for tp, state in states.items() if state is ReplicaState.OFFLINE]:
            del states[tp]

    def broker_went(self, broker: int) -> None:
        del self.brokers[broker]
        self.stopping.discard(broker)

    # -- topics ---------------------------------------------------------------------------------------------------

    def assignment(self, tp: TopicPartition) -> Assignment:
        """The replicas; none for a partition that is not known."""
        return self.topics.get(tp.topic, {}).get(tp.partition, UNASSIGNED)

    def partitions(self) -> Iterable[TopicPartition]:
        for topic, partitions in self.topics.items():
            for partition in partitions:
                yield TopicPartition(topic, partition)

    def set_assignment(self, topic: str, topic_id: str | None, assignment: Mapping[int, Assignment]) -> None:
        """The whole topic, as `/brokers/topics/<topic>` has it."""
        for partition, old in self.topics.get(topic, {}).items():
            for replica in old.replicas:
                self._replicas_on[replica].discard(TopicPartition(topic, partition))
        self.topics[topic] = dict(assignment)
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
        for partition, new in assignment.items():
            tp = TopicPartition(topic, partition)
            for replica in new.replicas:
                self._replicas_on.setdefault(replica, set()).add(tp)

    def remove_topic(self, topic: str) -> dict[TopicPartition, Assignment]:
        """Forgets the topic. Returns what it had."""
        gone = {TopicPartition(topic, p): assignment for p, assignment in self.topics.pop(topic, {}).items()}
        self.topic_ids.pop(topic, None)
        for tp, assignment in gone.items():
            state = self.leadership.pop(tp, None)
            if state is not None:
                self._led_by.get(state.leader, set()).discard(tp)
            for replica in assignment.replicas:
                self._replicas_on[replica].discard(tp)
                self._replica_states.get(replica, {}).pop(tp, None)
            self._partition_states.pop(tp, None)
            self._waiting.discard(tp)
        return gone

    def replicas_on(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._replicas_on.get(broker, ()))

    # -- leadership -----------------------------------------------------------------------------------------------

    def set_leadership(self, tp: TopicPartition, state: LeaderAndIsr) -> None:
        """What ZooKeeper has for the partition; a leader epoch that goes back is our own mistake (INV-7)."""
        old = self.leadership.get(tp)
        if old is not None:
            assert state.leader_epoch >= old.leader_epoch, f"{tp}: {old} -> {state}"
            if old.leader != state.leader:
                self._led_by.get(old.leader, set()).discard(tp)
        self.leadership[tp] = state
        if state.leader != NO_LEADER:
            self._led_by.setdefault(state.leader, set()).add(tp)

    def led_by(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._led_by.get(broker, ()))

    def waiting_for_leader(self, brokers: Collection[int] | None = None) -> list[TopicPartition]:
        """New and offline partitions; with `brokers` only those which have a replica there, and may come online with them."""
        if brokers is None:
            return list(self._waiting)
        return [tp for tp in self._waiting if any(replica in brokers for replica in self.assignment(tp).replicas)]

    def imbalanced(self, percentage: int) -> list[TopicPartition]:
        """CTL-12: partitions of live brokers too many of whose preferred leaderships are elsewhere."""
        preferring: dict[int, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for tp in self.partitions():
            replicas, state = self.assignment(tp).replicas, self.leadership.get(tp)
            if not replicas or state is None:
                continue
            preferring[replicas[0]] = preferring.get(replicas[0], 0) + 1
            if state.leader != replicas[0]:
                elsewhere.setdefault(replicas[0], []).append(tp)
        live = self.live
        return [
            tp
            for broker, partitions in elsewhere.items()
            if broker in live and 100 * len(partitions) > percentage * preferring[broker]
            for tp in partitions
        ]

    # -- the state machines (CTL-4) -------------------------------------------------------------------------------

    def start_state_machines(self) -> None:
        """At the beginning of a term the states follow from what ZooKeeper has."""
        for tp in self.partitions():
            state = self.leadership.get(tp)
            if state is None:
                self._set_partition_state(tp, PartitionState.NEW)
            else:
                is_led = state.leader in self.brokers
                self._set_partition_state(tp, PartitionState.ONLINE if is_led else PartitionState.OFFLINE)

    def partition_state(self, tp: TopicPartition) -> PartitionState:
        return self._partition_states.get(tp, PartitionState.NON_EXISTENT)

    def move_partition(self, tp: TopicPartition, target: PartitionState) -> bool:
        """Changes the partition's state; False, and logged, when the transition is not allowed."""
        current = self.partition_state(tp)
        if not partition_may_become(current, target):
            log.error("%s: illegal transition from %s to %s refused", tp, current.value, target.value)
            return False
        self._set_partition_state(tp, target)
        return True

    def _set_partition_state(self, tp: TopicPartition, state: PartitionState) -> None:
        if state is PartitionState.NON_EXISTENT:
            self._partition_states.pop(tp, None)
        else:
            self._partition_states[tp] = state
        if state in WITHOUT_LEADER:
            self._waiting.add(tp)
        else:
            self._waiting.discard(tp)

    def replica_state(self, tp: TopicPartition, replica: int) -> ReplicaState:
        stored = self._replica_states.get(replica, {}).get(tp)
        return stored if stored is not None else self._replica_state_by_broker(tp, replica)

    def _replica_state_by_broker(self, tp: TopicPartition, replica: int) -> ReplicaState:
        if tp not in self._replicas_on.get(replica, ()):
            return ReplicaState.NON_EXISTENT
        return ReplicaState.ONLINE if replica in self.brokers else ReplicaState.OFFLINE

    def add_replicas(self, tp: TopicPartition) -> None:
        """The replicas of a partition that was just assigned begin as NewReplica."""
        for replica in self.assignment(tp).replicas:
            self._replica_states.setdefault(replica, {})[tp] = ReplicaState.NEW

    def move_replica(self, tp: TopicPartition, replica: int, target: ReplicaState) -> bool:
        """Changes the replica's state; False, and logged, when the transition is not allowed."""
        current = self.replica_state(tp, replica)
        if not replica_may_become(current, target):
            log.error("%s on %d: illegal transition from %s to %s refused", tp, replica, current.value, target.value)
            return False
        if target is self._replica_state_by_broker(tp, replica):
            self._replica_states.get(replica, {}).pop(tp, None)
        else:
            self._replica_states.setdefault(replica, {})[tp] = target
        return True
