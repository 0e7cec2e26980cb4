"""Moves of replicas in the cluster state: after any requests and answers the indexes agree (CTL-4, CTL-10)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.announcements import Announcement
from controller.cluster_state import ClusterState
from controller.decisions import reassignment
from controller.replica_status import ReplicaStatus
from protocol.rpc.messages import LeaderAndIsrRequest
from protocol.types import Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
BROKERS = (1, 2, 3, 4)


def cluster_of(replicas: tuple[int, ...] = (1, 2)) -> ClusterState:
    cluster = ClusterState(epoch=1)
    for broker in BROKERS:
        cluster.broker_came(BrokerInfo(broker, 10 + broker, ()))
    cluster.set_assignment("t", None, {0: Assignment(replicas), 1: Assignment((1, 2))})
    cluster.set_leadership(TP, LeaderAndIsr(replicas[0], 0, replicas, 1, 0))
    cluster.start_state_machines()
    return cluster


def move(cluster: ClusterState, target: tuple[int, ...]) -> list[int]:
    return cluster.begin_move(TP, reassignment.reassign_to(cluster.move_of(TP), target))


def hand_over(cluster: ClusterState) -> list[int]:
    return cluster.hand_over(TP, Assignment(reassignment.target_of(cluster.assignment(TP))))


def confirm(cluster: ClusterState, broker: int) -> None:
    assert cluster.move_replica(TP, broker, ReplicaStatus.DELETION_SUCCESSFUL)
    assert cluster.move_replica(TP, broker, ReplicaStatus.NON_EXISTENT)


def test_a_move_from_start_to_end() -> None:
    cluster = cluster_of()
    assert move(cluster, (3, 2)) == [3]
    assert cluster.reassigning == {TP}
    assert cluster.replica_status(TP, 3) is ReplicaStatus.NEW
    assert hand_over(cluster) == [1]
    assert cluster.assignment(TP) == Assignment((3, 2))
    assert cluster.move_of(TP) == Assignment((3, 2, 1), (3,), (1,))
    assert cluster.replica_status(TP, 3) is ReplicaStatus.ONLINE
    assert cluster.deletions_awaited(TP) == [1]
    assert cluster.reassigning == {TP}
    assert cluster.replicas_on(1) == {OTHER}
    confirm(cluster, 1)
    assert cluster.deletions_awaited(TP) == []
    cluster.end_move(TP)
    assert cluster.reassigning == set()
    assert cluster.move_of(TP) == Assignment((3, 2))
    assert cluster.replica_status(TP, 1) is ReplicaStatus.NON_EXISTENT


def test_a_dead_broker_is_not_awaited() -> None:
    cluster = cluster_of()
    move(cluster, (3, 4))
    cluster.broker_went(2)
    assert hand_over(cluster) == [1]
    assert cluster.deletions_awaited(TP) == [1]
    cluster.broker_went(1)
    assert cluster.deletions_awaited(TP) == []
    cluster.broker_came(BrokerInfo(1, 99, ()))
    assert cluster.deletions_awaited(TP) == []


def test_a_replica_that_is_assigned_again_during_its_deletion_is_new() -> None:
    cluster = cluster_of()
    move(cluster, (3, 2))
    hand_over(cluster)
    assert move(cluster, (1, 2)) == [1]
    assert cluster.deletions_awaited(TP) == []
    assert cluster.replica_status(TP, 1) is ReplicaStatus.NEW
    assert cluster.replica_status(TP, 3) is ReplicaStatus.NON_EXISTENT


def test_a_removed_topic_leaves_nothing_of_its_moves() -> None:
    cluster = cluster_of()
    move(cluster, (3, 4))
    hand_over(cluster)
    cluster.remove_topic("t")
    assert (cluster.reassigning, cluster.handed_over) == (set(), {})
    assert all(cluster.replica_status(TP, broker) is ReplicaStatus.NON_EXISTENT for broker in BROKERS)


def test_a_new_term_finds_the_moves() -> None:
    """CTL-2: the assignment in ZooKeeper is the only stored state."""
    cluster = ClusterState(epoch=2)
    moving = Assignment((3, 2, 1), (3,), (1,))
    cluster.set_assignment("t", None, {0: moving, 1: Assignment((1, 2))})
    assert cluster.reassigning == {TP}
    assert cluster.move_of(TP) == moving


def test_only_a_new_replica_is_announced_as_new() -> None:
    """Its broker may create the log although one of its log directories has failed."""
    cluster = cluster_of()
    made = move(cluster, (3, 2))
    announcement = Announcement(1, cluster)
    announcement.leadership([TP])
    announcement.new_replicas(TP, made)
    announcement.full_leadership([3])
    told = {
        broker: {state.topic_partition: state.is_new for state in request.partitions}
        for broker, requests in announcement.requests().items()
        for request in requests
        if isinstance(request, LeaderAndIsrRequest)
    }
    assert {broker: rows[TP] for broker, rows in told.items()} == {1: False, 2: False, 3: True}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("move"), st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True).map(tuple)),
        st.tuples(st.just("hand over"), st.just(())),
        st.tuples(st.just("confirm"), st.sampled_from(BROKERS).map(lambda b: (b,))),
        st.tuples(st.just("bounce"), st.sampled_from(BROKERS).map(lambda b: (b,))),
        st.tuples(st.just("end"), st.just(())),
    ),
    max_size=12,
)


@given(steps)
def test_the_indexes_agree_after_any_moves(history: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    cluster = cluster_of()
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
