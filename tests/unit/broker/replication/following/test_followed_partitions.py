"""The phases of followed partitions: every move of the table, no other, and indexes that always match."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.following.followed_partitions import (
    MOVES,
    FollowedPartition,
    FollowedPartitions,
    IllegalMove,
    Phase,
)
from broker.replication.following.follower_session import FetchPosition
from protocol.kafka.fetch_codec import FetchRequestPartition
from protocol.types import TopicPartition

TOPIC_ID = uuid.UUID(int=7)
TPS = [TopicPartition("t", number) for number in range(3)]


class NamedPartition:
    """As much of a Partition as the phases need."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp


def record_of(tp: TopicPartition, phase: Phase = Phase.TRUNCATING) -> FollowedPartition:
    partition: Any = NamedPartition(tp)
    return FollowedPartition(partition, TOPIC_ID, 0, 0, phase)


def move(partitions: FollowedPartitions, followed: FollowedPartition, phase: Phase) -> None:
    """As the fetcher: a partition that is copied from now on has a position."""
    tp = followed.partition.tp
    partitions.move(followed, phase)
    if followed.is_copied:
        partitions.positions[tp] = FetchPosition(TOPIC_ID, FetchRequestPartition(tp.partition, 0, 0, 0, 0, 1000))


def check(partitions: FollowedPartitions) -> None:
    by_phase = {phase: {f.partition.tp for f in partitions if f.phase is phase} for phase in Phase}
    assert partitions.truncating.keys() == by_phase[Phase.TRUNCATING]
    assert partitions.unsettled.keys() == by_phase[Phase.WAITING] | by_phase[Phase.CATCHING_UP]
    assert partitions.in_sync.keys() == by_phase[Phase.IN_SYNC]
    assert partitions.positions.keys() == by_phase[Phase.CATCHING_UP] | by_phase[Phase.IN_SYNC]
    for followed in partitions:
        assert partitions[followed.partition.tp] is followed
        assert not followed.is_copied or followed.is_in_sync is (followed.phase is Phase.IN_SYNC)


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(Phase, 2)])
def test_a_move_is_made_if_the_table_has_it(before: Phase, after: Phase) -> None:
    partitions, followed = FollowedPartitions(), record_of(TPS[0], before)
    partitions.add(followed)
    if (before, after) in MOVES:
        move(partitions, followed, after)
        assert followed.phase is after
        check(partitions)
    else:
        with pytest.raises(IllegalMove):
            partitions.move(followed, after)
        assert followed.phase is before


@given(st.lists(st.tuples(st.sampled_from(TPS), st.sampled_from([*Phase, "add", "remove", "late"]))))
def test_the_indexes_match_the_phases(steps: list[tuple[TopicPartition, Any]]) -> None:
    """`late`: a loop moves a record that was replaced while the loop waited."""
    partitions = FollowedPartitions()
    replaced = {tp: record_of(tp) for tp in TPS}
    for tp, step in steps:
        followed = partitions.get(tp)
        if step == "add":
            partitions.add(record_of(tp))
        elif step == "remove":
            partitions.remove(tp)
        elif step == "late":
            partitions.move(replaced[tp], Phase.WAITING)
        elif followed is not None and (followed.phase is step or (followed.phase, step) in MOVES):
            move(partitions, followed, step)
        if followed is not None and not partitions.holds(followed):
            replaced[tp] = followed
        check(partitions)
    for tp in TPS:
        partitions.remove(tp)
    check(partitions)
    assert not partitions
