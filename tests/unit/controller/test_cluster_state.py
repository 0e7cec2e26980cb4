"""The indexes agree with the state after any history, and illegal transitions are refused (CTL-4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import cluster_state, partition_status, replica_status
from controller.cluster_state import ClusterState
from controller.decisions import reassignment
from controller.partition_status import PartitionStatus
from controller.replica_status import ReplicaStatus
from protocol.types import NO_LEADER, Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

PARTITION_MOVES = {
    ("NonExistentPartition", "NewPartition"),
    ("NewPartition", "OnlinePartition"),
    ("NewPartition", "OfflinePartition"),
    ("OnlinePartition", "OnlinePartition"),
    ("OnlinePartition", "OfflinePartition"),
    ("OfflinePartition", "OnlinePartition"),
    ("OfflinePartition", "OfflinePartition"),
    ("OfflinePartition", "NonExistentPartition"),
}
REPLICA_MOVES = {
    ("NonExistentReplica", "NewReplica"),
    ("NewReplica", "OnlineReplica"),
    ("OnlineReplica", "OnlineReplica"),
    ("OfflineReplica", "OnlineReplica"),
    ("ReplicaDeletionIneligible", "OnlineReplica"),
    ("NewReplica", "OfflineReplica"),
    ("OnlineReplica", "OfflineReplica"),
    ("OfflineReplica", "OfflineReplica"),
    ("ReplicaDeletionIneligible", "OfflineReplica"),
    ("OfflineReplica", "ReplicaDeletionStarted"),
    ("ReplicaDeletionStarted", "ReplicaDeletionSuccessful"),
    ("ReplicaDeletionStarted", "ReplicaDeletionIneligible"),
    ("OfflineReplica", "ReplicaDeletionIneligible"),
    ("ReplicaDeletionSuccessful", "NonExistentReplica"),
}


def test_partition_transitions_are_kafkas() -> None:
    allowed = {
        (a.value, b.value) for a, b in itertools.product(PartitionStatus, repeat=2) if partition_status.may_become(a, b)
    }
    assert allowed == PARTITION_MOVES


def test_replica_transitions_are_kafkas() -> None:
    allowed = {
        (a.value, b.value) for a, b in itertools.product(ReplicaStatus, repeat=2) if replica_status.may_become(a, b)
    }
    assert allowed == REPLICA_MOVES


def cluster_with(brokers: tuple[int, ...], assignment: dict[int, tuple[int, ...]]) -> ClusterState:
    cluster = ClusterState(epoch=1)
    for broker in brokers:
        cluster.broker_came(BrokerInfo(broker, broker * 10, ()))
    cluster.set_assignment("t", "id", {p: Assignment(replicas) for p, replicas in assignment.items()})
    return cluster


def test_an_illegal_transition_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_with((1, 2), {0: (1, 2)})
    assert not cluster.move_partition(T0, PartitionStatus.ONLINE)
    assert cluster.partition_status(T0) is PartitionStatus.NON_EXISTENT
    assert not cluster.move_replica(T0, 1, ReplicaStatus.DELETION_STARTED)
    assert cluster.replica_status(T0, 1) is ReplicaStatus.ONLINE
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "NonExistentPartition to OnlinePartition" in caplog.text


@pytest.mark.parametrize("target", PartitionStatus)
def test_moving_many_partitions_equals_moving_each(target: PartitionStatus, caplog: pytest.LogCaptureFixture) -> None:
    def cluster_in_all_states() -> ClusterState:
        cluster = cluster_with((1,), dict.fromkeys(range(8), (1,)))
        for tp, path in zip(partitions, [(), ("NEW",), ("NEW", "ONLINE"), ("NEW", "OFFLINE")] * 2, strict=True):
            for status in path:
                assert cluster.move_partition(tp, PartitionStatus[status])
        return cluster

    partitions = [TopicPartition("t", partition) for partition in range(8)]
    together, alone = cluster_in_all_states(), cluster_in_all_states()
    together.move_partitions(partitions, target)
    refusals = caplog.text.count("refused")
    for tp in partitions:
        if alone.partition_status(tp) is not target:
            alone.move_partition(tp, target)
    assert together == alone
    assert caplog.text.count("refused") == 2 * refusals


def test_a_replica_is_online_or_offline_with_its_broker() -> None:
    cluster = cluster_with((1, 2), {0: (1, 2, 3)})
    assert [cluster.replica_status(T0, r) for r in (1, 3, 4)] == [
        ReplicaStatus.ONLINE,
        ReplicaStatus.OFFLINE,
        ReplicaStatus.NON_EXISTENT,
    ]
    assert cluster.move_replica(T0, 1, ReplicaStatus.OFFLINE)  # told to stop
    assert cluster.replica_status(T0, 1) is ReplicaStatus.OFFLINE
    cluster.broker_went(1)
    assert cluster.replica_status(T0, 1) is ReplicaStatus.OFFLINE
    cluster.broker_came(BrokerInfo(1, 99, ()))
    assert cluster.replica_status(T0, 1) is ReplicaStatus.ONLINE, "the new life was not stopped"


def test_a_term_starts_with_the_states_in_zookeeper() -> None:
    cluster = cluster_with((1,), {0: (1, 2), 1: (2, 1), 2: (1,)})
    cluster.set_leadership(T0, LeaderAndIsr(1, 3, (1,), 1))
    cluster.set_leadership(T1, LeaderAndIsr(2, 3, (2,), 1))
    cluster.start_state_machines()
    assert cluster.partition_status(T0) is PartitionStatus.ONLINE
    assert cluster.partition_status(T1) is PartitionStatus.OFFLINE
    assert cluster.partition_status(TopicPartition("t", 2)) is PartitionStatus.NEW
    assert set(cluster.waiting_for_leader()) == {T1, TopicPartition("t", 2)}
    assert cluster.waiting_for_leader({2}) == [T1]
    assert cluster.waiting_for_leader({7}) == []


def test_a_leader_epoch_never_goes_back() -> None:
    cluster = cluster_with((1,), {0: (1,)})
    cluster.set_leadership(T0, LeaderAndIsr(1, 3, (1,), 1))
    with pytest.raises(AssertionError):
        cluster.set_leadership(T0, LeaderAndIsr(1, 2, (1,), 1))


@pytest.mark.parametrize(("percentage", "expected"), [(0, {T0, T1}), (49, {T0, T1}), (50, set()), (100, set())])
@pytest.mark.parametrize("partitions_in_a_step", [1, 5000])
def test_imbalance(
    percentage: int, expected: set[TopicPartition], partitions_in_a_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 1 leads two of the four partitions that prefer it. Broker 9 is dead, so nothing can return to it."""
    cluster = cluster_with((1, 2), {0: (1, 2), 1: (1, 2), 2: (1, 2), 3: (1, 2), 4: (2, 1), 5: (9, 1), 6: ()})
    for partition, leader in enumerate((2, 2, 1, 1, 2, 1)):
        cluster.set_leadership(TopicPartition("t", partition), LeaderAndIsr(leader, 0, (leader,), 1))
    monkeypatch.setattr(cluster_state, "PARTITIONS_IN_A_STEP", partitions_in_a_step)
    steps = cluster.finding_imbalanced(percentage)
    for _ in range(7 if partitions_in_a_step == 1 else 0):
        next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert set(end.value.value) == expected


topics = st.sampled_from(["a", "b"])
brokers = st.integers(1, 4)
assignments = st.dictionaries(
    st.integers(0, 3), st.lists(brokers, min_size=1, max_size=3, unique=True).map(tuple), max_size=4
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), topics, assignments),
        st.tuples(st.just("lead"), topics, st.integers(0, 3), st.sampled_from([NO_LEADER, 1, 2, 3, 4])),
        st.tuples(st.just("write"), topics, st.integers(0, 3), st.sampled_from([NO_LEADER, 1, 2, 3, 4])),
        st.tuples(st.just("remove"), topics),
    ),
    max_size=25,
)


@given(steps)
def test_the_indexes_agree_with_the_state_after_any_history(history: list[tuple[object, ...]]) -> None:
    cluster = ClusterState()
    for epoch, step in enumerate(history):
        match step:
            case ("assign", str(topic), dict(assignment)):
                kept = cluster.topics.get(topic, {})
                cluster.set_assignment(topic, None, {**kept, **{p: Assignment(r) for p, r in assignment.items()}})
            case ("lead", str(topic), int(partition), int(leader)):
                tp = TopicPartition(topic, partition)
                if cluster.assignment(tp).replicas:
                    cluster.set_leadership(tp, LeaderAndIsr(leader, epoch, (1,), 1))
            case ("write", str(topic), int(most), int(leader)):
                written = {
                    tp: LeaderAndIsr(leader, epoch, (1,), 1)
                    for tp in (TopicPartition(topic, partition) for partition in range(most + 1))
                    if cluster.assignment(tp).replicas
                }
                for tp in written:
                    if cluster.partition_status(tp) is PartitionStatus.NON_EXISTENT:
                        cluster.move_partition(tp, PartitionStatus.NEW)
                changed = [tp for tp in written if getattr(cluster.leadership.get(tp), "leader", NO_LEADER) != leader]
                assert cluster.set_written(written) == (0 if leader == NO_LEADER else len(changed))
                status = PartitionStatus.OFFLINE if leader == NO_LEADER else PartitionStatus.ONLINE
                assert {cluster.partition_status(tp) for tp in written} <= {status}
            case ("remove", str(topic)):
                cluster.remove_topic(topic)
                assert not any(tp.topic == topic for tp in cluster.leadership)
        for broker in range(1, 5):
            assert cluster.led_by(broker) == {tp for tp, s in cluster.leadership.items() if s.leader == broker}
            assert cluster.replicas_on(broker) == {
                tp for tp in cluster.partitions() if broker in cluster.assignment(tp).replicas
            }


# -- moves of replicas (CTL-10) ----------------------------------------------------------------------------------------


TP = TopicPartition("t", 0)
BROKERS = (1, 2, 3, 4)


def cluster_of_four() -> ClusterState:
    cluster = ClusterState(epoch=1)
    for broker in BROKERS:
        cluster.broker_came(BrokerInfo(broker, 10 + broker, ()))
    cluster.set_assignment("t", None, {0: Assignment((1, 2)), 1: Assignment((1, 2))})
    cluster.set_leadership(TP, LeaderAndIsr(1, 0, (1, 2), 1, 0))
    cluster.start_state_machines()
    return cluster


def move(cluster: ClusterState, target: tuple[int, ...]) -> list[int]:
    return cluster.begin_move(TP, reassignment.reassign_to(cluster.move_of(TP), target))


def hand_over(cluster: ClusterState) -> list[int]:
    return cluster.hand_over(TP, Assignment(reassignment.target_of(cluster.assignment(TP))))


def confirm(cluster: ClusterState, broker: int) -> None:
    assert cluster.move_replica(TP, broker, ReplicaStatus.DELETION_SUCCESSFUL)
    assert cluster.move_replica(TP, broker, ReplicaStatus.NON_EXISTENT)


moves = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True).map(tuple)),
        st.tuples(st.just("hand over"), st.just(())),
        st.tuples(st.just("confirm"), st.sampled_from(BROKERS).map(lambda b: (b,))),
        st.tuples(st.just("bounce"), st.sampled_from(BROKERS).map(lambda b: (b,))),
        st.tuples(st.just("end"), st.just(())),
    ),
    max_size=12,
)


@given(moves)
def test_the_indexes_agree_after_any_moves(history: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    cluster = cluster_of_four()
    for what, brokers in history:
        match what:
            case "move":
                move(cluster, brokers)
            case "hand over" if TP in cluster.reassigning and TP not in cluster.handed_over:
                hand_over(cluster)
            case "confirm" if brokers[0] in cluster.deletions_awaited(TP):
                confirm(cluster, brokers[0])
            case "bounce":
                cluster.broker_went(brokers[0])
                cluster.broker_came(BrokerInfo(brokers[0], 50, ()))
            case "end" if TP in cluster.handed_over and not cluster.deletions_awaited(TP):
                cluster.end_move(TP)
        assigned, moving = cluster.assignment(TP), cluster.move_of(TP)
        assert {broker for broker in BROKERS if TP in cluster.replicas_on(broker)} == set(assigned.replicas)
        assert (TP in cluster.reassigning) == reassignment.is_under_way(moving)
        assert set(cluster.deletions_awaited(TP)) <= set(moving.removing)
        if TP in cluster.handed_over:
            assert assigned == Assignment(reassignment.target_of(moving))
        for broker in BROKERS:
            if broker not in moving.replicas:
                assert cluster.replica_status(TP, broker) is ReplicaStatus.NON_EXISTENT
