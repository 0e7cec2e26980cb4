"""Plans the new partitions of a topic (CTL-8). Pure.

New partitions continue the placement of the old ones (CTL-7): the preferred leader of partition n is `n` places after that of
partition 0 on the ring of brokers. Old partitions do not move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol import replica_placement
from protocol.errors import ErrorCode, KafkaError
from protocol.types import Assignment

TOPIC_PARTITIONS_MAX = 100_000
"""`/brokers/topics/<topic>` has room for no more partitions: ZooKeeper accepts 1 MiB, and a partition takes about 10 bytes."""
SHOWN_MAX = 100
"""Limit of numbers in an error message; a request may name a hundred thousand."""


def check_count(partitions: int) -> None:
    """Raises KafkaError if no topic can have that many partitions."""
    if partitions > TOPIC_PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions: a topic can have at most {TOPIC_PARTITIONS_MAX}",
        )


def plan(
    topic: str,
    existing: Mapping[int, Assignment],
    count: int,
    given: Sequence[tuple[int, ...]] | None,
    brokers: Sequence[tuple[int, str | None]],
) -> dict[int, tuple[int, ...]]:
    """Partition -> replicas, only for the new partitions; `count` is the new total.

    `given` has the admin's replicas, one tuple for each new partition; None: replicas are placed automatically. `brokers` has the live
    brokers, (id, rack), by id. Raises KafkaError: REASSIGNMENT_IN_PROGRESS, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR, and UNKNOWN_SERVER_ERROR for a topic with an incomplete znode.
    """
    if any(assignment.adding or assignment.removing for assignment in existing.values()):
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS, f"A partition reassignment is in progress for the topic '{topic}'."
        )
    if not existing or sorted(existing) != list(range(len(existing))) or not existing[0].replicas:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"the node of topic '{topic}' in ZooKeeper does not list its partitions"
        )
    first_new = len(existing)
    if count < first_new:
        reason = f"Topic currently has {first_new} partitions, which is higher than the requested {count}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, reason)
    if count == first_new:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {first_new} partitions.")
    check_count(count)
    preferred = existing[0].replicas
    if given is not None:
        _check_given(given, first_new, count, len(preferred), [broker for broker, _ in brokers])
        return dict(enumerate(given, first_new))
    start = next((index for index, (broker, _) in enumerate(brokers) if broker >= preferred[0]), 0)
    try:
        return replica_placement.place(
            brokers, count - first_new, len(preferred), start_index=start, shift=start, first_partition=first_new
        )
    except replica_placement.PlacementError as error:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from None


def _check_given(
    given: Sequence[tuple[int, ...]], first_new: int, count: int, replication_factor: int, live: Sequence[int]
) -> None:
    if unknown := sorted({broker for replicas in given for broker in replicas} - set(live)):
        raise _bad(f"Unknown broker(s) in replica assignment: {_listed(unknown)}.")
    if len(given) != count - first_new:
        raise _bad(f"Increasing the number of partitions by {count - first_new} but {len(given)} assignments provided.")
    for partition, replicas in enumerate(given, first_new):
        if not replicas:
            raise _bad(f"Cannot have replication factor of 0 for partition id {partition}.")
        if len(set(replicas)) != len(replicas):
            raise _bad(
                f"Duplicate brokers not allowed in replica assignment: {_listed(replicas)} for partition id {partition}."
            )
    others = {
        partition: len(replicas)
        for partition, replicas in enumerate(given, first_new)
        if len(replicas) != replication_factor
    }
    if others:
        raise _bad(
            f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while partitions "
            f"[{_listed(list(others))}] have replication factors [{_listed(list(others.values()))}], respectively."
        )


def _bad(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:SHOWN_MAX])) + (", ..." if len(numbers) > SHOWN_MAX else "")
