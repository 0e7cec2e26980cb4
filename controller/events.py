"""What can happen to a controller (CTL-3). Watches, timers and requests only make these; one queue handles them in order.

Most say no more than that something is to be looked at: what is there then is read again, so that an event that comes
twice, late, or from an earlier term does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlledShutdownRequest
from protocol.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Elect:
    """`/controller` may have changed or gone, or this broker has just (again) got a session: look, and run if it is free."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """A child of `/brokers/ids` came or went."""


@dataclass(frozen=True, slots=True)
class BrokerFoundDead:
    """Nobody listens any more where this life of the broker had its control listener (CTL-16)."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """A child of `/brokers/topics` came or went."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """The data of `/brokers/topics/<topic>` changed: partitions were added, or the topic was deleted and made again."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicDeletionsRequested:
    """A child of `/admin/delete_topics` came or went (CTL-9)."""


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    """A broker, in the life of `broker_epoch`, answered a StopReplica(delete): NONE for each replica that is gone (CTL-9, CTL-10)."""

    broker: int
    broker_epoch: int
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


@dataclass(frozen=True, slots=True)
class ElectionsRequested:
    """An admin wants leaders elected (CTL-12); `partitions` None: wherever one is needed. The answer goes to `ticket`."""

    unclean: bool
    partitions: frozenset[TopicPartition] | None
    ticket: int


@dataclass(frozen=True, slots=True)
class UncleanElectionsAllowed:
    """`unclean.leader.election.enable` was switched on, for `topic` or, None, for all: who waits for a leader may get one."""

    topic: str | None


@dataclass(frozen=True, slots=True)
class IsrsChanged:
    """A leader announced an ISR change below `/isr_change_notification` (CTL-13)."""


@dataclass(frozen=True, slots=True)
class LogDirsFailed:
    """A broker announced below `/log_dir_event_notification` that a log directory of its failed (LOG-6)."""


@dataclass(frozen=True, slots=True)
class ReplicasFailed:
    """A broker, in the life of `broker_epoch`, answered a LeaderAndIsr with KAFKA_STORAGE_ERROR for these (LOG-6)."""

    broker: int
    broker_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LogsMissing:
    """A broker, in the life of `broker_epoch`, is in the ISR of these but has lost their logs (FLT-33).

    Each with the leader epoch of the LeaderAndIsr that it refused so.
    """

    broker: int
    broker_epoch: int
    partitions: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """`/admin/preferred_replica_election` was written (CTL-12)."""


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """`/admin/reassign_partitions` was written (CTL-11)."""


@dataclass(frozen=True, slots=True)
class ReassignmentsAltered:
    """An admin begins moves, or cancels those whose target is None (CTL-10, CTL-11); the answer goes to `ticket`."""

    targets: tuple[tuple[TopicPartition, tuple[int, ...] | None], ...]
    ticket: int


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """The timer of `leader.imbalance.check.interval.seconds` (CTL-12)."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to stop (STA-2); the answer goes to the waiter known under `ticket`."""

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
    | PreferredElectionRequested
    | ReassignmentsRequested
    | ReassignmentsAltered
    | RebalanceDue
    | ControlledShutdownRequested
)
"""All of them."""
