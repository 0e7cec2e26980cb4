"""The arithmetic of a reassignment (CTL-10; Kafka's ReplicaAssignment and KIP-455). Pure.

During a move, the assignment has the replicas of the target first, then the others: `[2,0,1]` with adding `[2]` and removing `[1]` is
a move from `{0,1}` to `[2,0]`. The original order is not stored: after a cancellation the partition has `[0,1]`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.errors import ErrorCode, KafkaError
from protocol.types import Assignment, TopicPartition


def is_under_way(assignment: Assignment) -> bool:
    return bool(assignment.adding or assignment.removing)


def target_of(assignment: Assignment) -> tuple[int, ...]:
    """RAR: the replicas after the move."""
    return tuple(replica for replica in assignment.replicas if replica not in assignment.removing)


def origin_of(assignment: Assignment) -> tuple[int, ...]:
    """OAR: the replicas after a cancellation."""
    return tuple(replica for replica in assignment.replicas if replica not in assignment.adding)


def reassign_to(current: Assignment, target: Sequence[int]) -> Assignment:
    """The assignment during a move from the original replicas of `current` to `target`. Replicas of an earlier target are dropped."""
    origin = origin_of(current)
    replicas = tuple(dict.fromkeys((*target, *origin)))
    return Assignment(
        replicas,
        tuple(replica for replica in replicas if replica not in origin),
        tuple(replica for replica in replicas if replica not in target),
    )


def no_longer_needed(current: Assignment, new: Assignment) -> tuple[int, ...]:
    """The replicas that only a dropped target has. They can be deleted without waiting."""
    return tuple(replica for replica in current.replicas if replica not in new.replicas)


def is_complete(assignment: Assignment, isr: Collection[int]) -> bool:
    """INV-25: whether all replicas of the target are in the ISR. False for an empty target, which only a person can have written."""
    target = target_of(assignment)
    return bool(target) and set(target) <= set(isr)


def plan(
    tp: TopicPartition,
    current: Assignment,
    target: Sequence[int] | None,
    live: Collection[int],
    *,
    is_being_deleted: bool = False,
    may_change_factor: bool = True,
) -> Assignment:
    """The partition's new assignment; `target` None cancels the move. `live` are the brokers that may get new replicas.

    Target brokers that already have a replica may be dead. Raises KafkaError, with Kafka's codes and in Kafka's order:
    INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION, and unless `may_change_factor`
    INVALID_REPLICATION_FACTOR, last.
    """
    if target is None:
        if not is_under_way(current):
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp}: no reassignment is in progress.")
        new = Assignment(origin_of(current))
    else:
        check_replicas(target)
        new = reassign_to(current, target)
        if dead := sorted(set(new.adding) - set(live)):
            raise _invalid(
                f"Replica assignment has brokers that are not alive. Replica list: {list(target)}, "
                f"not alive: {dead}, live broker list: {sorted(live)}"
            )
    if not current.replicas:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if is_being_deleted:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic is being deleted.")
    factor = len(target_of(current))
    if target is not None and len(target) != factor and not may_change_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {factor} to {len(target)}"
        )
    return new


def check_replicas(target: Sequence[int]) -> None:
    """Raises KafkaError(INVALID_REPLICA_ASSIGNMENT) for an impossible list of replicas."""
    if not target:
        raise _invalid("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise _invalid(f"Duplicate replica ids in partition reassignment replica list: {list(target)}")
    if any(replica < 0 for replica in target):
        raise _invalid(f"Invalid broker id in replica list: {list(target)}")


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)
