"""The arithmetic of reassignments (CTL-10, INV-25), and the leaders and ISRs during a move (INV-4, INV-18)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.decisions import leader_election, reassignment
from protocol.errors import ErrorCode, KafkaError
from protocol.types import NO_LEADER, Assignment, LeaderAndIsr, TopicPartition

TP = TopicPartition("t", 0)
LIVE = frozenset({0, 1, 2, 3})

replica_lists = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True).map(tuple)


@pytest.mark.parametrize(
    ("current", "target", "new"),
    [
        (Assignment((0, 1)), (2, 0), Assignment((2, 0, 1), (2,), (1,))),
        (Assignment((1, 0)), (2, 3), Assignment((2, 3, 1, 0), (2, 3), (1, 0))),
        (Assignment((1, 2, 3)), (1,), Assignment((1, 2, 3), (), (2, 3))),
        (Assignment((1,)), (2, 1), Assignment((2, 1), (2,), ())),
        (Assignment((1, 2)), (2, 1), Assignment((2, 1))),
        (Assignment((1, 2)), (1, 2), Assignment((1, 2))),
        # A target that replaces another: from {1,2} to (3,4), now to (5,1).
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (5, 1), Assignment((5, 1, 2), (5,), (2,))),
        # Both want 4: it stays among those that come.
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (4, 2), Assignment((4, 2, 1), (4,), (1,))),
        (Assignment((3, 1), (3,), ()), (1,), Assignment((1,))),
    ],
)
def test_reassign_to(current: Assignment, target: tuple[int, ...], new: Assignment) -> None:
    """As Kafka's ReplicaAssignment.reassignTo."""
    assert reassignment.reassign_to(current, target) == new
    assert reassignment.plan(TP, current, target, live=range(10)) == new


@pytest.mark.parametrize(
    ("current", "restored"),
    [
        (Assignment((2, 0, 1), (2,), (1,)), (0, 1)),  # it was [1,0]: the order is not remembered
        (Assignment((3, 4, 1, 2), (3, 4), (1, 2)), (1, 2)),
        (Assignment((1, 2, 3), (), (2, 3)), (1, 2, 3)),
        (Assignment((2, 1), (2,), ()), (1,)),
    ],
)
def test_a_cancellation_goes_back_to_the_original_replicas(current: Assignment, restored: tuple[int, ...]) -> None:
    assert reassignment.plan(TP, current, None, live=()) == Assignment(restored)


@pytest.mark.parametrize(
    ("current", "target", "code"),
    [
        (Assignment((1, 2)), (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Assignment((1, 2)), (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Assignment((1, 2)), (1, -1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Assignment((1, 2)), (1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Assignment((1, 2)), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (Assignment(()), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (Assignment(()), (1, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Assignment(()), (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (Assignment((1, 2)), (2**31,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_targets_are_refused(current: Assignment, target: tuple[int, ...] | None, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        reassignment.plan(TP, current, target, LIVE)
    assert raised.value.code is code
    assert raised.value.message


@pytest.mark.parametrize(
    ("current", "target", "is_same"),
    [
        (Assignment((1, 2)), (3, 0), True),
        (Assignment((1, 2)), (1, 2, 3), False),
        (Assignment((1, 2)), (3,), False),
        (Assignment((3, 1, 2), (3,), (1, 2)), (0,), True),  # on its way to one replica
        (Assignment((3, 1, 2), (3,), (1, 2)), (0, 1), False),
        (Assignment((3, 1, 2), (3,), (1, 2)), None, True),
    ],
)
def test_a_factor_that_must_not_change(current: Assignment, target: tuple[int, ...] | None, is_same: bool) -> None:
    """KIP-860."""
    if is_same:
        assert reassignment.plan(TP, current, target, LIVE, may_change_factor=False)
        return
    with pytest.raises(KafkaError, match=r"factor is changed from [12] to [123]") as raised:
        reassignment.plan(TP, current, target, LIVE, may_change_factor=False)
    assert raised.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_reassignment_of_a_topic_that_is_being_deleted_is_refused() -> None:
    """CTL-9."""
    with pytest.raises(KafkaError, match="being deleted") as raised:
        reassignment.plan(TP, Assignment((1,)), (2,), LIVE, is_being_deleted=True)
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_dead_broker_may_keep_its_replica_but_gets_no_new_one() -> None:
    assert reassignment.plan(TP, Assignment((1, 9)), (9, 2), LIVE) == Assignment((9, 2, 1), (2,), (1,))
    with pytest.raises(KafkaError, match=r"not alive: \[9\]"):
        reassignment.plan(TP, Assignment((1, 2)), (9, 2), LIVE)


@pytest.mark.parametrize(
    ("assignment", "isr", "complete"),
    [
        (Assignment((2, 0, 1), (2,), (1,)), (0, 1), False),
        (Assignment((2, 0, 1), (2,), (1,)), (1, 2), False),
        (Assignment((2, 0, 1), (2,), (1,)), (0, 2), True),
        (Assignment((2, 0, 1), (2,), (1,)), (0, 1, 2), True),
        (Assignment((1, 2), (), (1, 2)), (1, 2), False),  # written by hand: no target at all
    ],
)
def test_a_move_is_complete_when_the_target_is_in_sync(
    assignment: Assignment, isr: tuple[int, ...], complete: bool
) -> None:
    """INV-25, CTL-10 step 0."""
    assert reassignment.is_complete(assignment, isr) is complete


@given(replica_lists, st.lists(replica_lists, min_size=1, max_size=4))
def test_any_sequence_of_targets(original: tuple[int, ...], targets: list[tuple[int, ...]]) -> None:
    """After any earlier targets, the target comes first, and a cancellation restores the original replicas."""
    assignment = Assignment(original)
    for target in targets:
        before = assignment
        assignment = reassignment.reassign_to(before, target)
        assert assignment.replicas[: len(target)] == target
        assert len(set(assignment.replicas)) == len(assignment.replicas)
        assert set(assignment.replicas) == {*target, *original}
        assert set(assignment.adding) == set(target) - set(original)
        assert set(assignment.removing) == set(original) - set(target)
        assert reassignment.target_of(assignment) == target
        assert set(reassignment.origin_of(assignment)) == set(original)
        assert set(reassignment.no_longer_needed(before, assignment)) == set(before.replicas) - {*target, *original}
        assert reassignment.reassign_to(assignment, target) == assignment, "asked again it changes nothing"
        assert reassignment.is_under_way(assignment) == (set(target) != set(original))
    if reassignment.is_under_way(assignment):
        restored = reassignment.plan(TP, assignment, None, ())
        assert set(restored.replicas) == set(original)
        assert not reassignment.is_under_way(restored)


# -- leaders and ISRs on the way --------------------------------------------------------------------------------------


def state(leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 4, isr, 2, 7)


@pytest.mark.parametrize(
    ("before", "replicas", "live", "leader", "isr"),
    [
        (state(1, (1, 2, 3)), (2, 1), (1, 2, 3), 1, (1, 2)),  # it stays
        (state(3, (1, 2, 3)), (2, 1), (1, 2, 3), 2, (1, 2)),  # the first of the target
        (state(3, (1, 2, 3)), (2, 1), (1, 3), 1, (1, 2)),  # the first that lives
        (state(3, (1, 3)), (2, 1), (1, 2, 3), 1, (1,)),  # and is in sync
        (state(NO_LEADER, (1, 3)), (2, 1), (2,), NO_LEADER, (1,)),  # waits on
        (state(NO_LEADER, (1, 3)), (2, 1), (1, 2), 1, (1,)),
    ],
)
def test_the_leader_among_the_replicas_that_remain(
    before: LeaderAndIsr, replicas: tuple[int, ...], live: tuple[int, ...], leader: int, isr: tuple[int, ...]
) -> None:
    """CTL-10 step 7."""
    assert leader_election.among(before, replicas, live, 9) == LeaderAndIsr(leader, 5, isr, 9, 7)


@pytest.mark.parametrize(
    ("before", "replicas", "live"),
    [
        (state(3, (3,)), (1, 2), (1, 2, 3)),
        (state(3, (1, 3)), (1, 2), (2, 3)),
        (state(NO_LEADER, (3,)), (1, 2), (1, 2)),
    ],
)
def test_nothing_is_written_if_no_replica_in_sync_would_remain(
    before: LeaderAndIsr, replicas: tuple[int, ...], live: tuple[int, ...]
) -> None:
    """INV-4, INV-18."""
    assert leader_election.among(before, replicas, live, 9) is None


def test_a_renewed_epoch_changes_nothing_else() -> None:
    """BUG-6."""
    assert leader_election.unchanged(state(3, (3, 1)), 9) == LeaderAndIsr(3, 5, (3, 1), 9, 7)
