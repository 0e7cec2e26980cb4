"""The controller's model of the cluster (Kafka's ControllerContext). Pure: reactions change it after ZooKeeper accepted the change.

Indexes (partitions by leader, by replica, and those without a leader) limit the cost of an event to the partitions that it
concerns. A replica is online by default if its broker is registered and its disk works, else offline; only other states are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from controller.partition_status import PartitionStatus
from controller.partition_status import may_become as partition_may_become
from controller.replica_status import ReplicaStatus
from controller.replica_status import may_become as replica_may_become
from protocol.types import NO_LEADER, Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

UNASSIGNED = Assignment(())
PARTITIONS_IN_A_STEP = 5000
IN_ORDER_SHARE = 8
"""One of so many partitions must be concerned before all partitions are walked to find them in order."""
WITHOUT_LEADER = (PartitionStatus.NEW, PartitionStatus.OFFLINE)
COMPARED_ISRS_MAX = 16_384
DROPPED_AT_REGISTRATION = (ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE)
"""Replica states that end when the broker registers again."""


@lru_cache(maxsize=COMPARED_ISRS_MAX)
def _is_part(isr: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """Whether `isr` has some of the members of `of`, not all, and no others."""
    return set(isr) < set(of)


@dataclass(slots=True)
class ClusterState:
    """`epoch` is the controller epoch of this term.

    `reassigning` has every partition that moves. Partitions in `handed_over` already have only the replicas of the target, and wait until
    the other replicas are deleted. The values of `handed_over` are the assignments that ZooKeeper still has (CTL-10).
    The topics in `deletions_begun`, a part of `topics_to_delete`, no longer have leadership: their partitions are not elected, moved or
    announced.
    `unreadable_topics` are topics whose node cannot be read.
    `without_id` has every topic that has lost its id, with the answers of brokers so far: broker -> id, or NO_TOPIC_ID.
    `failed_replicas` maps a partition to the sorted ids of live brokers on which its log directory failed or its log is missing (LOG-6).
    `emptied_replicas` has those of them that lost their log while in the ISR (FLT-33). A replica that leaves the ISR is removed from
    both, because it then starts empty, like a new replica.
    `isr_before` has, for partitions whose ISR shrank when the leader epoch last changed, this epoch and the ISR before it. If the
    elected leader turns out to have lost its log, nobody has led in this epoch, and the earlier ISR is still right.
    `packed_rows` has the packed partitions of the announcement in progress; a change of a partition removes its row.
    """

    epoch: int = 0
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    topic_ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, dict[int, Assignment]] = field(default_factory=dict)
    leadership: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    reassigning: set[TopicPartition] = field(default_factory=set)
    handed_over: dict[TopicPartition, Assignment] = field(default_factory=dict)
    topics_to_delete: set[str] = field(default_factory=set)
    deletions_begun: set[str] = field(default_factory=set)
    unreadable_topics: set[str] = field(default_factory=set)
    without_id: dict[str, dict[int, str]] = field(default_factory=dict)
    failed_replicas: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    emptied_replicas: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    isr_before: dict[TopicPartition, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    packed_rows: dict[TopicPartition, bytes] = field(default_factory=dict)
    _of_topic: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    _partition_statuses: dict[TopicPartition, PartitionStatus] = field(default_factory=dict)
    _waiting: set[TopicPartition] = field(default_factory=set)
    _replica_statuses: dict[int, dict[TopicPartition, ReplicaStatus]] = field(default_factory=dict)
    _led_by: dict[int, set[TopicPartition]] = field(default_factory=dict)
    _replicas_on: dict[int, set[TopicPartition]] = field(default_factory=dict)

    # -- brokers --------------------------------------------------------------------------------------------------

    @property
    def live(self) -> frozenset[int]:
        """The brokers that may lead: registered and not shutting down."""
        return frozenset(self.brokers) - self.stopping

    def broker_came(self, broker: BrokerInfo) -> None:
        """Adds a broker that registered. The states of replicas that were stopped or not deleted in its earlier life are dropped."""
        self.brokers[broker.id] = broker
        states = self._replica_statuses.get(broker.id, {})
        for tp in [tp for tp, state in states.items() if state in DROPPED_AT_REGISTRATION]:
            del states[tp]

    def broker_went(self, broker: int) -> None:
        """Removes a broker that died. Its unconfirmed deletions become ineligible, and its failed disks are forgotten."""
        for tp in self.failed_on(broker):
            self.forget_failure(tp, broker)
        del self.brokers[broker]
        self.stopping.discard(broker)
        states = self._replica_statuses.get(broker, {})
        for tp in [tp for tp, state in states.items() if state is ReplicaStatus.DELETION_STARTED]:
            self.move_replica(tp, broker, ReplicaStatus.DELETION_INELIGIBLE)

    # -- failed log directories (LOG-6) ---------------------------------------------------------------------------

    def is_online(self, tp: TopicPartition, replica: int) -> bool:
        """Whether the broker is live and the disk of this replica works."""
        return replica in self.brokers and replica not in self.failed_replicas.get(tp, ())

    def with_disk(self, tp: TopicPartition, brokers: Set[int]) -> Set[int]:
        """Those of `brokers` whose disk for this partition works, as far as is known."""
        failed = self.failed_replicas.get(tp)
        return brokers if failed is None else brokers - set(failed)

    def failed_on(self, broker: int) -> list[TopicPartition]:
        return [tp for tp, failed in self.failed_replicas.items() if broker in failed]

    def replica_failed(self, tp: TopicPartition, replica: int) -> None:
        """Records the failure. The replica becomes OfflineReplica, unless it is being deleted."""
        self.failed_replicas[tp] = tuple(sorted({*self.failed_replicas.get(tp, ()), replica}))
        self.packed_rows.pop(tp, None)
        if self.replica_status(tp, replica) is ReplicaStatus.NEW:
            self.move_replica(tp, replica, ReplicaStatus.OFFLINE)

    def mark_log_missing(self, tp: TopicPartition, replica: int) -> None:
        """Records that the replica failed because its log is lost."""
        self.emptied_replicas[tp] = tuple(sorted({*self.emptied_replicas.get(tp, ()), replica}))
        self.replica_failed(tp, replica)

    def forget_failure(self, tp: TopicPartition, replica: int) -> None:
        """Forgets the replica's failure: it works again, or is no longer a replica."""
        emptied = tuple(other for other in self.emptied_replicas.pop(tp, ()) if other != replica)
        if emptied:
            self.emptied_replicas[tp] = emptied
        failed = tuple(other for other in self.failed_replicas.pop(tp, ()) if other != replica)
        if failed:
            self.failed_replicas[tp] = failed
        self.packed_rows.pop(tp, None)

    # -- topics ---------------------------------------------------------------------------------------------------

    def assignment(self, tp: TopicPartition) -> Assignment:
        """The partition's assignment; without replicas for an unknown partition."""
        topic, partition = tp
        try:
            return self.topics[topic][partition]
        except KeyError:
            return UNASSIGNED

    def partitions(self) -> Iterable[TopicPartition]:
        return chain.from_iterable(self._of_topic.values())

    def by_topic(self, some: Set[TopicPartition]) -> Collection[TopicPartition]:
        """The same partitions, topic by topic if they are many. Work on neighbours is faster for the processor's caches."""
        if IN_ORDER_SHARE * len(some) < len(self.leadership):
            return some
        return list(filter(some.__contains__, self.partitions()))

    def size_of(self, topic: str) -> int:
        """The number of the topic's partitions."""
        return len(self.topics.get(topic, ()))

    def set_assignment(self, topic: str, topic_id: str | None, assignment: Mapping[int, Assignment]) -> None:
        """Replaces the topic's assignment with the content of `/brokers/topics/<topic>`."""
        for partition, old in self.topics.get(topic, {}).items():
            for replica in old.replicas:
                self._replicas_on[replica].discard(TopicPartition(topic, partition))
        self.topics[topic] = dict(assignment)
        self._of_topic[topic] = tuple(TopicPartition(topic, partition) for partition in assignment)
        if topic_id is not None:
            self.set_topic_id(topic, topic_id)
        elif topic not in self.topic_ids:
            self.without_id.setdefault(topic, {})
        of_replicas: dict[tuple[int, ...], list[TopicPartition]] = {}
        for tp, new in zip(self._of_topic[topic], assignment.values(), strict=True):
            of_replicas.setdefault(new.replicas, []).append(tp)
            if new.adding or new.removing:
                self.reassigning.add(tp)
            self.packed_rows.pop(tp, None)
        for replicas, partitions in of_replicas.items():
            for replica in replicas:
                self._replicas_on.setdefault(replica, set()).update(partitions)

    def set_topic_id(self, topic: str, topic_id: str) -> None:
        """Sets the id that `/brokers/topics/<topic>` has."""
        self.topic_ids[topic] = topic_id
        self.without_id.pop(topic, None)

    def remove_topic(self, topic: str) -> dict[TopicPartition, Assignment]:
        """Removes the topic. Returns its assignments."""
        gone = {TopicPartition(topic, p): assignment for p, assignment in self.topics.pop(topic, {}).items()}
        self._of_topic.pop(topic, None)
        self.topic_ids.pop(topic, None)
        self.without_id.pop(topic, None)
        self.topics_to_delete.discard(topic)
        self.deletions_begun.discard(topic)
        for tp, assignment in gone.items():
            self.end_move(tp)
            self._remove_leadership(tp)
            self.failed_replicas.pop(tp, None)
            self.emptied_replicas.pop(tp, None)
            self.isr_before.pop(tp, None)
            for replica in assignment.replicas:
                self._replicas_on[replica].discard(tp)
                self._replica_statuses.get(replica, {}).pop(tp, None)
            self._partition_statuses.pop(tp, None)
            self._waiting.discard(tp)
        return gone

    # -- moves of replicas (CTL-10) -------------------------------------------------------------------------------

    def move_of(self, tp: TopicPartition) -> Assignment:
        """The assignment in ZooKeeper. It contains the replicas that are being removed, even after the hand-over."""
        return self.handed_over.get(tp) or self.assignment(tp)

    def begin_move(self, tp: TopicPartition, new: Assignment) -> list[int]:
        """Applies a new assignment from ZooKeeper to a known partition. Returns the replicas to create, which are now NewReplica."""
        before = self.move_of(tp)
        made = [replica for replica in new.replicas if replica not in self.assignment(tp).replicas]
        self.end_move(tp)
        self._assign(tp, new)
        for replica in set(before.replicas) - set(new.replicas):
            self.forget_replica(tp, replica)
        for replica in made:
            self._replica_statuses.setdefault(replica, {})[tp] = ReplicaStatus.NEW
        if new.adding or new.removing:
            self.reassigning.add(tp)
        return made

    def hand_over(self, tp: TopicPartition, target: Assignment) -> list[int]:
        """Reduces the partition to the replicas of the target. Returns the live brokers that must delete their replicas."""
        before = self.assignment(tp)
        for replica in target.replicas:
            if self.is_online(tp, replica):
                self.move_replica(tp, replica, ReplicaStatus.ONLINE)
        removed = [replica for replica in before.replicas if replica not in target.replicas]
        to_delete = [replica for replica in removed if replica in self.brokers]
        for replica in to_delete:
            self.move_replica(tp, replica, ReplicaStatus.OFFLINE)
            self.move_replica(tp, replica, ReplicaStatus.DELETION_STARTED)
        self._assign(tp, target)
        self.handed_over[tp] = before
        return to_delete

    def deletions_awaited(self, tp: TopicPartition) -> list[int]:
        """The brokers that have not confirmed the deletion yet, without those that are dead or failed to delete."""
        assignment = self.handed_over.get(tp, UNASSIGNED)
        return [r for r in assignment.replicas if self.replica_status(tp, r) is ReplicaStatus.DELETION_STARTED]

    def forget_replica(self, tp: TopicPartition, replica: int) -> None:
        """Forgets the state of a replica that no longer belongs to the partition."""
        self._replica_statuses.get(replica, {}).pop(tp, None)
        self.forget_failure(tp, replica)

    def end_move(self, tp: TopicPartition) -> None:
        """Ends the move: ZooKeeper has the assignment without the removed replicas, or the partition was deleted."""
        self.reassigning.discard(tp)
        before = self.handed_over.pop(tp, UNASSIGNED)
        for replica in set(before.replicas) - set(self.assignment(tp).replicas):
            self.forget_replica(tp, replica)

    def _assign(self, tp: TopicPartition, new: Assignment) -> None:
        for replica in self.assignment(tp).replicas:
            self._replicas_on[replica].discard(tp)
        self.topics[tp.topic][tp.partition] = new
        self.packed_rows.pop(tp, None)
        for replica in new.replicas:
            self._replicas_on.setdefault(replica, set()).add(tp)

    # -- deletion (CTL-9) -----------------------------------------------------------------------------------------

    def begin_deletion(self, topic: str) -> list[TopicPartition]:
        """CTL-9: removes the leadership of the topic's partitions; the replicas remain until they are deleted. Returns the partitions."""
        self.deletions_begun.add(topic)
        self.without_id.pop(topic, None)
        partitions = [TopicPartition(topic, partition) for partition in self.topics.get(topic, {})]
        for tp in partitions:
            self._remove_leadership(tp)
            if self.partition_status(tp) is not PartitionStatus.NON_EXISTENT:
                self.move_partition(tp, PartitionStatus.OFFLINE)
                self.move_partition(tp, PartitionStatus.NON_EXISTENT)
        return partitions

    def _remove_leadership(self, tp: TopicPartition) -> None:
        state = self.leadership.pop(tp, None)
        self.packed_rows.pop(tp, None)
        if state is not None:
            self._led_by.get(state.leader, set()).discard(tp)

    def in_sync_brokers(self, topic: str) -> set[int]:
        """The brokers that have an in-sync replica of the topic, and whose disk for it works."""
        return {
            member
            for tp in self._of_topic.get(topic, ())
            if tp in self.leadership
            for member in self.leadership[tp].isr
            if self.is_online(tp, member)
        }

    def replicas_on(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._replicas_on.get(broker, ()))

    # -- leadership -----------------------------------------------------------------------------------------------

    def set_leadership(self, tp: TopicPartition, state: LeaderAndIsr) -> None:
        """Sets the partition's state from ZooKeeper. A leader epoch lower than the known one is a bug of ours (INV-7)."""
        old = self.leadership.get(tp)
        if old is not None:
            assert state.leader_epoch >= old.leader_epoch, f"{tp}: {old} -> {state}"
            if old.leader != state.leader:
                self._led_by.get(old.leader, set()).discard(tp)
            if old.leader_epoch != state.leader_epoch:
                self.isr_before.pop(tp, None)
                if _is_part(state.isr, old.isr):
                    self.isr_before[tp] = state.leader_epoch, old.isr
        self.leadership[tp] = state
        self._forget_emptied_outside(tp, state.isr)
        self.packed_rows.pop(tp, None)
        if state.leader != NO_LEADER:
            self._led_by.setdefault(state.leader, set()).add(tp)

    def set_written(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> int:
        """Like `set_leadership` for many partitions, whose states this controller wrote. The partitions become Online or Offline.

        Returns the number of partitions that got another leader.
        """
        leadership, isr_before = self.leadership, self.isr_before
        lost: dict[int, list[TopicPartition]] = {}
        gained: dict[int, list[TopicPartition]] = {}
        offline: list[TopicPartition] = []
        shrunken: dict[TopicPartition, tuple[int, tuple[int, ...]]] = {}
        for tp, old, state in zip(states, map(leadership.get, states), states.values(), strict=True):
            leader, leader_epoch, isr, _, _ = state
            if leader == NO_LEADER:
                offline.append(tp)
            if old is None:
                gained.setdefault(leader, []).append(tp)
                continue
            old_leader, old_epoch, old_isr, _, _ = old
            assert leader_epoch >= old_epoch, f"{tp}: {old} -> {state}"
            if old_leader != leader:
                lost.setdefault(old_leader, []).append(tp)
                gained.setdefault(leader, []).append(tp)
            if old_epoch != leader_epoch:
                if _is_part(isr, old_isr):
                    shrunken[tp] = leader_epoch, old_isr
                else:
                    isr_before.pop(tp, None)
        leadership.update(states)
        isr_before.update(shrunken)
        if self.emptied_replicas:
            for tp, state in states.items():
                self._forget_emptied_outside(tp, state.isr)
        gained.pop(NO_LEADER, None)
        self.move_partitions(offline, PartitionStatus.OFFLINE)
        for partitions in gained.values():
            self.move_partitions(partitions, PartitionStatus.ONLINE)
        waiting = self._waiting.intersection(states)
        self.move_partitions([tp for tp in waiting if states[tp].leader != NO_LEADER], PartitionStatus.ONLINE)
        for leader, partitions in lost.items():
            self._led_by.get(leader, set()).difference_update(partitions)
        for leader, partitions in gained.items():
            self._led_by.setdefault(leader, set()).update(partitions)
        if not self.packed_rows.keys().isdisjoint(states):
            for tp in states:
                self.packed_rows.pop(tp, None)
        return sum(map(len, gained.values()))

    def _forget_emptied_outside(self, tp: TopicPartition, isr: Collection[int]) -> None:
        """A replica that lost its log and is not in the ISR is no longer known as failed: it starts empty, like a new one."""
        for replica in self.emptied_replicas.get(tp, ()):
            if replica not in isr:
                self.forget_failure(tp, replica)

    def load_leadership(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        """Like `set_leadership` for many partitions, none of which has a known state: for the start of a term."""
        assert self.leadership.keys().isdisjoint(states)
        self.leadership.update(states)
        led_by: dict[int, list[TopicPartition]] = {}
        for tp, state in states.items():
            led_by.setdefault(state.leader, []).append(tp)
        led_by.pop(NO_LEADER, None)
        for leader, partitions in led_by.items():
            self._led_by.setdefault(leader, set()).update(partitions)

    def leads_one_of(self, broker: int, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the broker leads one of the partitions."""
        return not self._led_by.get(broker, set()).isdisjoint(partitions)

    def led_by(self, broker: int) -> frozenset[TopicPartition]:
        return frozenset(self._led_by.get(broker, ()))

    def offline_partitions(self) -> int:
        """The number of partitions without a leader. Those that were never led, or are being deleted, do not count."""
        statuses = self._partition_statuses
        waiting = [tp for tp in list(self._waiting) if statuses.get(tp) is PartitionStatus.OFFLINE]
        return sum(tp.topic not in self.topics_to_delete for tp in waiting)

    def counting_imbalanced(self) -> Iterator[int]:
        """Yields, topic by topic, how many partitions are not led by their first replica (Kafka's PreferredReplicaImbalanceCount)."""
        for topic, partitions in list(self._of_topic.items()):
            leaders = [self.leadership.get(tp) for tp in partitions]
            if topic not in self.topics_to_delete:
                yield sum(
                    state is not None and state.leader not in self.assignment(tp).replicas[:1]
                    for tp, state in zip(partitions, leaders, strict=True)
                )

    def deletion_counts(self) -> tuple[int, int]:
        """(replicas that are to be deleted, those of them whose deletion has to wait)"""
        replicas = waiting = 0
        for topic in list(self.topics_to_delete):
            for partition, assignment in list(self.topics.get(topic, {}).items()):
                tp = TopicPartition(topic, partition)
                replicas += len(assignment.replicas)
                waiting += sum(
                    self.replica_status(tp, replica) is ReplicaStatus.DELETION_INELIGIBLE
                    for replica in assignment.replicas
                )
        return replicas, waiting

    def waiting_for_leader(self, brokers: Collection[int] | None = None) -> list[TopicPartition]:
        """New and offline partitions; with `brokers` only those that have a replica on one of these brokers."""
        if brokers is None:
            return list(self._waiting)
        return [tp for tp in self._waiting if any(replica in brokers for replica in self.assignment(tp).replicas)]

    def finding_imbalanced(self, percentage: int) -> Generator[None, None, list[TopicPartition]]:
        """CTL-12: the partitions that the live brokers should lead again. A broker prefers the partitions whose first replica it has.

        The result has those that it does not lead, if they are more than `percentage` percent of the partitions that it prefers.
        Partitions that are being reassigned or deleted count towards the percentage, as in Kafka, but are left out of the result.
        Other tasks can run at the pauses, but must not change this state.
        """
        preferring: dict[int, int] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for at, tp in enumerate(self.partitions(), 1):
            if at % PARTITIONS_IN_A_STEP == 0:
                yield
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
            if tp not in self.reassigning and tp.topic not in self.topics_to_delete
        ]

    # -- the state machines (CTL-4) -------------------------------------------------------------------------------

    def start_state_machines(self) -> None:
        """Derives the states of all partitions from the loaded content of ZooKeeper, at the start of a term."""
        states: dict[TopicPartition, PartitionStatus] = {}
        brokers, leadership, deletions_begun = self.brokers, self.leadership, self.deletions_begun
        for tp in self.partitions():
            if tp[0] in deletions_begun:
                continue
            state = leadership.get(tp)
            if state is None:
                states[tp] = PartitionStatus.NEW
            else:
                states[tp] = PartitionStatus.ONLINE if state[0] in brokers else PartitionStatus.OFFLINE
        self._partition_statuses.update(states)
        self._waiting = {tp for tp, status in states.items() if status in WITHOUT_LEADER}

    def partition_status(self, tp: TopicPartition) -> PartitionStatus:
        return self._partition_statuses.get(tp, PartitionStatus.NON_EXISTENT)

    def move_partition(self, tp: TopicPartition, target: PartitionStatus) -> bool:
        """Changes the partition's state; returns False, and logs it, if the transition is not allowed."""
        current = self.partition_status(tp)
        if not partition_may_become(current, target):
            log.error("%s: illegal transition from %s to %s refused", tp, current.value, target.value)
            return False
        self._set_partition_status(tp, target)
        return True

    def move_partitions(self, partitions: Iterable[TopicPartition], target: PartitionStatus) -> None:
        """Like `move_partition` for many partitions, most of which have the same state. Those in the target's state stay as they are."""
        statuses = self._partition_statuses
        moved: dict[TopicPartition, PartitionStatus] = {}
        before, may_move = target, False
        for tp in partitions:
            current = statuses.get(tp, PartitionStatus.NON_EXISTENT)
            if current is not before:
                before, may_move = current, current is not target and partition_may_become(current, target)
            if may_move:
                moved[tp] = target
            elif current is not target:
                self.move_partition(tp, target)  # logs the refusal
        if target is PartitionStatus.NON_EXISTENT:
            for tp in moved:
                self._set_partition_status(tp, target)
            return
        statuses.update(moved)
        if target in WITHOUT_LEADER:
            self._waiting.update(moved)
        else:
            self._waiting.difference_update(moved)

    def _set_partition_status(self, tp: TopicPartition, state: PartitionStatus) -> None:
        if state is PartitionStatus.NON_EXISTENT:
            self._partition_statuses.pop(tp, None)
        else:
            self._partition_statuses[tp] = state
        if state in WITHOUT_LEADER:
            self._waiting.add(tp)
        else:
            self._waiting.discard(tp)

    def replica_status(self, tp: TopicPartition, replica: int) -> ReplicaStatus:
        stored = self._replica_statuses.get(replica, {}).get(tp)
        return stored if stored is not None else self._replica_state_by_broker(tp, replica)

    def _replica_state_by_broker(self, tp: TopicPartition, replica: int) -> ReplicaStatus:
        if tp not in self._replicas_on.get(replica, ()):
            return ReplicaStatus.NON_EXISTENT
        return ReplicaStatus.ONLINE if self.is_online(tp, replica) else ReplicaStatus.OFFLINE

    def add_replicas(self, tp: TopicPartition) -> None:
        """Makes the replicas of a newly assigned partition NewReplica."""
        for replica in self.assignment(tp).replicas:
            self._replica_statuses.setdefault(replica, {})[tp] = ReplicaStatus.NEW

    def move_replica(self, tp: TopicPartition, replica: int, target: ReplicaStatus) -> bool:
        """Changes the replica's state; returns False, and logs it, if the transition is not allowed."""
        current = self.replica_status(tp, replica)
        if not replica_may_become(current, target):
            log.error("%s on %d: illegal transition from %s to %s refused", tp, replica, current.value, target.value)
            return False
        if target is self._replica_state_by_broker(tp, replica):
            self._replica_statuses.get(replica, {}).pop(tp, None)
        else:
            self._replica_statuses.setdefault(replica, {})[tp] = target
        return True
