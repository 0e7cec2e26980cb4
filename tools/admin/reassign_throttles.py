"""The throttles of a reassignment (KIP-73, KIP-113): which replicas send and receive, and the brokers' rates. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from protocol.types import Assignment, TopicPartition

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
TOPIC_THROTTLES = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER_THROTTLES = (LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)
"""Removed from every broker at the end, whoever set them, as in Kafka's tool."""


class Move(NamedTuple):
    """The brokers that have a partition's data, and those that receive it."""

    sources: frozenset[int]
    destinations: frozenset[int]


def moves(
    plan: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    under_way: Mapping[TopicPartition, Assignment],
) -> dict[TopicPartition, Move]:
    """The moves of the plan and those in progress: the same configs hold the throttles of both.

    `current` has the replicas without those that are being added.
    """
    found = {
        partition: Move(frozenset(move.replicas) - frozenset(move.adding), frozenset(move.adding))
        for partition, move in under_way.items()
    }
    for partition, replicas in plan.items():
        sources = frozenset(current[partition])
        found[partition] = Move(sources, frozenset(replicas) - sources)
    return found


def topic_throttles(moving: Mapping[TopicPartition, Move]) -> dict[str, dict[str, str | None]]:
    """Topic -> its configs: `partition:broker,...` of the senders and of the receivers; None if there are none."""
    leaders: dict[str, list[tuple[int, int]]] = {}
    followers: dict[str, list[tuple[int, int]]] = {}
    for partition, move in moving.items():
        if move.destinations:
            leaders.setdefault(partition.topic, []).extend((partition.partition, b) for b in move.sources)
            followers.setdefault(partition.topic, []).extend((partition.partition, b) for b in move.destinations)
    return {
        topic: {LEADER_REPLICAS: _replica_list(leaders[topic]), FOLLOWER_REPLICAS: _replica_list(followers[topic])}
        for topic in leaders
    }


def throttled_brokers(moving: Mapping[TopicPartition, Move]) -> list[int]:
    """All brokers that send or receive."""
    return sorted(
        {broker for move in moving.values() if move.destinations for broker in move.sources | move.destinations}
    )


def broker_rates(bytes_per_second: int) -> dict[str, str | None]:
    """The configs of each throttled broker."""
    return dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(bytes_per_second))


def directory_rate(bytes_per_second: int) -> dict[str, str | None]:
    """The config of each broker that moves replicas between its log directories."""
    return {DIRECTORY_RATE: str(bytes_per_second)}


def _replica_list(replicas: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(replicas))
