"""Which replicas and brokers a reassignment throttles (KIP-73), by tables."""

from __future__ import annotations

from protocol.types import Assignment, TopicPartition
from tools.admin.reassign_throttles import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    Move,
    broker_rates,
    moves,
    throttled_brokers,
    topic_throttles,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_sources_are_the_current_replicas_and_destinations_the_new_ones() -> None:
    found = moves({A0: (3, 1)}, {A0: (1, 2)}, {})
    assert found == {A0: Move(frozenset({1, 2}), frozenset({3}))}


def test_moves_under_way_keep_their_throttles() -> None:
    found = moves({A0: (3,)}, {A0: (1,)}, {B0: Assignment((4, 1, 2), (4,), (2,))})
    assert found[B0] == Move(frozenset({1, 2}), frozenset({4}))
    assert throttled_brokers(found) == [1, 2, 3, 4]


def test_a_new_target_of_a_move_under_way_replaces_the_old_one() -> None:
    found = moves({A0: (5, 1)}, {A0: (1, 2)}, {A0: Assignment((4, 1, 2), (4,), (2,))})
    assert found == {A0: Move(frozenset({1, 2}), frozenset({5}))}


def test_topic_throttles_name_partitions_and_brokers_in_order() -> None:
    found = moves({A1: (3, 1), A0: (3,), B0: (1,)}, {A1: (1, 2), A0: (2, 1), B0: (1, 2)}, {})
    assert topic_throttles(found) == {
        "a": {LEADER_REPLICAS: "0:1,0:2,1:1,1:2", FOLLOWER_REPLICAS: "0:3,1:3"}
    }  # b only loses a replica: no bytes move


def test_only_those_that_send_or_receive_are_throttled() -> None:
    assert throttled_brokers(moves({A0: (1,)}, {A0: (1, 2)}, {})) == []
    assert set(broker_rates(5).values()) == {"5"}
