"""CTL-7, CTL-8: where new partitions are placed, and refusals with the messages of Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.partition_additions import TOPIC_PARTITIONS_MAX, check_count, plan
from protocol import replica_placement
from protocol.errors import ErrorCode, KafkaError
from protocol.types import Assignment
from tests.support.refusals import refused

BROKERS = [(0, None), (1, None), (2, None)]
TWO = {0: Assignment((0, 1)), 1: Assignment((1, 2))}


PARTITIONS, ASSIGNMENT = ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICA_ASSIGNMENT
HIGHER = "Topic currently has 2 partitions, which is higher than the requested"
INCREASING = "Increasing the number of partitions by"
INCONSISTENT = (
    "Inconsistent replication factor between partitions, partition 0 has 2 while partitions [2, 3] have "
    "replication factors [1, 3], respectively."
)
DUPLICATE = "Duplicate brokers not allowed in replica assignment: 0, 0 for partition id 2."


@pytest.mark.parametrize(
    ("count", "chosen", "code", "message"),
    [
        (2, None, PARTITIONS, "Topic already has 2 partitions."),
        (1, None, PARTITIONS, f"{HIGHER} 1."),
        (-1, None, PARTITIONS, f"{HIGHER} -1."),
        (3, [(99, 0)], ASSIGNMENT, "Unknown broker(s) in replica assignment: 99."),
        (4, [(0, 1)], ASSIGNMENT, f"{INCREASING} 2 but 1 assignments provided."),
        (3, [], ASSIGNMENT, f"{INCREASING} 1 but 0 assignments provided."),
        (3, [(0, 0)], ASSIGNMENT, DUPLICATE),
        (3, [()], ASSIGNMENT, "Cannot have replication factor of 0 for partition id 2."),
        (4, [(0,), (0, 1, 2)], ASSIGNMENT, INCONSISTENT),
    ],
)
def test_refusals(count: int, chosen: Sequence[tuple[int, ...]] | None, code: ErrorCode, message: str) -> None:
    with pytest.raises(KafkaError) as raised:
        plan("t", TWO, count, chosen, BROKERS)
    assert (raised.value.code, raised.value.message) == (code, message)


@pytest.mark.parametrize(
    ("existing", "count", "live", "code"),
    [
        (TWO, TOPIC_PARTITIONS_MAX + 1, 3, PARTITIONS),
        (TWO, 2**31 - 1, 3, PARTITIONS),
        # CTL-10: the assignment of a moving topic is the controller's.
        (TWO | {1: Assignment((0, 1), adding=(1,))}, 3, 3, ErrorCode.REASSIGNMENT_IN_PROGRESS),
        (TWO | {1: Assignment((0, 1), removing=(1,))}, 3, 3, ErrorCode.REASSIGNMENT_IN_PROGRESS),
        ({}, 3, 3, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({1: Assignment((0,))}, 3, 3, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({0: Assignment(())}, 3, 3, ErrorCode.UNKNOWN_SERVER_ERROR),
        (TWO, 3, 1, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_impossible_additions_are_refused(
    existing: dict[int, Assignment], count: int, live: int, code: ErrorCode
) -> None:
    check_count(TOPIC_PARTITIONS_MAX)
    with refused(code):
        plan("t", existing, count, None, BROKERS[:live])


def test_chosen_replicas() -> None:
    assert plan("t", TWO, 4, [(2, 0), (1, 0)], BROKERS) == {2: (2, 0), 3: (1, 0)}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ((0, 1), {2: (2, 0), 3: (0, 2), 4: (1, 0)}),
        ((1, 2), {2: (0, 2), 3: (1, 2), 4: (2, 0)}),
        ((9, 2), {2: (2, 0), 3: (0, 2), 4: (1, 0)}),  # its broker is not live: from the first on
    ],
)
def test_placement_continues_from_the_leader_of_partition_0(
    first: tuple[int, ...], expected: dict[int, tuple[int, ...]]
) -> None:
    assert plan("t", {0: Assignment(first), 1: Assignment((1, 2))}, 5, None, BROKERS) == expected


@given(st.integers(1, 8), st.integers(1, 20), st.integers(1, 20), st.data())
def test_a_grown_topic_is_placed_like_one_created_with_that_size(
    brokers: int, before: int, more: int, data: st.DataObject
) -> None:
    """CTL-7: with Kafka's own shift of a grown topic, which is its start."""
    live: list[tuple[int, str | None]] = [(10 + n, None) for n in range(brokers)]
    factor = data.draw(st.integers(1, brokers))
    start = data.draw(st.integers(0, brokers - 1))
    whole = replica_placement.place(live, before + more, factor, start_index=start, shift=start)
    existing = {partition: Assignment(whole[partition]) for partition in range(before)}
    added = plan("t", existing, before + more, None, live)
    assert sorted(added) == list(range(before, before + more))
    assert [replicas[0] for replicas in added.values()] == [whole[partition][0] for partition in added]
    assert all(len(set(replicas)) == factor for replicas in added.values())
