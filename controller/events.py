"""The events of a controller (CTL-3). Watches, timers and requests only create events; the controller processes them in order.

Most events only mean that something must be read again. The reaction reads the current state, so an event that is repeated, late, or
from an earlier term does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Elect:
    """`/controller` may have changed or been removed, or this broker has a new session: read it, and run for election if it is missing."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """A child of `/brokers/ids` was created or removed."""


@dataclass(frozen=True, slots=True)
class BrokerFoundDead:
    """Nobody listens any more at the address of the control listener of this life of the broker (CTL-16)."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """A child of `/brokers/topics` was created or removed."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """`/brokers/topics/<topic>` was written or removed, for example because partitions were added."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicDeletionsRequested:
    """A child of `/admin/delete_topics` was created or removed (CTL-9)."""


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    """A broker answered a StopReplica(delete): NONE for each deleted replica (CTL-9, CTL-10). The request has this number in the term of
    `controller_epoch`."""

    broker: int
    controller_epoch: int
    number: int
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


@dataclass(frozen=True, slots=True)
class ElectionsRequested:
    """An admin requests elections (CTL-12). `partitions` None means all that need one. The answer goes to `ticket`."""

    unclean: bool
    partitions: frozenset[TopicPartition] | None
    ticket: int


@dataclass(frozen=True, slots=True)
class UncleanElectionsAllowed:
    """`unclean.leader.election.enable` was enabled for `topic`, or by default (None): partitions without a leader may get one."""

    topic: str | None


@dataclass(frozen=True, slots=True)
class IsrsChanged:
    """A leader announced an ISR change below `/isr_change_notification` (CTL-13)."""


@dataclass(frozen=True, slots=True)
class LogDirsFailed:
    """A broker announced below `/log_dir_event_notification` that one of its log directories failed (LOG-6)."""


@dataclass(frozen=True, slots=True)
class ReplicasFailed:
    """A broker, in the life of `broker_epoch`, answered a LeaderAndIsr with KAFKA_STORAGE_ERROR for these partitions (LOG-6)."""

    broker: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LogsMissing:
    """A broker, in the life of `broker_epoch`, is in the ISR of these partitions but has lost their logs (FLT-33).

    Each partition comes with the leader epoch of the LeaderAndIsr that the broker refused.
    """

    broker: int
    broker_epoch: int
    partitions: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class TopicIdsReported:
    """A broker, in the life of `broker_epoch`, answered a LeaderAndIsr by what it knows of topics without an id.

    `topic_ids` has (topic, id or NO_TOPIC_ID).
    """

    broker: int
    broker_epoch: int
    topic_ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """`/admin/preferred_replica_election` was written (CTL-12)."""


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """`/admin/reassign_partitions` was written (CTL-11)."""


@dataclass(frozen=True, slots=True)
class ReassignmentsAltered:
    """An admin starts moves. Target None cancels a move (CTL-10, CTL-11). The answer goes to `ticket`.

    Unless `may_change_factor`, a target must have as many replicas as the partition (KIP-860).
    """

    targets: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    may_change_factor: bool
    ticket: int


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """`leader.imbalance.check.interval.seconds` have passed (CTL-12)."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to stop (STA-2). The answer goes to `ticket`."""

    request: ControlledShutdownRequest
    ticket: int


Event = (
    Elect
    | BrokersChanged
    | BrokerFoundDead
    | TopicsChanged
    | AssignmentChanged
    | TopicDeletionsRequested
    | ReplicasDeleted
    | ElectionsRequested
    | UncleanElectionsAllowed
    | IsrsChanged
    | LogDirsFailed
    | ReplicasFailed
    | LogsMissing
    | TopicIdsReported
    | PreferredElectionRequested
    | ReassignmentsRequested
    | ReassignmentsAltered
    | RebalanceDue
    | ControlledShutdownRequested
)
"""Every kind of event."""
