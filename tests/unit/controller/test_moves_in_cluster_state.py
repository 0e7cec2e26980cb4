"""Moves of replicas in the cluster state: after any requests and answers the indexes agree (CTL-4, CTL-10)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from controller.cluster_state import ClusterState
from controller.decisions import reassignment
from controller.replica_status import ReplicaStatus
from protocol.types import Assignment, BrokerInfo, LeaderAndIsr, TopicPartition

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
